"""`forebay down`: end what `forebay up` started, and nothing else."""

import argparse
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction

# Beyond the gateway's drain limit: the cluster needs a few seconds to end.
_MARGIN = 45.0


def add(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "down",
        help="stop what `forebay up` started",
        description="Stop the running `forebay up`: streams may finish within gateway.drain, then engines and Ray end. "
        "Also cleans up after one that was killed. Where nothing runs it says so.",
        epilog="example: forebay down",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 where nothing of it runs any more."""
    # Not at the top, to keep `--help` quick.
    from deploy.instance import Instance  # noqa: PLC0415
    from deploy.places import state_home  # noqa: PLC0415

    instance = Instance(state_home())
    state = instance.read()
    pid = instance.stop((state.drain if state else 0) + _MARGIN)
    left = instance.sweep()
    if arguments.json:
        print(json.dumps({"stopped": pid is not None or left > 0, "pid": pid, "leftovers": left}))
    elif pid is not None:
        print(f"stopped (pid {pid})")
    elif left:
        print(f"cleaned up after an `up` that was killed: {left} processes ended")
    else:
        print("nothing is running")
    return 0
