"""`forebay router`: measure, train and calibrate the complexity classifier, and label traffic for it."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from core.embedder import SentenceTransformerEncoder
from core.encoders import encoder_for
from core.errors import ConfigError, Problem
from forebay.commands import router_label
from router.artefact import write
from router.calibrate import calibrate, calibrate_confidence
from router.classifier import Classifier, Score
from router.evaluate import Measured, document, measure, picture
from router.features import length
from router.labelling import confidences
from router.labels import Labelled, prompt_of, read_labels, read_rows
from router.seed import read_seed
from router.train import Source, Trained, train
from router.vectors import Vectors, embed


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `router` and its own subcommands."""
    parser = subparsers.add_parser("router", help="measure, train and calibrate the complexity classifier")
    commands = parser.add_subparsers(dest="router_command", required=True, metavar="COMMAND")
    _add_evaluate(commands)
    _add_train(commands)
    _add_calibrate(commands)
    _add_label(commands)


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
    example: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"example: {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if name != "label":
        parser.add_argument("--vectors", type=Path, metavar="F.npz", help="keep embeddings in this file between runs")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)
    return parser


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--weak", metavar="NAME", help="small model, where rows hold scores per model")
    parser.add_argument("--strong", metavar="NAME", help="frontier model, where rows hold scores per model")


def _add_evaluate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _command(
        commands,
        "evaluate",
        _evaluate,
        "quality against cost of a classifier on labelled asks, beside random and prompt length",
        "forebay router evaluate --data labels.jsonl.gz --json",
    )
    parser.add_argument("--data", type=Path, required=True, metavar="F", help="JSON lines: prompt, weak, strong")
    parser.add_argument("--classifier", type=Path, metavar="F", help="a trained file; the shipped one without it")
    parser.add_argument("--plot", type=Path, metavar="F.png", help="the curve as a picture")
    _add_models(parser)


def _add_train(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _command(
        commands,
        "train",
        _train,
        "learn a classifier from labelled asks and write it, if it beats a random router of the same cost",
        "forebay router train --data labels.jsonl.gz --out classifier.json",
    )
    parser.add_argument(
        "--data", type=Path, required=True, action="append", metavar="F", help="labelled asks; may be given again"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="M", help="the classifier file to write")
    parser.add_argument(
        "--report", type=Path, metavar="DIR", help="folder for report.json and one curve per data file as PNG"
    )
    parser.add_argument(
        "--leave-out", metavar="FIELD", help="measure each group of rows by a classifier that never saw the group"
    )
    _add_models(parser)


def _add_calibrate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _command(
        commands,
        "calibrate",
        _calibrate,
        "the threshold at which a wanted share of a traffic sample goes to the frontier tier",
        "forebay router calibrate --data prompts.jsonl --frontier-share 0.3",
    )
    parser.add_argument("--data", type=Path, required=True, metavar="F", help="JSON lines with prompt or messages")
    parser.add_argument("--frontier-share", type=_share, required=True, metavar="S", help="wanted share, 0 to 1")
    parser.add_argument("--classifier", type=Path, metavar="F", help="a trained file; the shipped one without it")

    parser.add_argument(
        "--cascade", action="store_true", help="the cascade's confidence threshold instead, on a file that label wrote"
    )
    parser.add_argument("--whole", action="store_true", help="with --cascade: the confidence of whole answers")


def _add_label(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _command(
        commands,
        "label",
        router_label.run,
        "ask both tiers and write what their answers are worth; a run that ended early goes on",
        "forebay router label --weak http://small:8000 --strong http://frontier:8000 --prompts p.jsonl --out l.jsonl",
    )
    router_label.add_arguments(parser)


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError("a share lies between 0 and 1")
    return value


def _evaluate(args: argparse.Namespace) -> int:
    classifier = Classifier.load(args.classifier)
    rows = read_labels(args.data, weak=args.weak, strong=args.strong)
    texts = [row.prompt for row in rows]
    scores = _scores(classifier, texts, _vectors(texts, args.vectors, classifier.embedder))
    complexities = np.array([score.complexity for score in scores])
    found = measure(rows, complexities, np.array([length(text) for text in texts]))
    if args.plot is not None:
        args.plot.write_bytes(picture(args.data.name, found))
    seen = sum(classifier.seen(text) for text in texts)
    if args.json:
        unfamiliar = sum(not score.familiar for score in scores) / len(scores)
        _print_json({**document(found), "unfamiliar": round(unfamiliar, 4), "rows_trained_on": seen})
    else:
        print(_table({str(args.data): found}))
    if seen:
        _note(f"the classifier was trained on {seen} of these {len(rows)} rows: they say little about others")
    return 0


def _train(args: argparse.Namespace) -> int:
    if not args.out.parent.is_dir():
        raise ConfigError([Problem("out", f"{args.out.parent} is not a folder")])
    files = [_labels(path, args) for path in args.data]
    asks = read_seed()
    texts = [*(row.prompt for rows in files for row in rows), *(ask.prompt for ask in asks)]
    encoder = SentenceTransformerEncoder()
    vectors = embed(texts, encoder, args.vectors, _progress)
    ends = np.cumsum([len(rows) for rows in files])
    parts = np.split(vectors, ends)
    names = _names(args.data)
    trained = train(
        [Source(name, rows, part) for name, rows, part in zip(names, files, parts, strict=False)],
        (asks, parts[-1]),
        embedder=encoder.name,
        by_group=args.leave_out is not None,
        note=_note,
    )
    if trained.artefact is not None:
        write(trained.artefact, args.out)
    _report(trained, args)
    for reason in trained.refusals:
        _note(f"refused: {reason}")
    return 1 if trained.refusals else 0


def _labels(path: Path, args: argparse.Namespace) -> list[Labelled]:
    # A file with qualities of two models needs no names; the names are for files with many.
    return read_labels(path, weak=args.weak, strong=args.strong, group_field=args.leave_out)


def _names(paths: Sequence[Path]) -> list[str]:
    names: list[str] = []
    for path in paths:
        name = path.name.removesuffix(".gz").removesuffix(".jsonl")
        names.append(name if name not in names else f"{name}-{len(names) + 1}")
    return names


def _report(trained: Trained, args: argparse.Namespace) -> None:
    written = None if trained.refusals else str(args.out)
    result: dict[str, Any] = {
        "written": written,
        "refused": list(trained.refusals),
        "chat_accuracy": round(trained.chat_accuracy, 4),
        "data": {name: document(found) for name, found in trained.measured.items()},
    }
    if len(trained.measured) == 1:
        result |= next(iter(result["data"].values()))
    if args.report is not None:
        args.report.mkdir(parents=True, exist_ok=True)
        (args.report / "report.json").write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2))
        for name, found in trained.measured.items():
            (args.report / f"{name}.png").write_bytes(picture(name, found))
    if not args.json:
        print(_table(trained.measured))
        print(f"easy and hard seed asks on their side of 0.5: {trained.chat_accuracy:.1%}")
        print(f"written to {written}" if written else "nothing written")
        return
    _print_json(result)


def _calibrate_cascade(args: argparse.Namespace) -> int:
    """The confidence below which the wanted share of answers lies, and how well confidence ranks those answers."""
    rows = read_labels(args.data)
    sure = np.array(confidences(args.data, whole=args.whole))
    found = calibrate_confidence(sure, args.frontier_share)
    measured = measure(rows, -sure, np.array([length(row.prompt) for row in rows]))
    at = measured.curve.at(np.array([found.achieved]))[0]
    result = {
        "threshold": round(found.threshold, 5),
        "wanted_share": found.wanted,
        "frontier_share": round(found.achieved, 4),
        "quality": round(float(at), 4),
        "random_quality": round(float(measured.curve.quality[0] + found.achieved * measured.curve.gap), 4),
        "tokens": None if args.whole else _first_tokens(args.data),
        **document(measured),
    }
    if args.json:
        _print_json(result)
        return 0
    tokens = "null" if args.whole else result["tokens"]
    print(f"router.cascade: {{enabled: true, threshold: {result['threshold']}, tokens: {tokens}}}")
    print(f"escalates {found.achieved:.1%} of the {len(rows)} answers ({found.wanted:.1%} wanted)")
    print(f"quality {result['quality']}, of a random router of the same cost {result['random_quality']}")
    print(_table({args.data.name: measured}))
    return 0


def _first_tokens(path: Path) -> int:
    values = [row["confidence"] for _, row in read_rows(path)]
    tokens = {value["first_tokens"] for value in values if isinstance(value, dict) and "first_tokens" in value}
    if len(tokens) != 1:
        raise ConfigError([Problem("data", f"{path} mixes confidences over different numbers of first tokens")])
    return int(str(tokens.pop()))


def _calibrate(args: argparse.Namespace) -> int:
    if args.cascade:
        return _calibrate_cascade(args)
    classifier = Classifier.load(args.classifier)
    texts = [prompt_of(row, f"{args.data}:{number}") for number, row in read_rows(args.data)]
    if not texts:
        raise ConfigError([Problem("data", f"{args.data} holds no rows")])
    scores = _scores(classifier, texts, _vectors(texts, args.vectors, classifier.embedder))
    found = calibrate(np.array([score.complexity for score in scores]), args.frontier_share)
    unfamiliar = sum(not score.familiar for score in scores) / len(scores)
    result = {
        "threshold": round(found.threshold, 6),
        "wanted_share": found.wanted,
        "frontier_share": round(found.achieved, 4),
        "rows": len(texts),
        "unfamiliar": round(unfamiliar, 4),
    }
    if args.json:
        _print_json(result)
    else:
        print(f"router.threshold: {result['threshold']}")
        print(f"sends {found.achieved:.1%} of the {len(texts)} asks to the frontier tier ({found.wanted:.1%} wanted)")
        print(f"{unfamiliar:.1%} of them are unlike the training data")
    return 0


def _scores(classifier: Classifier, texts: Sequence[str], vectors: Vectors) -> list[Score]:
    return [classifier.score(text, vector) for text, vector in zip(texts, vectors, strict=True)]


def _vectors(texts: Sequence[str], kept: Path | None, embedder: str) -> Vectors:
    encoder = encoder_for(embedder)
    return embed(texts, encoder, kept, _progress)


def _table(measured: dict[str, Measured]) -> str:
    lines = [f"{'data':<44} {'rows':>5} {'APGR':>5} {'95 %':>12} {'random':>6} {'length':>6} {'CPT50':>5} {'CPT80':>5}"]
    for name, found in measured.items():
        low, high = found.apgr_ci or (None, None)
        lines.append(
            f"{name[-44:]:<44} {found.rows:>5} {_figure(found.apgr):>5} {_figure(low):>5}..{_figure(high):>5}"
            f" {_figure(found.apgr_random):>6} {_figure(found.apgr_length):>6}"
            f" {_figure(found.cpt50):>5} {_figure(found.cpt80):>5}"
        )
    return "\n".join(lines)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\rembedding {done}/{total}", end=end, file=sys.stderr, flush=True)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print_json(result: dict[str, Any]) -> None:
    sys.stdout.buffer.write(orjson.dumps(result, option=orjson.OPT_APPEND_NEWLINE))
    sys.stdout.flush()
