"""The tiers as a configuration of Ray Serve (`serveConfigV2`), and what becomes of it on the cluster.

An application's arguments hold only what its engines depend on: Serve starts the replicas of an application anew when
its arguments change, and no threshold, key or price should do that.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

from pydantic import JsonValue

from core.config import Config, validate
from core.config.load import Document
from core.errors import ConfigError, Problem
from deploy.device import Device
from deploy.groups import groups
from deploy.tiers import llm_arguments

IMPORT_PATH = "deploy.app:build"
PORT = 8000
# Longer than clients keep a connection for reuse: the proxy must not be the one that closes it.
KEEP_ALIVE = 300

_ENGINE_KEYS = ("model", "source", "adapters", "engine", "replicas", "disaggregation")


class Deployment(TypedDict):
    """One replica group as it will run: GPUs of one engine and of all replicas, and the arguments of its LLMConfig."""

    tier: str
    group: str
    gpus_per_engine: int
    gpus_min: int
    gpus_max: int
    llm_config: dict[str, Any]


def serve_config(document: Document) -> dict[str, Any]:
    """The document of Serve's declarative API, as KubeRay's `serveConfigV2` and `serve deploy` take it.

    Raises ConfigError where no tier is to be run here.
    """
    config = validate(document)
    own = [name for name, tier in config.tiers.items() if not tier.urls]
    if not own:
        raise ConfigError([Problem("tiers", "every tier has urls: there is nothing to deploy")])
    tiers = document["tiers"]
    assert isinstance(tiers, dict)  # noqa: S101  # the document is valid
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": "0.0.0.0", "port": PORT, "keep_alive_timeout_s": KEEP_ALIVE},  # noqa: S104  # in a cluster
        "applications": [
            {
                "name": name,
                "route_prefix": f"/{name}",
                "import_path": IMPORT_PATH,
                "args": {"tier": name, "config": {"tiers": {name: _engine_part(tiers[name])}}},
            }
            for name in own
        ],
    }


def deployments(config: Config, device: Device) -> list[Deployment]:
    """Every replica group of the tiers that are run here."""
    found: list[Deployment] = []
    for name, tier in config.tiers.items():
        if tier.urls:
            continue
        for group in groups(tier):
            spans = group.gpus if device == "gpu" else 0
            found.append(
                {
                    "tier": name,
                    "group": group.role,
                    "gpus_per_engine": spans,
                    "gpus_min": spans * group.replicas.min,
                    "gpus_max": spans * group.replicas.max,
                    "llm_config": llm_arguments(tier, group, device),
                }
            )
    return found


def _engine_part(tier: JsonValue) -> dict[str, JsonValue]:
    assert isinstance(tier, Mapping)  # noqa: S101  # the document is valid
    kept = {key: tier[key] for key in _ENGINE_KEYS if key in tier}
    # How long a replica may take to end, and how long a request waits for a slot where it is decoded.
    needed = ("total", "first_token") if tier.get("disaggregation") else ("total",)
    given = tier.get("timeout")
    timeout = {key: given[key] for key in needed if key in given} if isinstance(given, Mapping) else {}
    return {**kept, "timeout": timeout} if timeout else kept
