"""`forebay review`: a page a week, from Prometheus or an export."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.config.units import parse_duration
from core.errors import ConfigError, ForebayError, Problem
from forebay import arguments, configuration

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from forebay.review.log import Repeats
    from forebay.review.samples import Samples


def add(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "review",
        help="what to change, from a week of metrics",
        description="Are predictable requests cached, are easy ones on the small tier, is decode compute-bound; what "
        "to check where tokens are later than before; utilization, and what the planner would change. "
        "Compares with the same time before where Prometheus has it.",
        epilog="example: forebay review --prometheus http://127.0.0.1:9090 --since 7d --log gateway.log --html w.html",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prometheus", metavar="URL", help="address of the Prometheus")
    source.add_argument("--from", dest="source", type=Path, metavar="F.json", help="an export, as --export writes it")
    parser.add_argument("--since", type=arguments.duration, default=parse_duration("7d"), metavar="D", help="7d")
    parser.add_argument("--namespace", metavar="N", help="only metrics with this label")
    parser.add_argument("--log", type=Path, action="append", default=[], metavar="F", help="lines of a gateway's log")
    configuration.add_option(parser)
    parser.add_argument("--gpu", metavar="G", help="device of the engines: H100-SXM, L40S …")
    parser.add_argument("--gpu-price", type=arguments.positive, metavar="P", help="per GPU and hour")
    parser.add_argument("--plan", metavar="'OPTIONS'", help="options of forebay plan fleet, planned for this load")
    result = parser.add_argument_group("result")
    result.add_argument("--export", type=Path, metavar="F.json", help="write the raw answers of Prometheus")
    result.add_argument("--html", type=Path, metavar="F", help="write one page with plots")
    result.add_argument("--out", type=Path, metavar="F.md", help="write Markdown, with PNG beside it")
    result.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the review."""
    # numpy and the planner take a moment to load.
    from core.config import load  # noqa: PLC0415
    from forebay.review.finding import Case  # noqa: PLC0415
    from forebay.review.report import markdown  # noqa: PLC0415
    from forebay.review.reviewing import halves, review  # noqa: PLC0415

    path = configuration.path_of(options)
    config = None if path is None else load(path)
    now, before = halves(_samples(options))
    if now.seen("forebay_requests_total") is None:
        raise ForebayError("no metric of a gateway in this time: is it scraped, and is --since long enough?")
    device = None
    if options.gpu is not None:
        from capacity.devices import find_device  # noqa: PLC0415  # as above

        try:
            device = find_device(options.gpu)
        except ValueError as error:
            raise ConfigError([Problem("--gpu", str(error))]) from None
    case = Case(now, before, _repeats(options, now), config, device, options.gpu_price)
    document = review(case, options.plan)
    _write(options, document, case)
    print(json.dumps(document) if options.json else markdown(document, {}), end="\n" if options.json else "")
    return 0


def _samples(options: argparse.Namespace) -> "Samples":
    from forebay.review.prometheus import export  # noqa: PLC0415  # as above
    from forebay.review.samples import read_export  # noqa: PLC0415  # as above

    if options.source is not None:
        try:
            document: Any = json.loads(options.source.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ForebayError(f"{options.source}: {error}") from None
    else:
        document = export(options.prometheus, options.since, options.namespace, _note)
        if options.export is not None:
            options.export.write_text(json.dumps(document), encoding="utf-8")
    return read_export(document)


def _repeats(options: argparse.Namespace, now: "Samples") -> "Repeats | None":
    from forebay.review.log import read_log  # noqa: PLC0415  # as above

    if not options.log:
        return None

    def lines() -> Any:
        for path in options.log:
            with path.open(encoding="utf-8", errors="replace") as file:
                yield from file

    return read_log(lines(), float(now.times[0]), float(now.times[-1]))


def _write(options: argparse.Namespace, document: dict[str, Any], case: Any) -> None:
    from forebay.review.report import markdown, page, plots  # noqa: PLC0415  # as above

    if options.html is None and options.out is None:
        return
    pictures = plots(case)
    if options.html is not None:
        options.html.write_text(page(document, pictures), encoding="utf-8")
    if options.out is not None:
        names = {}
        for title, drawn in pictures.items():
            beside = options.out.with_name(f"{options.out.stem}-{title.replace(' ', '-')}.png")
            beside.write_bytes(drawn)
            names[title] = beside.name
        options.out.write_text(markdown(document, names), encoding="utf-8")


def _note(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:<70}\r", end="", file=sys.stderr, flush=True)
