"""`forebay deploy`: the tiers on a Ray cluster that runs already."""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import yaml

from core.config import Config, validate
from core.config.load import Document, apply_overrides, read_document
from core.errors import ConfigError, Problem
from forebay import arguments, configuration

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from deploy.cluster import Application, Cluster
    from deploy.device import Device
    from deploy.render import Deployment

_DEFAULT_TIMEOUT = 1800.0


def add(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command and its parts."""
    parser = subparsers.add_parser(
        "deploy",
        help="the tiers on a Ray cluster",
        description="Print the tiers as a configuration of Ray Serve, or deploy them to a cluster that runs already. "
        "Tiers with urls are left out.",
        epilog="example: forebay deploy render --config forebay.yaml > serve.yaml",
    )
    parts = parser.add_subparsers(metavar="PART", required=True)
    render = _part(parts, "render", "print the configuration of Ray Serve (serveConfigV2)", render_part)
    _configured(render)
    render.add_argument(
        "--engines",
        action="store_true",
        help="print what becomes of it instead: each replica group with its GPUs, placement and engine arguments",
    )
    start = _part(parts, "run", "deploy the tiers, and wait until they run", run_part)
    _configured(start)
    _located(start)
    _timed(start)
    start.add_argument("--no-wait", action="store_true", help="return as soon as the cluster has accepted them")
    status = _part(parts, "status", "what the tiers on the cluster are doing; 1 where one does not run", status_part)
    _located(status)
    down = _part(parts, "down", "remove the tiers from the cluster, and nothing else", down_part)
    _located(down)
    _timed(down)


def render_part(given: argparse.Namespace) -> int:
    """Print the Serve configuration, or the replica groups. Exit code 2 for a wrong configuration (raised)."""
    from deploy.render import deployments, serve_config  # noqa: PLC0415  # keeps `--help` quick

    document, config, device = _checked(given)
    serve = serve_config(document)
    result: dict[str, Any] = serve
    if given.engines:
        found = deployments(config, device)
        totals = {key: sum(_number(group, key) for group in found) for key in ("gpus_min", "gpus_max")}
        result = {**totals, "deployments": found}
    print(json.dumps(result) if given.json else plain_yaml(result), end="\n" if given.json else "")
    return 0


def run_part(given: argparse.Namespace) -> int:
    """Exit code 0 once every tier runs, 1 where one failed or the time was over (raised)."""
    from deploy.render import serve_config  # noqa: PLC0415  # as above

    document, _, _ = _checked(given)
    config = serve_config(document)
    names = [application["name"] for application in config["applications"]]
    with _cluster(given) as cluster:
        port = cluster.run(config)
        found = cluster.tiers() if given.no_wait else cluster.wait(names, _Changes(), given.timeout)
    _report(given, found, [f"tiers.{name}.urls: [http://HOST:{port}/{name}]" for name in names])
    return 0


def status_part(given: argparse.Namespace) -> int:
    """Exit code 0 where at least one tier is there and all run."""
    with _cluster(given) as cluster:
        found = cluster.tiers()
    _report(given, found, [] if found else ["no tier is deployed"])
    return 0 if found and all(application["status"] == "RUNNING" for application in found.values()) else 1


def down_part(given: argparse.Namespace) -> int:
    """Exit code 0 once no tier is left."""
    with _cluster(given) as cluster:
        names = cluster.down()
        cluster.wait_gone(_Changes(), given.timeout)
    print(json.dumps({"removed": names}) if given.json else f"removed: {', '.join(names) or 'nothing'}")
    return 0


def plain_yaml(value: Any) -> str:
    """YAML in the order of the value, without anchors."""

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, _: Any) -> bool:
            return True

    return yaml.dump(value, Dumper=Plain, sort_keys=False, width=120)


class _Changes:
    """Progress as one line on stderr for each change."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def __call__(self, found: Mapping[str, "Application"]) -> None:
        for name, application in found.items():
            line = _line(name, application)
            if self._said.get(name) != line:
                self._said[name] = line
                print(line, file=sys.stderr, flush=True)


def _line(name: str, application: "Application") -> str:
    from deploy.cluster import message, replicas  # noqa: PLC0415  # as above

    parts = [
        f"{deployment} {', '.join(f'{count} {state}' for state, count in replicas(found).items()) or 'none'}"
        for deployment, found in application.get("deployments", {}).items()
    ]
    why = "" if application["status"] == "RUNNING" else f": {message(application)}"
    return f"{name}: {application['status']}{why}" + "".join(f"\n  {part}" for part in parts)


def _report(given: argparse.Namespace, found: Mapping[str, "Application"], notes: list[str]) -> None:
    from deploy.cluster import message, replicas  # noqa: PLC0415  # as above

    if not given.json:
        print(*(_line(name, application) for name, application in found.items()), *notes, sep="\n")
        return
    applications = {
        name: {
            "status": application["status"],
            "message": "" if application["status"] == "RUNNING" else message(application),
            "route_prefix": application.get("route_prefix"),
            "deployments": {
                deployment: {
                    "status": of["status"],
                    "target_replicas": of.get("target_num_replicas"),
                    "replicas": replicas(of),
                }
                for deployment, of in application.get("deployments", {}).items()
            },
        }
        for name, application in found.items()
    }
    print(json.dumps({"tiers": applications}))


def _checked(given: argparse.Namespace) -> "tuple[Document, Config, Device]":
    from deploy.device import engine_device  # noqa: PLC0415  # as above
    from deploy.engine import check_engines  # noqa: PLC0415  # as above

    path = configuration.path_of(given)
    if path is None:
        named = f"give --config FILE or create {configuration.DEFAULT} here"
        raise ConfigError([Problem("", f"no configuration: {named}")])
    document = apply_overrides(read_document(path), os.environ)
    config = validate(document)
    device = given.device or engine_device() or "gpu"
    problems = check_engines(config, device)
    if problems:
        raise ConfigError(problems)
    configuration.say_notes(config, device)
    return document, config, device


def _cluster(given: argparse.Namespace) -> "Cluster":
    from deploy.cluster import ADDRESS, Cluster  # noqa: PLC0415  # as above

    return Cluster(given.address or os.environ.get("RAY_DASHBOARD_ADDRESS") or ADDRESS)


def _number(group: "Deployment", key: str) -> int:
    return int(group[key])  # type: ignore[literal-required]  # one of two keys, above


def _part(parts: Any, name: str, what: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = parts.add_parser(
        name, help=what, description=f"{what[0].upper()}{what[1:]}.", epilog=f"example: forebay deploy {name}"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)
    return parser


def _configured(parser: argparse.ArgumentParser) -> None:
    configuration.add_option(parser)
    parser.add_argument(
        "--device",
        choices=("cpu", "gpu"),
        help="what the engines will run on (default: what the installed vLLM was built for, else gpu)",
    )


def _located(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address", metavar="URL", help="Ray's dashboard (default: RAY_DASHBOARD_ADDRESS, else port 8265 here)"
    )


def _timed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout", type=arguments.duration, default=_DEFAULT_TIMEOUT, metavar="D", help="how long to wait (30m)"
    )
