"""`forebay cache evaluate` and `calibrate`: the semantic layer on labelled pairs, and the threshold for a bound."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from core.config.records import Embedder, Semantic
from core.errors import ConfigError, Problem
from forebay import configuration

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from cache.evaluate import Calibration, Evaluation, Outcome

PAIRS = 'JSON lines, gzipped or not: {"a": text or messages, "b": text or messages, "same": 0 or 1}'


def add(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command and its two parts."""
    parser = subparsers.add_parser(
        "cache",
        help="measure the semantic cache on labelled pairs, choose its threshold",
        description="Measure the semantic layer, guard included, on labelled pairs.",
        epilog="example: forebay cache evaluate --pairs pairs.jsonl",
    )
    parts = parser.add_subparsers(metavar="PART", required=True)
    evaluate = parts.add_parser(
        "evaluate",
        help="hit rate, false-hit rate and precision",
        description="Each pair alone in an empty cache: a is stored, b is asked, semantic layer only.",
        epilog="example: forebay cache evaluate --pairs pairs.jsonl --threshold 0.85 --json",
    )
    evaluate.add_argument("--threshold", type=_fraction, metavar="T", help="similarity τ (default: as configured)")
    evaluate.add_argument("--judge", metavar="URL", help="server that is asked where the guard is unsure, without /v1")
    evaluate.add_argument("--judge-model", metavar="M", help="its model")
    evaluate.set_defaults(run=run_evaluate)
    calibrate = parts.add_parser(
        "calibrate",
        help="the lowest threshold that keeps a false-hit rate",
        description="The lowest τ at which the upper 95 % bound of the false-hit rate keeps the limit, and the curve.",
        epilog="example: forebay cache calibrate --pairs pairs.jsonl --max-false-hit-rate 0.02",
    )
    calibrate.add_argument("--max-false-hit-rate", type=_fraction, required=True, metavar="R", help="limit, 0 to 1")
    calibrate.set_defaults(run=run_calibrate)
    for part in (evaluate, calibrate):
        part.add_argument("--pairs", type=Path, required=True, metavar="F", help=PAIRS)
        part.add_argument("--no-guard", action="store_true", help="measure the similarity alone")
        part.add_argument("--json", action="store_true", help="print one JSON document")
        configuration.add_option(part)


def run_evaluate(arguments: argparse.Namespace) -> int:
    """Print the rates."""
    from cache.evaluate import evaluate, second_opinions  # noqa: PLC0415  # keeps `--help` quick
    from forebay.opinions import judge_at  # noqa: PLC0415  # as above

    if (arguments.judge is None) != (arguments.judge_model is None):
        raise ConfigError([Problem("", "--judge URL and --judge-model M belong together")])
    semantic, outcomes = _judged(arguments)
    threshold = semantic.threshold if arguments.threshold is None else arguments.threshold
    found = evaluate(outcomes, threshold)
    document = asdict(found)
    lines = _rates(found)
    if arguments.judge is not None:
        with judge_at(arguments.judge, arguments.judge_model) as ask:
            outcomes, asked, failed = second_opinions(outcomes, threshold, ask)
        after = evaluate(outcomes, threshold)
        document["judge"] = asdict(after) | {"asked": asked, "failed": failed}
        lines += f"\n\nwith the judge {arguments.judge_model}, asked about {asked} pairs, {failed} without an opinion\n"
        lines += _rates(after)
    print(json.dumps(document) if arguments.json else lines)
    return 0


def run_calibrate(arguments: argparse.Namespace) -> int:
    """Print the threshold; exit code 1 where none keeps the limit."""
    from cache.evaluate import calibrate  # noqa: PLC0415  # keeps `--help` quick

    _, outcomes = _judged(arguments)
    found = calibrate(outcomes, arguments.max_false_hit_rate)
    print(json.dumps(asdict(found)) if arguments.json else _choice(found, arguments.max_false_hit_rate))
    return 0 if found.threshold is not None else 1


def _judged(arguments: argparse.Namespace) -> "tuple[Semantic, list[Outcome]]":
    # Loads the embedder's libraries.
    from cache.evaluate import judge, read_pairs  # noqa: PLC0415
    from cache.guard.verifier import guard_for  # noqa: PLC0415
    from core.encoders import encoder_for  # noqa: PLC0415

    pairs = read_pairs(arguments.pairs)
    path = configuration.path_of(arguments)
    config = configuration.required(arguments) if path else None
    semantic, embedder = (config.cache.semantic, config.embedder) if config else (Semantic(), Embedder())
    guarded = semantic.guard and not arguments.no_guard
    encoder = encoder_for(embedder.model, embedder.source)
    verifier = guard_for(embedder.model) if guarded else None
    return semantic, judge(pairs, encoder, verifier, progress=_progress)


def _progress(done: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} texts embedded", end="", file=sys.stderr, flush=True)


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to 1")
    return value


def _rates(found: "Evaluation") -> str:
    lines = [
        ("pairs", str(found.pairs)),
        ("threshold", f"{found.threshold:g}"),
        ("hit rate", _share(found.hit_rate)),
        ("false-hit rate", _share(found.false_hit_rate)),
        ("precision", _share(found.precision)),
        ("guarded", f"{found.guarded} pairs at or above the threshold were refused by the guard"),
    ]
    return "\n".join(f"{name:<16}{value}" for name, value in lines)


def _choice(found: "Calibration", limit: float) -> str:
    if found.threshold is not None:
        return (
            f"threshold {found.threshold:g}: false-hit rate {_share(found.false_hit_rate)}, upper bound "
            f"{_share(found.upper)}, hit rate {_share(found.hit_rate)}\n\n"
            f"cache: {{semantic: {{threshold: {found.threshold:g}}}}}"
        )
    if not found.sufficient:
        return f"too few pairs: {found.needed} with same: 0 are needed to show a false-hit rate of {limit:g}"
    return f"no threshold keeps the upper bound of the false-hit rate at {limit:g}"


def _share(value: float | None) -> str:
    return "none to measure" if value is None else f"{value:.1%}"
