"""`forebay bench compare A.json B.json`: the verdict per figure and class, with its interval."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import ConfigError, Problem
from forebay import arguments

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from bench.load.compare import Difference


def add(parts: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the part."""
    parser = parts.add_parser(
        "compare",
        help="two results compared, per class, with intervals",
        description="Is B better than A? Per figure and class: the difference, its 95 %% interval, the verdict. Both "
        "are documents of `forebay bench --json` or `--out`.",
        epilog="example: forebay bench compare direct.json gateway.json --margin 0.02",
    )
    parser.add_argument("a", type=Path, metavar="A.json")
    parser.add_argument("b", type=Path, metavar="B.json")
    parser.add_argument(
        "--margin", type=arguments.fraction, default=0.0, metavar="S", help="a share that is no matter (0)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the comparison."""
    from bench.load.compare import compared, unlike  # noqa: PLC0415  # bench brings numpy in

    a, b = _read(args.a), _read(args.b)
    found, notes = compared(a, b, args.margin), unlike(a, b)
    if args.json:
        rows = [
            {
                "part": one.part, "figure": one.figure, "a": one.a, "b": one.b, "difference": one.difference,
                "share": one.share, "ci95": None if one.low is None else [one.low, one.high], "verdict": one.verdict,
            }
            for one in found
        ]  # fmt: skip
        print(json.dumps({"a": str(args.a), "b": str(args.b), "rows": rows, "unlike": notes}))
    else:
        print(_table(found))
    for note in notes:
        print(f"bench: {note}", file=sys.stderr)
    return 0


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError([Problem(str(path), f"cannot be read: {error}")]) from None
    if not isinstance(found, dict) or "ttft" not in found:
        raise ConfigError([Problem(str(path), "is no result of forebay bench or forebay simulate")])
    return found


def _table(found: "list[Difference]") -> str:
    lines = [f"{'':<28} {'figure':<17} {'A':>11} {'B':>11} {'B - A':>11}   {'95 %':<25} verdict on B"]
    for one in found:
        scale, unit = (1.0, "") if one.figure.startswith(("throughput", "goodput")) else (1000.0, " ms")
        figures = " ".join(f"{value * scale:>11.3f}" for value in (one.a, one.b, one.difference))
        ends = "-" if one.low is None or one.high is None else f"{one.low * scale:.3f} … {one.high * scale:.3f}{unit}"
        share = "" if one.share is None else f" ({one.share:+.1%})"
        lines.append(f"{one.part[:28]:<28} {one.figure:<17} {figures}   {ends:<25} {one.verdict}{share}")
    return "\n".join(lines)
