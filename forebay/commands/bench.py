"""`forebay bench`: load against any OpenAI-compatible endpoint, and what can be learned from it."""

import argparse
from typing import TYPE_CHECKING

from forebay.commands import bench_agree, bench_compare, bench_fit, bench_load

if TYPE_CHECKING:
    from argparse import _SubParsersAction

PARTS = (bench_fit, bench_agree, bench_compare)


def add(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command, which measures, and its parts."""
    parser = subparsers.add_parser(
        "bench",
        help="load against any OpenAI-compatible endpoint: TTFT, TPOT, goodput",
        description="Sends a load on a schedule that never waits for answers, or from clients that do, and says what "
        "users saw. Exit code 1 where nothing was answered, or where the generator could not keep its schedule. "
        "Definitions: docs/bench.md.",
        epilog=bench_load.EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bench_load.fill(parser)
    parts = parser.add_subparsers(metavar="PART", required=False)
    for part in PARTS:
        part.add(parts)
