"""`forebay serve`: the gateway alone, in front of tiers that already run."""

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING

from forebay import configuration

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "serve",
        help="the gateway alone, in front of tiers that run at tiers.*.urls",
        description="Serve the OpenAI API at gateway.host and gateway.port until SIGTERM or Ctrl-C; streams that run "
        "may finish within gateway.drain. SIGHUP reads the configuration again. Logs go to stderr, one JSON line per "
        "request.",
        epilog="example: forebay serve --config forebay.yaml",
    )
    configuration.add_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop: 0; 1 where the address cannot be taken, 2 for a wrong configuration."""
    config = configuration.required(arguments)
    from gateway.server import run as serve  # noqa: PLC0415  # keeps `--help` quick

    return serve(
        config, lambda line: print(line, file=sys.stderr, flush=True), partial(configuration.required, arguments)
    )
