"""Which configuration a command works on."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from core.config import Config, load
from core.errors import ConfigError, Problem

if TYPE_CHECKING:
    from deploy.device import Device

DEFAULT = Path("forebay.yaml")


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add `--config F` to a command."""
    parser.add_argument(
        "--config", type=Path, metavar="F", help=f"configuration file (default: {DEFAULT} where it exists)"
    )


def path_of(arguments: argparse.Namespace) -> Path | None:
    """The file that was named, else `forebay.yaml` in the working directory where it exists, else None."""
    named: Path | None = arguments.config
    return named or (DEFAULT if DEFAULT.is_file() else None)


def required(arguments: argparse.Namespace) -> Config:
    """The configuration. Raises ConfigError where none is named and `forebay.yaml` does not exist."""
    path = path_of(arguments)
    if path is None:
        raise ConfigError([Problem("", f"no configuration: give --config FILE or create {DEFAULT} here")])
    return load(path)


def say_notes(config: Config, device: "Device") -> None:
    """Say on stderr what is legal and will hardly pay."""
    from deploy.advice import advice  # noqa: PLC0415  # keeps `--help` quick

    for note in advice(config, device):
        print(f"forebay: note: {note}", file=sys.stderr)
