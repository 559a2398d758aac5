"""The `forebay` command: parse, run, and turn errors into one line each and an exit code.

0 = done, 1 = failed, 2 = bad usage or bad configuration.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

from core.errors import ConfigError, ForebayError
from forebay.commands import bench, cache, check, deploy, down, explain, plan, review, router, serve, simulate, top, up

COMMANDS = (up, down, serve, check, explain, top, deploy, cache, plan, router, simulate, bench, review)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except ConfigError as error:
        for problem in error.problems:
            print(f"forebay: {problem}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read the output has seen enough: as a filter, without a word.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ForebayError, OSError) as error:
        print(f"forebay: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="forebay",
        description="One OpenAI-compatible endpoint: response caches and complexity routing in front of vLLM tiers.",
        epilog="example: forebay up --detach && forebay explain 'What is the capital of France?'",
    )
    parser.add_argument("--version", action="version", version=f"forebay {_version()}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(subparsers)
    return parser


def _version() -> str:
    try:
        return version("forebay")
    except PackageNotFoundError:
        return "(not installed)"
