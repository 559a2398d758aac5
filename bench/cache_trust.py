"""How far the semantic layer can be trusted: hit rate and false-hit rate on every labelled set, as one table.

    FOREBAY_DATA=DIR python -m bench.cache_trust [--threshold T] [--sample N] [--vectors DIR] [--torch] [--json]

DIR/cache holds the sets. Each pair is alone in an empty cache, asked through the same code as a request, with the
shipped guard. Beside it what cosine similarity alone would do at 0.90 and 0.95.
"""

import argparse
import hashlib
import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table

from cache.evaluate import Evaluation, LabelledPair, Outcome, evaluate, judge, read_pairs
from cache.guard.verifier import guard_for
from core.config.records import Semantic
from core.embedder import Embedding, Encoder, SentenceTransformerEncoder
from core.encoders import encoder_for

# Hit rate at least, false-hit rate at most; what must hold and what is aimed at. None: no demand.
Demand = tuple[float | None, float | None]
SETS: dict[str, tuple[Demand, Demand]] = {
    "fow_pairs": ((0.42, 0.10), (0.50, 0.03)),
    "gated_banking": ((0.55, 0.25), (0.70, 0.05)),
    "gated_finance": ((None, 0.12), (None, 0.03)),
    "cannot_negation": ((None, 0.05), (None, 0.01)),
    "semantoneg": ((None, 0.05), (None, 0.01)),
    "qqp_gptcache": ((0.35, 0.065), (0.50, 0.05)),
    "gptcache_mock": ((0.55, None), (0.80, None)),
    "paws_en": ((None, 0.45), (None, 0.25)),
    "fow_conv_parts": ((None, 0.0), (None, 0.0)),
    "fow_conv_long": ((None, 0.0), (None, 0.0)),
    "sick": ((None, None), (None, None)),
    "stsb_test": ((None, None), (None, None)),
    "msrp": ((None, None), (None, None)),
    "twitter_url": ((None, None), (None, None)),
    "vllmsr_cache_cases": ((None, None), (None, None)),
}
WINDOW = "equal in the window"


class StoredVectors:
    """An encoder whose results are kept in a folder, so that a second run measures the guard and not the model."""

    def __init__(self, encoder: Encoder, folder: Path) -> None:
        self.name, self.revision, self.dim = encoder.name, encoder.revision, encoder.dim
        self.backend, self.shares = encoder.backend, encoder.shares
        self._encoder, self._folder = encoder, folder
        folder.mkdir(parents=True, exist_ok=True)
        self._known: dict[str, Embedding] = {}
        for keys in sorted(folder.glob("*.json")):
            rows = np.load(keys.with_suffix(".npy"))
            entries = orjson.loads(keys.read_bytes())
            self._known |= {key: Embedding(row, cut) for (key, cut), row in zip(entries, rows, strict=True)}

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        """The embeddings in order, from the folder where they are there."""
        keys = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._known}
        if missing:
            found = dict(zip(missing, self._encoder.encode(list(missing.values())), strict=True))
            self._known |= found
            at = self._folder / f"{len(self._known):08d}"
            np.save(at.with_suffix(".npy"), np.stack([embedding.vector for embedding in found.values()]))
            at.with_suffix(".json").write_bytes(orjson.dumps([(k, e.truncated) for k, e in found.items()]))
        return [self._known[key] for key in keys]


def window_pairs() -> list[LabelledPair]:
    """Long prompts that differ in one late word only, past what the embedder reads in full."""
    filler = "The minutes of the meeting were read and approved by the board without changes. "
    subjects = ("budget", "roof", "garden", "library", "bridge", "school", "festival", "museum", "harbour", "forest")
    text = "Summarise this report on the {subject}. {before}The vote was {vote}. {after}"
    return [
        LabelledPair(
            text.format(subject=subject, before=filler * n, vote="accepted", after=filler * n),
            text.format(subject=subject, before=filler * n, vote="rejected", after=filler * n),
            same=False,
        )
        for subject in subjects
        for n in (40, 150)
    ]


def measured(encoder: Encoder, data: Path, sample: int | None) -> Iterator[tuple[str, list[Outcome]]]:
    """Outcomes per set, in the order of SETS; a set that is not in the folder is left out."""
    verifier = guard_for(encoder.name)
    sets = [(name, data / f"{name}.jsonl.gz") for name in SETS]
    for name, pairs in [*((name, read_pairs(path)) for name, path in sets if path.exists()), (WINDOW, window_pairs())]:
        chosen = random.Random(0).sample(pairs, sample) if sample and len(pairs) > sample else pairs
        print(f"{name}: {len(chosen)} pairs", file=sys.stderr)
        yield name, judge(chosen, encoder, verifier)


def cosine_only(outcomes: Sequence[Outcome], threshold: float) -> Evaluation:
    """What the same pairs would do without the guard."""
    return evaluate([Outcome(outcome.same, outcome.similarity, served=True) for outcome in outcomes], threshold)


def verdict(name: str, found: Evaluation) -> str:
    """`aim`, `must` or `short`, by the demands on the set; empty where there are none."""
    must, aim = SETS.get(name, ((None, 0.0), (None, 0.0)))
    if must == (None, None):
        return ""
    return "aim" if _meets(aim, found) else "must" if _meets(must, found) else "short"


def _meets(demand: Demand, found: Evaluation) -> bool:
    hit, false = demand
    enough = hit is None or (found.hit_rate is not None and found.hit_rate >= hit)
    return enough and (false is None or found.false_hit_rate is None or found.false_hit_rate <= false)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def main() -> None:
    """Prints the table, or one JSON document."""
    parser = argparse.ArgumentParser(prog="python -m bench.cache_trust", description=__doc__)
    parser.add_argument("--threshold", type=float, default=Semantic().threshold)
    parser.add_argument("--sample", type=int, help="at most this many pairs of each set, chosen with a fixed seed")
    parser.add_argument("--vectors", type=Path, help="folder that keeps the embeddings between runs")
    parser.add_argument("--torch", action="store_true", help="vectors of torch instead of the shipped 8-bit path")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    if "FOREBAY_DATA" not in os.environ:
        parser.error("FOREBAY_DATA must name the folder that holds cache/*.jsonl.gz")
    encoder = SentenceTransformerEncoder() if chosen.torch else encoder_for()
    if chosen.vectors:
        encoder = StoredVectors(encoder, chosen.vectors)
    table = Table(title=f"τ = {chosen.threshold}, hit / false-hit rate")
    for column in ("set", "pairs", "hit", "false", "precision", "guarded", "cosine .90", "cosine .95", "reaches"):
        table.add_column(column, justify="left" if column in ("set", "reaches") else "right")
    document = {}
    for name, outcomes in measured(encoder, Path(os.environ["FOREBAY_DATA"]) / "cache", chosen.sample):
        found = evaluate(outcomes, chosen.threshold)
        plain = [cosine_only(outcomes, threshold) for threshold in (0.90, 0.95)]
        rates = [f"{_percent(one.hit_rate)} / {_percent(one.false_hit_rate)}" for one in plain]
        row = [str(found.pairs), *map(_percent, (found.hit_rate, found.false_hit_rate, found.precision))]
        table.add_row(name, *row, str(found.guarded), *rates, verdict(name, found))
        document[name] = asdict(found) | {"reaches": verdict(name, found)}
    if chosen.json:
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        Console(width=130).print(table)


if __name__ == "__main__":
    main()
