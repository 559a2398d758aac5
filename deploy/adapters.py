"""LoRA adapters of a tier: what vLLM is told about them, and what can be known of them beforehand.

Each adapter is loaded when the engine starts, and served under its name beside the model. Where its folder is on this
machine, its rank is read; an adapter on a hub is looked at by the engine only.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from core.errors import Problem
from deploy.engine_arguments import document

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_FILE = "adapter_config.json"
# vllm/config/lora.py, where the engine's arguments do not say otherwise.
_MAX_RANK = 16


def check_adapters(adapters: Mapping[str, str], engine: Mapping[str, JsonValue], path: str) -> list[Problem]:
    """Every fault of a tier's adapters with its engine's arguments. `path` is the tier's place in the document."""
    problems = [
        problem
        for name, source in adapters.items()
        for problem in _check(f"{path}.adapters.{name}", source, engine, f"{path}.engine.max_lora_rank")
    ]
    at_once, kept = engine.get("max_loras", 1), engine.get("max_cpu_loras")
    if isinstance(at_once, int) and isinstance(kept, int) and kept < at_once:
        problems.append(
            Problem(f"{path}.engine.max_cpu_loras", f"{kept} is below max_loras; legal: null, or {at_once} and more")
        )
    if not adapters:
        idle = sorted(name for name in ("max_loras", "max_lora_rank", "max_cpu_loras") if engine.get(name) is not None)
        problems += [Problem(f"{path}.engine.{name}", f"has no effect: {path}.adapters is empty") for name in idle]
    return problems


def _check(path: str, source: str, engine: Mapping[str, JsonValue], rank_path: str) -> list[Problem]:
    folder = Path(source)
    if not source or not folder.is_dir():
        # An absolute path may be one of the machines that the engine will run on.
        if folder.is_absolute() or _HUB_ID.fullmatch(source):
            return []
        return [Problem(path, f"{source!r} is no folder here; legal: an absolute path, or a hub id (owner/name)")]
    try:
        described = json.loads((folder / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return [Problem(path, f"{source} has no readable {_FILE}: it is no adapter in PEFT's format")]
    rank = described.get("r") if isinstance(described, dict) else None
    if not isinstance(rank, int):
        return [Problem(path, f"{source}: {_FILE} gives no rank (r)")]
    allowed = engine.get("max_lora_rank", _MAX_RANK)
    if isinstance(allowed, int) and rank > allowed:
        legal = [size for size in document()["arguments"]["max_lora_rank"]["choices"] if size >= rank]
        least = f"legal: {', '.join(map(str, legal))}" if legal else "vLLM takes no rank as high"
        return [Problem(rank_path, f"{allowed} is below the rank of {path.rpartition('.')[2]} ({rank}); {least}")]
    return []
