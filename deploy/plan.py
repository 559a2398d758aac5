"""What `forebay up` is about to do, checked as far as it can be before anything is started."""

import errno
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from core.config import Config, Tier, validate
from core.config.load import Document, apply_overrides, read_document
from core.errors import ConfigError, ForebayError
from deploy.device import Device, available_memory, engine_device, gpu_count, nixl_installed
from deploy.engine import check_engines
from deploy.groups import Group, groups
from deploy.local import free_port
from deploy.profiles import profile
from deploy.tiers import engine_arguments, is_packaged
from deploy.weights import PACKAGED_BYTES

_GIB = 1024**3
# Measured with `forebay up` on 2 cores, as proportional set sizes: Ray with Serve and the gateway, and one engine on
# the CPU without its weights and KV cache.
_MEMORY_BASE = int(1.8 * _GIB)
_MEMORY_ENGINE = int(1.8 * _GIB)


class CannotStart(ForebayError):
    """Something on this machine is in the way; one line says what, and what to do."""


@dataclass(frozen=True)
class Machine:
    """What this machine has: what its vLLM was built for (None: not installed), NVIDIA GPUs, free memory in bytes, and
    whether engines can hand over KV blocks.
    """

    engine: Device | None
    gpus: int
    memory: int
    nixl: bool = True

    @classmethod
    def here(cls) -> "Machine":
        """This one, as it is."""
        return cls(engine_device(), gpu_count(), available_memory(), nixl_installed())

    @property
    def device(self) -> Device:
        """What engines run on."""
        return "gpu" if self.engine == "gpu" and self.gpus else "cpu"


@dataclass(frozen=True)
class Plan:
    """A valid configuration, and the document it was read from, overrides applied."""

    config: Config
    document: Document

    @property
    def own(self) -> dict[str, Tier]:
        """The tiers that `up` runs itself."""
        return {name: tier for name, tier in self.config.tiers.items() if not tier.urls}

    def with_gateway_port(self, port: int) -> "Plan":
        """The same with that port."""
        document = apply_overrides(self.document, {"FOREBAY__GATEWAY__PORT": str(port)})
        return Plan(validate(document), document)

    def gateway_document(self, urls: Mapping[str, str]) -> Document:
        """What the gateway is configured with: the tiers that run here have their addresses."""
        tiers = self.document["tiers"]
        assert isinstance(tiers, dict)  # noqa: S101  # the document is valid
        filled: dict[str, JsonValue] = {}
        for name, tier in tiers.items():
            here = isinstance(tier, dict) and name in urls
            filled[name] = {**tier, "urls": [urls[name]]} if here and isinstance(tier, dict) else tier
        return {**self.document, "tiers": filled}


def plan(path: Path | None, device: Device, environ: Mapping[str, str] = os.environ) -> Plan:
    """The plan for a configuration file, or for the device's profile where none is given.

    Raises ConfigError for a wrong configuration.
    """
    document = apply_overrides(profile(device) if path is None else read_document(path), environ)
    config = validate(document)
    problems = check_engines(config, device)
    if problems:
        raise ConfigError(problems)
    return Plan(config, _absolute(document))


def refuse_what_cannot_run(plan: Plan, machine: Machine) -> None:
    """Raise CannotStart for what would only be found after minutes: a taken port, no engine or NIXL, little memory."""
    _check_port(plan.config)
    if not plan.own:
        return
    if machine.engine is None:
        tiers = " and ".join(plan.own)
        raise CannotStart(
            f"vLLM is not installed, so tier {tiers} cannot run here: install forebay[cpu] or forebay[gpu], "
            "or give the tiers' urls"
        )
    _check_adapters(plan)
    _check_handing_over(plan, machine)
    if machine.engine == "gpu":
        _check_gpus(plan, machine.gpus)
    else:
        _check_memory(plan, machine.memory)


def resolve_port(plan: Plan) -> Plan:
    """The plan with a free port where port 0 asks for one."""
    return plan if plan.config.gateway.port else plan.with_gateway_port(free_port())


def gateway_url(config: Config) -> str:
    """Where the gateway answers on this machine, without `/v1`."""
    host = config.gateway.host
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # what is listened on, not by us
    return f"http://{f'[{host}]' if ':' in host else host}:{config.gateway.port}"


def _check_port(config: Config) -> None:
    host, port = config.gateway.host, config.gateway.port
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CannotStart(
                f"gateway.port: {host}:{port} is in use; stop what listens there or set FOREBAY__GATEWAY__PORT"
            ) from None
        raise CannotStart(f"gateway.host: cannot listen on {host}:{port}: {error.strerror or error}") from None


def _check_adapters(plan: Plan) -> None:
    for name, tier in plan.own.items():
        for adapter, source in tier.adapters.items():
            if Path(source).is_absolute() and not Path(source).is_dir():
                raise CannotStart(f"tiers.{name}.adapters.{adapter}: there is no folder {source}")


def _check_handing_over(plan: Plan, machine: Machine) -> None:
    apart = [name for name, tier in plan.own.items() if tier.disaggregation is not None]
    if apart and not machine.nixl:
        raise CannotStart(
            f"tiers.{apart[0]}.disaggregation: NIXL is not installed, so no KV blocks can be handed over: install nixl "
            "(forebay[cpu] and forebay[gpu] bring it), or remove disaggregation"
        )


def _check_gpus(plan: Plan, there: int) -> None:
    wanted = sum(group.replicas.min * group.gpus for tier in plan.own.values() for group in groups(tier))
    if there < wanted:
        raise CannotStart(
            f"the tiers need {wanted} NVIDIA GPUs and this machine has {there}: lower tensor_parallel_size or "
            "replicas.min, give a tier's urls, or install the CPU build of vLLM (forebay[cpu])"
        )


def _check_memory(plan: Plan, there: int) -> None:
    needed = _MEMORY_BASE + sum(
        group.replicas.min * _engine_memory(tier, group) for tier in plan.own.values() for group in groups(tier)
    )
    if there < needed:
        raise CannotStart(
            f"not enough memory: about {needed / _GIB:.1f} GiB are needed and {there / _GIB:.1f} GiB are available; "
            "stop something, or configure one tier only"
        )


def _engine_memory(tier: Tier, group: Group) -> int:
    arguments = engine_arguments(tier, "cpu", group)
    source = Path(tier.source or tier.model)
    weights = PACKAGED_BYTES if is_packaged(tier) else sum(file.stat().st_size for file in source.glob("*.safetensors"))
    # Weights are stored in 16 bits, as a rule.
    factor = 2 if arguments.get("dtype") in ("float32", "float") else 1
    cache = arguments.get("kv_cache_memory_bytes")
    return _MEMORY_ENGINE + factor * weights + (cache if isinstance(cache, int) else 0)


def _absolute(document: Document) -> Document:
    """The document with folders of weights and adapters as absolute paths: replicas have a working directory of their
    own.
    """
    tiers = document.get("tiers")
    if not isinstance(tiers, dict):
        return document
    found: dict[str, JsonValue] = {}
    for name, tier in tiers.items():
        filled = dict(tier) if isinstance(tier, dict) else {}
        if "source" in filled:
            filled["source"] = _folder(filled["source"])
        adapters = filled.get("adapters")
        if isinstance(adapters, dict):
            filled["adapters"] = {adapter: _folder(path) for adapter, path in adapters.items()}
        found[name] = filled if isinstance(tier, dict) else tier
    return {**document, "tiers": found}


def _folder(source: JsonValue) -> JsonValue:
    return str(Path(source).resolve()) if isinstance(source, str) and Path(source).is_dir() else source
