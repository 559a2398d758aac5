"""Engine arguments of a tier, checked by name and type before anything is started.

The names come from `engine_arguments.json`, written from the vLLM release this version is pinned to: the check takes
milliseconds and needs no vLLM. What only the engine can know (whether a model supports a quantization, say) it says
itself when it starts.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import JsonValue

from core.config import Config
from core.errors import Problem
from deploy.engine_arguments import ARGUMENTS
from deploy.groups import check_groups

_SERVED = "Ray Serve answers HTTP for the engine; remove it"
# Arguments that follow from the rest of the document or from how the engine is run.
OWNED: Mapping[str, str] = {
    "model": "set by the tier's source; set tiers.*.source instead",
    "model_weights": "set by the tier's source; set tiers.*.source instead",
    "served_model_name": "set by the tier's model; set tiers.*.model instead",
    "kv_transfer_config": "set by the tier's disaggregation; set tiers.*.disaggregation instead",
    "lora_modules": "set by the tier's adapters; set tiers.*.adapters instead",
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


def check_engines(config: Config) -> list[Problem]:
    """Every fault of the engine arguments of all tiers that are run here; others are their owner's business."""
    problems = check_groups(config)
    for name, tier in config.tiers.items():
        if tier.urls:
            continue
        problems += check_engine(tier.engine, f"tiers.{name}.engine")
        if tier.disaggregation is not None:
            at = f"tiers.{name}.disaggregation"
            problems += check_engine(tier.disaggregation.prefill.engine, f"{at}.prefill.engine")
            problems += check_engine(tier.disaggregation.decode.engine, f"{at}.decode.engine")
    return problems


def _check(name: str, value: JsonValue, path: str) -> list[Problem]:
    if name in OWNED:
        return [Problem(path, f"not set here: {OWNED[name]}")]
    known = _arguments()
    argument = known.get(name)
    if argument is None:
        legal = sorted(set(known) - set(OWNED))
        close = difflib.get_close_matches(name.replace("-", "_"), legal, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "; legal are the arguments of AsyncEngineArgs"
        return [Problem(path, f"unknown engine argument of vLLM {_version()}{hint}")]
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


@cache
def _document() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(ARGUMENTS.read_text(encoding="utf-8"))
    return found


def _version() -> str:
    return str(_document()["vllm"])


@cache
def _arguments() -> Mapping[str, _Argument]:
    return {
        name: _Argument(tuple(kind["types"]), tuple(kind.get("choices", ())))
        for name, kind in _document()["arguments"].items()
    }
