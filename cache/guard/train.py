"""Training of the guard: from labelled and made pairs to a checked file.

`python -m cache.guard.train --data DIR --out FILE`, with DIR the folder of the labelled sets. The file holds the
recipe: sources, counts, seed, and what was measured on the quarter of the groups that was held out. The shipped numbers
are then fitted on all groups.
"""

import argparse
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import JsonValue

from cache.guard.corpus import WEIGHTS, TrainingPair, all_pairs
from cache.guard.lexicon import lexicon
from cache.guard.model import SCHEMA, PairModel, checksum, parse_model
from cache.guard.pairing import FEATURES, Pair
from cache.guard.reading import Reader, Reading
from cache.guard.words import word_table
from core.embedder import Encoder, SentenceTransformerEncoder, Vector

logger = logging.getLogger(__name__)
SEED = 7
# Pairs below are no candidates under any sensible threshold.
LEAST_SIMILARITY = 0.6
# Score that is served, and the share of the trees in it: chosen on the held-out groups for false hits first.
CUT = 0.27
TREE_SHARE = 0.5
# More of a rising feature never lowers the score, more of a falling one never raises it.
RISING = frozenset(
    {"similarity", "shared_weight_max", "shared_weight_min", "soft_overlap_max", "soft_overlap_min"}
    | {"substitute_best", "substitute_worst", "addition_fit", "kind_same"}
)
FALLING = frozenset(
    {"left_over_weight_max", "left_over_weight_min", "left_over_count_max", "left_over_count_min", "inversions"}
    | {"unknown_left_over", "role_changes", "names_missing_max", "names_missing_min", "names_turned"}
    | {"negated_differ", "opposed", "kind_conflict"}
)
Embed = Callable[[Sequence[str]], Mapping[str, Vector]]


@dataclass(frozen=True)
class Table:
    """Judged pairs as arrays: `rows` for those that no rule refuses, shape (n, features); `settled` for the rest."""

    rows: NDArray[np.float64]
    same: NDArray[np.bool_]
    weight: NDArray[np.float64]
    pairs: list[TrainingPair]
    settled: list[TrainingPair]


def train(data: Path, out: Path, encoder_name: str, embed: Embed, *, seed: int = SEED) -> PairModel:
    """Trains on the files in `data` and writes the guard file `out`. Returns the model that was written."""
    words, lists = word_table(), lexicon()
    pairs, vectors = all_pairs(data, lists, words, embed, seed)
    logger.info("%d pairs over %d texts", len(pairs), len(vectors))
    table = _table(pairs, vectors)
    held = np.array([pair.held_out for pair in table.pairs])
    measured = _measure(_fit(table, ~held), table, held)
    counts: dict[str, JsonValue] = dict(sorted(Counter(pair.source for pair in pairs).items()))
    document: dict[str, JsonValue] = {
        "schema": SCHEMA,
        "embedder": encoder_name,
        "features": list(FEATURES),
        "cut": CUT,
        "tree_share": TREE_SHARE,
        **_fit(table, np.ones(len(held), dtype=bool)),
        "recipe": {
            "command": "python -m cache.guard.train --data DIR --out FILE",
            "seed": seed,
            "pairs": counts,
            "weights": dict(WEIGHTS),
            "candidates": {"least_similarity": LEAST_SIMILARITY, "pairs": len(table.pairs)},
            "held_out": measured,
        },
    }
    document["checksum"] = checksum(document)
    content = orjson.dumps(document)
    model = parse_model(content, str(out))
    out.write_bytes(content + b"\n")
    return model


def _table(pairs: Sequence[TrainingPair], vectors: Mapping[str, Vector]) -> Table:
    words, lists = word_table(), lexicon()
    reader = Reader(lists, words)
    read: dict[str, Reading] = {}
    rows, kept, settled = [], [], []
    for pair in pairs:
        similarity = float(vectors[pair.a] @ vectors[pair.b])
        a, b = (read.get(text) or read.setdefault(text, reader.read(text)) for text in (pair.a, pair.b))
        compared = Pair(a, b, lists, words)
        if similarity < LEAST_SIMILARITY or a.identity == b.identity or compared.refusal() is not None:
            settled.append(pair)
            continue
        rows.append(compared.features(similarity))
        kept.append(pair)
    same = np.array([pair.same for pair in kept])
    return Table(np.stack(rows), same, np.array([WEIGHTS[pair.source] for pair in kept]), kept, settled)


def _fit(table: Table, chosen: NDArray[np.bool_]) -> dict[str, JsonValue]:
    from sklearn.ensemble import HistGradientBoostingClassifier  # noqa: PLC0415  # seconds to import, for training only
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    rows, same, weight = table.rows[chosen], table.same[chosen], table.weight[chosen]
    trees = HistGradientBoostingClassifier(
        max_iter=250,
        learning_rate=0.05,
        max_leaf_nodes=8,
        max_depth=4,
        min_samples_leaf=30,
        l2_regularization=5.0,
        early_stopping=False,
        monotonic_cst=[int(name in RISING) - int(name in FALLING) for name in FEATURES],
        random_state=0,
    ).fit(rows, same, sample_weight=weight)
    mean, scale = rows.mean(axis=0), rows.std(axis=0)
    scale[scale == 0] = 1.0
    linear = LogisticRegression(C=0.3, max_iter=3000).fit((rows - mean) / scale, same, sample_weight=weight)
    return {
        "linear": {
            "mean": _rounded(mean),
            "scale": _rounded(scale),
            "weights": _rounded(linear.coef_[0]),
            "bias": float(linear.intercept_[0]),
        },
        "trees": _exported(trees),
    }


def _exported(model: Any) -> dict[str, JsonValue]:
    """The trees as rectangular lists. scikit-learn gives no public access to the nodes of this estimator."""
    trees = [stage[0].nodes for stage in model._predictors]  # noqa: SLF001
    size = max(map(len, trees))
    out: dict[str, list[list[float]]] = {name: [] for name in ("feature", "threshold", "left", "right", "value")}
    for nodes in trees:
        leaf = nodes["is_leaf"].astype(bool)
        values = _means(nodes, leaf)
        padding = [0] * (size - len(nodes))
        out["feature"].append([*np.where(leaf, -1, nodes["feature_idx"].astype(int)).tolist(), *([-1] * len(padding))])
        out["threshold"].append([*np.where(leaf, 0.0, nodes["num_threshold"]).tolist(), *padding])
        out["left"].append([*np.where(leaf, 0, nodes["left"].astype(int)).tolist(), *padding])
        out["right"].append([*np.where(leaf, 0, nodes["right"].astype(int)).tolist(), *padding])
        out["value"].append([*(round(value, 7) for value in values), *padding])
    return {**out, "base": float(np.ravel(model._baseline_prediction)[0])}  # type: ignore[dict-item]  # noqa: SLF001


def _means(nodes: Any, leaf: NDArray[np.bool_]) -> list[float]:
    """The value of each node: a leaf's own, an inner node's the mean of what lies below, by count."""
    values = [float(value) for value in nodes["value"]]
    for at in range(len(nodes) - 1, -1, -1):
        if not leaf[at]:
            left, right = int(nodes["left"][at]), int(nodes["right"][at])
            counts = float(nodes["count"][left]), float(nodes["count"][right])
            values[at] = (counts[0] * values[left] + counts[1] * values[right]) / sum(counts)
    return values


def _rounded(array: NDArray[np.float64]) -> list[JsonValue]:
    return [round(float(value), 6) for value in array]


def _measure(fitted: dict[str, JsonValue], table: Table, held: NDArray[np.bool_]) -> dict[str, JsonValue]:
    """Hit rate and false-hit rate per source on the held-out pairs at the cut, rules included, no threshold."""
    document: dict[str, JsonValue] = {
        "schema": SCHEMA,
        "embedder": "",
        "features": list(FEATURES),
        "cut": CUT,
        "tree_share": TREE_SHARE,
        "recipe": {},
        **fitted,
    }
    model = parse_model(orjson.dumps(document | {"checksum": checksum(document)}), "held out")
    served: Counter[tuple[str, bool]] = Counter()
    asked = Counter((pair.source, pair.same) for pair in (*table.pairs, *table.settled) if pair.held_out)
    for row, pair, out in zip(table.rows, table.pairs, held, strict=True):
        if out and model.score(row) >= CUT:
            served[pair.source, pair.same] += 1
    report: dict[str, JsonValue] = {}
    for source in sorted({source for source, _ in asked}):
        rates = {
            name: _rate(served[source, same], asked[source, same]) for name, same in (("hit", True), ("false", False))
        }
        report[source] = {"pairs": asked[source, True] + asked[source, False], **rates}
    return report


def _rate(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def embedding_with(encoder: Encoder, batch: int = 256) -> Embed:
    """Embeds texts with `encoder`, similar lengths together."""

    def embed(texts: Sequence[str]) -> Mapping[str, Vector]:
        ordered = sorted(texts, key=len)
        vectors: dict[str, Vector] = {}
        for at in range(0, len(ordered), batch):
            part = ordered[at : at + batch]
            vectors |= {text: found.vector for text, found in zip(part, encoder.encode(part), strict=True)}
            logger.info("embedded %d of %d texts", len(vectors), len(ordered))
        return vectors

    return embed


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of the training."""
    parser = argparse.ArgumentParser(prog="python -m cache.guard.train", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the labelled pair sets")
    parser.add_argument("--out", type=Path, required=True, help="guard file to write")
    parser.add_argument("--seed", type=int, default=SEED)
    chosen = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    encoder = SentenceTransformerEncoder()
    train(chosen.data, chosen.out, encoder.name, embedding_with(encoder), seed=chosen.seed)


if __name__ == "__main__":
    main()
