"""How good the complexity classifier is: every labelled set, beside a random router of the same cost and prompt length.

    FOREBAY_DATA=DIR python -m bench.router_quality [--pairs] [--vectors F.npz] [--report DIR] [--json]

DIR/router holds the sets. Rows that the shipped classifier was not trained on are scored by it as it is ("unseen").
Rows that it was trained on are scored out of fold: by classifiers of the same recipe that never saw them. Intervals are
95 % bootstrap intervals over the rows. `--pairs` adds the table over all pairs of the models of the LLMRouter set.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table

from core.embedder import SentenceTransformerEncoder
from router.calibrate import calibrate
from router.classifier import Classifier
from router.evaluate import Measured, document, measure, picture
from router.features import length
from router.labels import Labelled, read_labels, read_scores
from router.pairs import Pair, measure_pairs
from router.seed import SeedAsk, read_seed
from router.train import Source, inputs_of, out_of_fold
from router.vectors import Vectors, embed

WEAK, STRONG = "mistral-7b-instruct-v0.3", "llama-3.1-nemotron-51b-instruct"
MANY = "llmrouter_9models_14tasks"


@dataclass(frozen=True)
class Demand:
    """Least APGR, least APGR above length alone, and most CPT50; None: no demand."""

    apgr: float | None = None
    over_length: float | None = None
    cpt50: float | None = None

    def met(self, found: Measured) -> bool:
        """Whether the figures reach it."""
        checks = [(self.apgr, found.apgr), (self.over_length, over(found))]
        enough = all(least is None or (value is not None and value >= least) for least, value in checks)
        return enough and (self.cpt50 is None or (found.cpt50 is not None and found.cpt50 <= self.cpt50))


# The sets in the order of training: what must hold, and what is aimed at.
SETS: dict[str, tuple[Demand, Demand]] = {
    MANY: (Demand(0.67, cpt50=0.28), Demand(0.71, cpt50=0.24)),
    "routellm_mmlu": (Demand(0.58), Demand(0.64)),
    "routellm_gsm8k": (Demand(0.58, over_length=0.01), Demand(0.62, over_length=0.01)),
    "routerarena_sub10_haiku_vs_gemini20flash": (Demand(0.60), Demand(0.65)),
}
REPORTED = "routellm_mtbench"
LEFT_OUT = f"{MANY}, task left out"
DEMANDS = {
    **SETS,
    LEFT_OUT: (Demand(over_length=0.01), Demand(0.62, over_length=0.01)),
    REPORTED: (Demand(), Demand(0.80)),
}


@dataclass(frozen=True)
class Line:
    """One line of the table. `how`: unseen, or out of fold."""

    name: str
    how: str
    measured: Measured

    @property
    def reaches(self) -> str:
        """`aim`, `must` or `short`; empty where nothing is demanded."""
        must, aim = DEMANDS[self.name]
        return (
            "aim"
            if aim.met(self.measured)
            else ""
            if must == Demand()
            else "must"
            if must.met(self.measured)
            else "short"
        )


def over(found: Measured) -> float | None:
    """APGR above that of length alone."""
    return None if found.apgr is None or found.apgr_length is None else found.apgr - found.apgr_length


def lines(folder: Path, kept: Path | None) -> list[Line]:
    """Every line of the table, for the sets that are in the folder."""
    encoder, classifier = SentenceTransformerEncoder(), Classifier.load(None)
    sources = [
        _source(folder / f"{name}.jsonl.gz", encoder, kept) for name in (*SETS, REPORTED) if _there(folder, name)
    ]
    seen = {source.name: np.array([classifier.seen(row.prompt) for row in source.rows]) for source in sources}
    trained = [
        _part(source, seen[source.name]) for source in sources if source.name in SETS and seen[source.name].any()
    ]
    folded = out_of_fold(trained, _seed(encoder, kept), by_group=False, note=_note) if trained else {}
    found = []
    for source in sources:
        fresh = _part(source, ~seen[source.name])
        if fresh.rows:
            pairs = zip(fresh.rows, fresh.vectors, strict=True)
            scores = np.array([classifier.score(row.prompt, vector).complexity for row, vector in pairs])
            found.append(Line(source.name, "unseen", _measured(fresh.rows, scores)))
        if source.name in folded:
            rows = next(own.rows for own in trained if own.name == source.name)
            found.append(Line(source.name, "out of fold", _measured(rows, folded[source.name])))
    for source in sources:
        if source.name == MANY:
            scores = out_of_fold([source], _seed(encoder, kept), by_group=True, note=_note)[MANY]
            found.append(Line(LEFT_OUT, "out of fold", _measured(source.rows, scores)))
    return found


@dataclass(frozen=True)
class Share:
    """A threshold found on one sample for a wanted share of frontier traffic, and the share it gives on another."""

    mix: str
    wanted: float
    achieved: float


def shares(folder: Path, kept: Path | None) -> list[Share]:
    """Calibrated against achieved: on the other half of the same mix of sets, and on another set."""
    encoder, classifier = SentenceTransformerEncoder(), Classifier.load(None)
    sources = [_source(folder / f"{name}.jsonl.gz", encoder, kept) for name in SETS if _there(folder, name)]
    scores = [
        np.array([classifier.score(row.prompt, v).complexity for row, v in zip(one.rows, one.vectors, strict=True)])
        for one in sources
    ]
    mixed = np.random.default_rng(0).permutation(np.concatenate(scores))
    known, fresh = np.array_split(mixed, 2)
    pairs = [("the same mix", known, fresh)]
    if len(scores) > 1:
        pairs.append((f"{sources[0].name} for {sources[1].name}", scores[0], scores[1]))
    found = []
    for mix, sample, other in pairs:
        for wanted in (0.1, 0.3, 0.5):
            threshold = calibrate(sample, wanted).threshold
            found.append(Share(mix, wanted, float((other >= threshold).mean())))
    return found


def _there(folder: Path, name: str) -> bool:
    return (folder / f"{name}.jsonl.gz").exists()


def _source(path: Path, encoder: SentenceTransformerEncoder, kept: Path | None) -> Source:
    rows = read_labels(path, weak=WEAK, strong=STRONG)
    return Source(
        path.name.removesuffix(".jsonl.gz"), rows, embed([row.prompt for row in rows], encoder, kept, _progress)
    )


def _seed(encoder: SentenceTransformerEncoder, kept: Path | None) -> tuple[list[SeedAsk], Vectors]:
    asks = read_seed()
    return asks, embed([ask.prompt for ask in asks], encoder, kept, _progress)


def _part(source: Source, chosen: "np.ndarray[Any, np.dtype[np.bool_]]") -> Source:
    rows = [row for row, own in zip(source.rows, chosen, strict=True) if own]
    vectors: Vectors = source.vectors[chosen]
    return Source(source.name, rows, vectors)


def _measured(rows: Sequence[Labelled], scores: "np.ndarray[Any, np.dtype[np.float64]]") -> Measured:
    return measure(rows, scores, np.array([length(row.prompt) for row in rows]))


def pairs(folder: Path, kept: Path | None) -> list[Pair]:
    """The table over all pairs of models, out of fold."""
    rows = read_scores(folder / f"{MANY}.jsonl.gz")
    texts = [row.prompt for row in rows]
    vectors = embed(texts, SentenceTransformerEncoder(), kept, _progress)
    return measure_pairs(rows, inputs_of(texts, vectors), vectors.shape[1], _note)


def table(found: Sequence[Line]) -> Table:
    """The sets for a terminal."""
    drawn = Table(title="APGR with 95 % interval")
    for column in (
        "set",
        "rows",
        "scored",
        "APGR",
        "random",
        "length",
        "above length",
        "CPT50",
        "CPT80",
        "must",
        "aim",
        "reaches",
    ):
        drawn.add_column(column, justify="left" if column in ("set", "scored", "reaches") else "right", no_wrap=True)
    for line in found:
        own, (must, aim) = line.measured, DEMANDS[line.name]
        figures = [
            _with(own.apgr, own.apgr_ci),
            _with(own.apgr_random, own.apgr_random_ci),
            _with(own.apgr_length, own.apgr_length_ci),
            _with(over(own), own.over_length_ci),
            _figure(own.cpt50),
            _figure(own.cpt80),
        ]
        drawn.add_row(line.name, str(own.rows), line.how, *figures, _demand(must), _demand(aim), line.reaches)
    return drawn


def pair_table(found: Sequence[Pair]) -> Table:
    """The pairs for a terminal, those with the widest gap first."""
    drawn = Table(title="weaker against stronger, out of fold")
    for column in ("weaker", "stronger", "means", "APGR", "length", "above length", "CPT50", "routing"):
        drawn.add_column(
            column, justify="left" if column in ("weaker", "stronger", "routing") else "right", no_wrap=True
        )
    for pair in sorted(found, key=lambda pair: pair.weak_mean - pair.strong_mean):
        own = pair.measured
        figures = [_with(own.apgr, own.apgr_ci), _figure(own.apgr_length), _with(over(own), own.over_length_ci)]
        means = f"{pair.weak_mean:.3f} {pair.strong_mean:.3f}"
        drawn.add_row(pair.weak, pair.strong, means, *figures, _figure(own.cpt50), pair.verdict)
    return drawn


def _with(value: float | None, interval: tuple[float, float] | None) -> str:
    return "-" if value is None or interval is None else f"{value:.3f} ({interval[0]:.3f}..{interval[1]:.3f})"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _demand(demand: Demand) -> str:
    parts = [(demand.apgr, "{:.2f}"), (demand.over_length, "length+{:.2f}"), (demand.cpt50, "CPT50 {:.2f}")]
    return ", ".join(shape.format(value) for value, shape in parts if value is not None)


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\rembedding {done}/{total}", end="\n" if done == total else "", file=sys.stderr, flush=True)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Prints the tables, or one JSON document."""
    parser = argparse.ArgumentParser(prog="python -m bench.router_quality", description=__doc__)
    parser.add_argument("--pairs", action="store_true", help="add the table over all pairs of models")
    parser.add_argument("--only-pairs", action="store_true", help="nothing but that table")
    parser.add_argument("--vectors", type=Path, metavar="F.npz", help="keep embeddings in this file between runs")
    parser.add_argument("--report", type=Path, metavar="DIR", help="folder for one curve per line as PNG, and the JSON")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    if "FOREBAY_DATA" not in os.environ:
        parser.error("FOREBAY_DATA must name the folder that holds router/*.jsonl.gz")
    folder = Path(os.environ["FOREBAY_DATA"]) / "router"
    found = [] if chosen.only_pairs else lines(folder, chosen.vectors)
    shared = [] if chosen.only_pairs else shares(folder, chosen.vectors)
    many = pairs(folder, chosen.vectors) if chosen.pairs or chosen.only_pairs else []
    result: dict[str, Any] = {
        "sets": [
            {"set": one.name, "scored": one.how, "reaches": one.reaches, **document(one.measured)} for one in found
        ],
        "calibrated_shares": [asdict(part) for part in shared],
        "pairs": [
            {"weak": one.weak, "strong": one.strong, "routing": one.verdict, **document(one.measured), "curve": None}
            for one in many
        ],
    }
    if chosen.report is not None:
        chosen.report.mkdir(parents=True, exist_ok=True)
        (chosen.report / "router_quality.json").write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2))
        for one in found:
            (chosen.report / f"{one.name} {one.how}.png").write_bytes(picture(one.name, one.measured))
    if chosen.json:
        print(orjson.dumps(result, option=orjson.OPT_INDENT_2).decode())
        return
    console = Console(width=230)
    if found:
        console.print(table(found))
    for part in shared:
        console.print(f"share of frontier traffic, {part.mix}: {part.wanted:.2f} wanted, {part.achieved:.3f} achieved")
    if any(line.how == "unseen" and line.name in SETS for line in found):
        console.print("unseen: the shipped classifier on rows that it was not trained on")
    if many:
        console.print(pair_table(many))
        paying = sum(pair.verdict == "pays" for pair in many)
        console.print(f"routing pays for {paying} of {len(many)} pairs: better than random and than length alone")


if __name__ == "__main__":
    main()
