"""Writes `engine_arguments.json`: the arguments of the installed vLLM, for `deploy.engine` and `deploy.combinations`.

    python -m deploy.engine_arguments            # write it
    python -m deploy.engine_arguments --check    # exit 1 where it differs from the installed vLLM

Reading them from vLLM itself takes ten seconds and an installed engine, which `forebay check` must not need.
"""

import dataclasses
import difflib
import importlib.metadata
import inspect
import json
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

ARGUMENTS = Path(__file__).with_name("engine_arguments.json")

_NAMES = {bool: "bool", int: "int", float: "float", str: "str"}


@cache
def document() -> Mapping[str, Any]:
    """The file, as `installed` describes it."""
    found: Mapping[str, Any] = json.loads(ARGUMENTS.read_text(encoding="utf-8"))
    return found


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean …? ` where something known is alike, else nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]!r}? " if close else ""


def installed() -> dict[str, Any]:
    """`{"vllm": version, "arguments": {name: {"types": […], "choices": […]}}, …}` of the installed vLLM.

    `types` are JSON's (bool, int, float, str, list, dict, null); "any" where vLLM's own type says nothing more. Beside
    the arguments: `attention_backends`, `quantizations` (each with the types of activations it computes in),
    `speculative` (the keys of `speculative_config`, described like arguments) and `cpu_kv_cache_dtypes`.
    """
    # Heavy, and absent where only the gateway is installed.
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415
    from vllm.entrypoints.launchers.cli_args import FrontendArgs  # noqa: PLC0415

    fields = [field for args in (AsyncEngineArgs, FrontendArgs) for field in dataclasses.fields(args)]
    arguments = {field.name: describe(field.type) for field in fields if not field.name.startswith("_")}
    for field in fields:
        if field.name in arguments and field.default is None:
            arguments[field.name]["types"] = sorted({*arguments[field.name]["types"], "null"})
    version = importlib.metadata.version("vllm").partition("+")[0]
    return {"vllm": version, "arguments": dict(sorted(arguments.items())), **_choices()}


def _choices() -> dict[str, Any]:
    # Heavy, as above.
    from vllm.config import SpeculativeConfig  # noqa: PLC0415
    from vllm.model_executor.layers.quantization import (  # noqa: PLC0415
        QUANTIZATION_METHODS,
        get_quantization_config,
    )
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend  # noqa: PLC0415
    from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: PLC0415

    quantizations = {}
    for name in sorted(QUANTIZATION_METHODS):
        quantization = get_quantization_config(name)
        # Not in every class a class method.
        supported = quantization.get_supported_act_dtypes
        dtypes = supported() if inspect.ismethod(supported) else supported(quantization)
        quantizations[name] = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)
    hidden = {"target_model_config", "target_parallel_config", "draft_model_config", "draft_parallel_config"}
    speculative = {
        field.name: describe(field.type) for field in dataclasses.fields(SpeculativeConfig) if field.name not in hidden
    }
    return {
        "attention_backends": sorted(backend.name for backend in AttentionBackendEnum),
        "cpu_kv_cache_dtypes": sorted(CPUAttentionBackend.supported_kv_cache_dtypes),
        "quantizations": quantizations,
        "speculative": dict(sorted(speculative.items())),
    }


def describe(annotation: object) -> dict[str, list[Any]]:
    """What JSON may hold for a Python annotation: kinds of value, and the legal ones where it is an enumeration."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return describe(inner[0])
    if origin is typing.Literal:
        return {"types": sorted({_NAMES.get(type(choice), "any") for choice in inner}), "choices": list(inner)}
    if origin in (typing.Union, types.UnionType):
        parts = [describe(part) for part in inner]
        kinds = sorted({kind for part in parts for kind in part["types"]})
        # A choice is only binding where nothing else of its kind is accepted.
        open_kinds = {kind for part in parts if "choices" not in part for kind in part["types"]}
        choices = [choice for part in parts for choice in part.get("choices", ())]
        closed = choices and not {_NAMES.get(type(choice), "any") for choice in choices} & open_kinds
        return {"types": kinds, "choices": choices} if closed else {"types": kinds}
    return {"types": [_kind(origin or annotation)]}


def render(found: dict[str, Any]) -> str:
    """The file's text: one argument per line, so that a new release of vLLM reads well as a difference."""
    parts = []
    for key, value in found.items():
        if isinstance(value, dict):
            lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(kind)}" for name, kind in value.items())
            parts.append(f" {json.dumps(key)}: {{\n{lines}\n }}")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _kind(annotation: object) -> str:
    if annotation is type(None):
        return "null"
    if annotation in (list, set, tuple):
        return "list"
    if annotation is dict or dataclasses.is_dataclass(annotation):
        return "dict"
    return _NAMES.get(typing.cast("type", annotation), "any")


def main() -> int:
    """Write the file, or compare it with what is installed."""
    text = render(installed())
    if sys.argv[1:] == ["--check"]:
        return 0 if ARGUMENTS.read_text(encoding="utf-8") == text else 1
    ARGUMENTS.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
