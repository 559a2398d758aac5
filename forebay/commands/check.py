"""`forebay check`: is the configuration right, and with `--live`, is what it names there."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from core.config import Config, schema
from core.errors import ConfigError, Problem
from forebay import configuration

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from deploy.device import Device


def add(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "check",
        help="validate the configuration",
        description="Validate the configuration strictly; every fault is named with its key path.",
        epilog="example: forebay check --config forebay.yaml --live",
    )
    configuration.add_option(parser)
    parser.add_argument(
        "--live", action="store_true", help="also ask tiers and shared store, and load embedder and classifier"
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "gpu"),
        help="what the engines will run on (default: what the installed vLLM was built for, else gpu)",
    )
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of the document and stop")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 where all is right, 2 where the document is wrong, 1 where something it names does not answer."""
    if arguments.schema:
        print(json.dumps(schema(), indent=2))
        return 0
    from deploy.device import engine_device  # noqa: PLC0415  # keeps `--help` quick

    try:
        config = checked(arguments)
    except ConfigError as error:
        if not arguments.json:
            raise
        print(json.dumps({"valid": False, "problems": [vars(problem) for problem in error.problems]}))
        return 2
    configuration.say_notes(config, arguments.device or engine_device() or "gpu")
    faults = live_faults(config) if arguments.live else []
    if arguments.json:
        print(
            json.dumps({"valid": True, "problems": [], "live": [vars(f) for f in faults] if arguments.live else None})
        )
    else:
        print(f"configuration is valid: tiers {', '.join(name for name, _ in config.tiers.items())}")
        for fault in faults:
            print(f"forebay: {fault}", file=sys.stderr)
        if arguments.live and not faults:
            print("live: every tier, the shared store if there is one, the embedder and the classifier answered")
    return 1 if faults else 0


def checked(arguments: argparse.Namespace) -> Config:
    """The configuration. Raises ConfigError that names every fault of it."""
    config = configuration.required(arguments)
    problems = engine_problems(config, arguments.device)
    if problems:
        raise ConfigError(problems)
    return config


def engine_problems(config: Config, device: "Device | None" = None) -> list[Problem]:
    """Faults of the engines on that device (None: the one installed here) and of the classifier file."""
    from deploy.device import engine_device  # noqa: PLC0415  # keeps `--help` quick
    from deploy.engine import check_engine, check_engines  # noqa: PLC0415  # keeps `--help` quick
    from router.classifier import Classifier  # noqa: PLC0415  # keeps `--help` quick

    problems = check_engines(config, device or engine_device() or "gpu")
    for name, tier in config.tiers.items():
        if tier.urls:
            problems += check_engine(tier.engine, f"tiers.{name}.engine")
    if config.router.classifier != "default":
        try:
            Classifier.load(Path(config.router.classifier))
        except ConfigError as error:
            problems += [Problem("router.classifier", problem.message) for problem in error.problems]
    return problems


def live_faults(config: Config) -> list[Problem]:
    """What the configuration names and does not answer: tiers (with their model), shared store, embedder."""
    from forebay.live import embedder_faults, store_faults, tier_faults  # noqa: PLC0415  # loads torch

    faults = [fault for name, tier in config.tiers.items() for fault in tier_faults(f"tiers.{name}", tier)]
    faults += store_faults("cache.store", config.cache.store) + store_faults("auth.store", config.auth.store)
    return faults + embedder_faults(config.embedder)
