"""What engines run on here: NVIDIA GPUs or the CPU, found without importing torch, and the CPU's engine defaults."""

import importlib.metadata
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import psutil
from pydantic import JsonValue

Device = Literal["cpu", "gpu"]

_GPUS = Path("/proc/driver/nvidia/gpus")
_CPUINFO = Path("/proc/cpuinfo")
_CGROUP = Path("/sys/fs/cgroup")


def gpu_count(gpus: Path = _GPUS) -> int:
    """NVIDIA GPUs on this machine, as its driver lists them."""
    try:
        return sum(1 for _ in gpus.iterdir())
    except OSError:
        return 0


def engine_device() -> Device | None:
    """What the installed vLLM was built for; None where it is not installed. Its CPU builds say so in the version."""
    try:
        return "cpu" if "cpu" in importlib.metadata.version("vllm") else "gpu"
    except importlib.metadata.PackageNotFoundError:
        return None


def nixl_installed() -> bool:
    """Whether engines here can hand over KV blocks: vLLM's connector needs NIXL, which vLLM itself does not demand."""
    return any(importlib.util.find_spec(name) is not None for name in ("nixl", "nixl_rocm"))


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_engine(cpuinfo: Path = _CPUINFO) -> dict[str, JsonValue]:
    """Engine arguments for a machine without a GPU, beneath whatever a tier's `engine` says.

    Two engines and the gateway share the cores and the memory, so the KV cache and the batch are small. Compilation
    costs minutes at every start and gains little here: `enforce_eager`.
    """
    return {
        "enforce_eager": True,
        "dtype": _dtype(cpuinfo),
        "max_model_len": 2048,
        "max_num_seqs": 8,
        "block_size": 32,
        "kv_cache_memory_bytes": 256 * 1024**2,
    }


def cpu_environment() -> Mapping[str, str]:
    """Environment of an engine on the CPU.

    Each of two tiers gets half of the cores: with more threads than cores, each parallel step waits for a thread that
    is not running (on 2 cores a second thread per engine made a busy machine several times slower).
    """
    return {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(max(1, cores() // 2))}


def _dtype(cpuinfo: Path) -> str:
    # Without instructions for bfloat16 it is emulated: prompts took 5 times as long as in float32 (AVX2 only).
    try:
        flags = cpuinfo.read_text(encoding="utf-8")
    except OSError:
        flags = ""
    return "bfloat16" if "avx512_bf16" in flags or "amx_bf16" in flags else "float32"


def available_memory(cgroup: Path = _CGROUP) -> int:
    """Bytes that can still be used: the machine's, or what this container's limit leaves where that is less."""
    available = psutil.virtual_memory().available
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return available
    return available if limit == "max" else min(available, max(0, int(limit) - used))
