"""Engine arguments of a tier, checked by name, type and combination before anything is started.

The names come from `engine_arguments.json`, written from the vLLM release this version is pinned to: the check takes
milliseconds and needs no vLLM. What only the engine can know (whether a model supports a quantization, say) it says
itself when it starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import JsonValue

from core.config import Config
from core.errors import Problem
from deploy.adapters import check_adapters
from deploy.combinations import Engine, check_combinations
from deploy.device import Device
from deploy.engine_arguments import document, nearest
from deploy.groups import groups
from deploy.handover import check_sides
from deploy.tiers import engine_arguments

_SERVED = "Ray Serve answers HTTP for the engine; remove it"
# Arguments that follow from the rest of the document or from how the engine is run.
OWNED: Mapping[str, str] = {
    "model": "set by the tier's source; set tiers.*.source instead",
    "model_weights": "set by the tier's source; set tiers.*.source instead",
    "served_model_name": "set by the tier's model; set tiers.*.model instead",
    "kv_transfer_config": "set by the tier's disaggregation; set tiers.*.disaggregation instead",
    "lora_modules": "set by the tier's adapters; set tiers.*.adapters instead",
    "enable_lora": "on where the tier has adapters; set tiers.*.adapters instead",
    "distributed_executor_backend": "set by Ray Serve; remove it",
    "disable_log_stats": "engine metrics are always on; remove it",
    "hf_token": "a secret; set the environment variable HF_TOKEN instead",
    "api_key": "a secret, and engines are reached through the gateway only; remove it",
} | dict.fromkeys(
    (
        *("host", "port", "uds", "root_path", "middleware", "uvicorn_log_level", "log_config_file"),
        *("disable_uvicorn_access_log", "disable_access_log_for_endpoints", "disable_fastapi_docs"),
        *("allow_credentials", "allowed_origins", "allowed_methods", "allowed_headers"),
        *("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "enable_ssl_refresh", "ssl_cert_reqs", "ssl_ciphers"),
        *("h11_max_incomplete_event_size", "h11_max_header_count", "enable_offline_docs"),
    ),
    _SERVED,
)

_TYPES: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "list": (list, tuple),
    "dict": (dict,),
    "null": (type(None),),
}


@dataclass(frozen=True)
class _Argument:
    """What an engine argument takes: JSON types, and the legal values where there are few."""

    types: tuple[str, ...]
    choices: tuple[Any, ...]


def check_engine(engine: Mapping[str, JsonValue], path: str) -> list[Problem]:
    """Every fault of a tier's engine arguments. `path` is their place in the document, such as `tiers.small.engine`."""
    return [problem for name, value in engine.items() for problem in _check(name, value, f"{path}.{name}")]


def check_engines(config: Config, device: Device) -> list[Problem]:
    """Every fault of the engines of all tiers that are run here; others are their owner's business.

    Arguments one by one, then together with the defaults of `device`, then adapters.
    """
    problems = []
    for name, tier in config.tiers.items():
        if tier.urls:
            continue
        at, engine = f"tiers.{name}", engine_arguments(tier, device)
        found = _check_together(tier.engine, engine, f"{at}.engine", device)
        # Faults of the tier's own arguments would only be repeated for its groups.
        if tier.disaggregation is not None and not found:
            own = {"prefill": tier.disaggregation.prefill.engine, "decode": tier.disaggregation.decode.engine}
            for group in groups(tier):
                whole, place = engine_arguments(tier, device, group), f"{at}.disaggregation.{group.role}.engine"
                found += _check_together(own[group.role], whole, place, device)
        problems += [*found, *check_sides(tier, at), *check_adapters(tier.adapters, engine, at)]
    return problems


def _check_together(given: Mapping[str, JsonValue], whole: Engine, path: str, device: Device) -> list[Problem]:
    return check_engine(given, path) or check_combinations(whole, path, device)


def _check(name: str, value: JsonValue, path: str) -> list[Problem]:
    if name in OWNED:
        return [Problem(path, f"not set here: {OWNED[name]}")]
    known = _arguments()
    argument = known.get(name)
    if argument is None:
        legal = sorted(set(known) - set(OWNED))
        hint = nearest(name.replace("-", "_"), legal).strip() or "legal are the arguments of AsyncEngineArgs"
        return [Problem(path, f"unknown engine argument of vLLM {_version()}; {hint}")]
    if "any" in argument.types:
        return []
    if argument.choices and value is not None:
        if value in argument.choices:
            return []
        return [Problem(path, f"{value!r} is not legal; legal: {', '.join(map(str, argument.choices))}")]
    if not any(_is(value, kind) for kind in argument.types):
        legal_types = " or ".join(kind for kind in argument.types if kind != "null")
        return [Problem(path, f"must be of type {legal_types} (given: {value!r})")]
    return []


def _is(value: JsonValue, kind: str) -> bool:
    # True is an int to Python, not to a configuration.
    return isinstance(value, _TYPES[kind]) and (kind == "bool" or not isinstance(value, bool))


def _version() -> str:
    return str(document()["vllm"])


@cache
def _arguments() -> Mapping[str, _Argument]:
    return {
        name: _Argument(tuple(kind["types"]), tuple(kind.get("choices", ())))
        for name, kind in document()["arguments"].items()
    }
