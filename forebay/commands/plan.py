"""`forebay plan`: batches, memory and fleets, computed before any hardware is rented."""

import argparse
from typing import TYPE_CHECKING

from forebay.commands import plan_batch, plan_fleet, plan_kv

if TYPE_CHECKING:
    from argparse import _SubParsersAction

PARTS = (plan_batch, plan_kv, plan_fleet)


def add(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command and its parts."""
    parser = subparsers.add_parser(
        "plan",
        help="queueing, memory, and how many replicas of what",
        description="Exact queueing, KV memory, and fleets that keep an objective.",
        epilog="example: forebay plan batch --arrival-rate 100 --t-fixed 50ms --t-req 0.5ms --batch 1,8,16",
    )
    parts = parser.add_subparsers(metavar="PART", required=True)
    for part in PARTS:
        part.add(parts)
