"""Combinations of engine arguments that cannot work, found before an engine has loaded for ten minutes.

`deploy.engine` looks at one argument at a time; this looks at them together, with the defaults of the device beneath.
Each rule is one that vLLM enforces when it starts, named in the rule's docstring by module, or one of how Forebay runs
engines. The tests hold the rules against the installed vLLM's own classes wherever those need no device.
What depends on a checkpoint (whether it has an n_predict, say) is left to the engine.
"""

import re
from collections.abc import Callable, Iterator, Mapping

from pydantic import JsonValue

from core.errors import Problem
from deploy.device import Device
from deploy.engine_arguments import document, nearest
from deploy.speculation import speculation

Engine = Mapping[str, JsonValue]
# Key of an argument and what is wrong with it.
Fault = tuple[str, str]

# Quantizations without a kernel on the CPU (vllm/model_executor/kernels/linear). fp8 has one for some checkpoints, and
# still ends an engine on the CPU when it loads.
_GPU_ONLY = re.compile(r"fp8|fp_quant|modelopt|nvfp4|humming|marlin")
_CPU_BACKENDS = ("CPU_ATTN", "CPU_MLA", "AMX_MLA")
_DTYPES = {"half": "float16", "float": "float32"}


def check_combinations(engine: Engine, path: str, device: Device) -> list[Problem]:
    """Every combination in `engine` that cannot work on `device`.

    `engine`: arguments that are right one by one, device defaults included. `path`: their place in the document.
    """
    return [Problem(f"{path}.{name}", message) for rule in _RULES for name, message in rule(engine, device)]


def _scheduling(engine: Engine, _: Device) -> Iterator[Fault]:
    """Continuous batching and chunked prefill: vllm/config/scheduler.py, SchedulerConfig.verify_max_model_len."""
    sequences, tokens, context = (
        _count(engine, name) for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
    )
    if tokens and sequences and tokens < sequences:
        yield (
            "max_num_batched_tokens",
            f"{tokens} is below max_num_seqs ({sequences}): a step decodes one token of each; legal: from {sequences}",
        )
    elif tokens and context and engine.get("enable_chunked_prefill") is False and tokens < context:
        yield (
            "max_num_batched_tokens",
            f"{tokens} is below max_model_len, and without chunked prefill a prompt is one step; legal: from {context}",
        )
    threshold = _count(engine, "long_prefill_token_threshold")
    if threshold and context and threshold > context:
        yield "long_prefill_token_threshold", f"{threshold} is above max_model_len; legal: 0 to {context}"


def _cache(engine: Engine, device: Device) -> Iterator[Fault]:
    """Paged KV: kernels take blocks of 16 (vllm/v1/attention/backends), types of the cache depend on the device."""
    block = _count(engine, "block_size")
    if block and block % 16:
        yield "block_size", f"{block} is not a multiple of 16, which attention kernels need; legal: 16, 32, 64, …"
    kind, legal = engine.get("kv_cache_dtype"), document()["cpu_kv_cache_dtypes"]
    if device == "cpu" and kind is not None and kind not in legal:
        yield "kv_cache_dtype", f"{kind!r} does not work on a CPU; legal there: {', '.join(legal)}"
    share = engine.get("gpu_memory_utilization")
    if isinstance(share, int | float) and not 0 < share <= 1:
        yield "gpu_memory_utilization", f"{share} is no share of the memory; legal: above 0 to 1"


def _counts(engine: Engine, _: Device) -> Iterator[Fault]:
    """Numbers that count something: vLLM's configuration classes have them at 1 and more."""
    for name in (
        *("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "kv_cache_memory_bytes"),
        *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "max_loras"),
    ):
        value = engine.get(name)
        # -1 lets vLLM find the longest context that fits.
        if isinstance(value, int) and value < 1 and not (name == "max_model_len" and value == -1):
            yield name, f"{value} is not legal; legal: 1 and more"


def _quantization(engine: Engine, device: Device) -> Iterator[Fault]:
    """Method, device and type of activations: vllm/model_executor/layers/quantization, get_supported_act_dtypes."""
    method = engine.get("quantization")
    if not isinstance(method, str):
        return
    known = document()["quantizations"]
    if method not in known:
        yield "quantization", f"{method!r} is not legal; {nearest(method, known)}legal: {', '.join(known)}"
        return
    if device == "cpu" and _GPU_ONLY.search(method):
        usable = [name for name in known if not _GPU_ONLY.search(name)]
        yield "quantization", f"{method} needs a GPU; legal on a CPU: {', '.join(usable)}"
        return
    dtype = engine.get("dtype", "auto")
    computed = _DTYPES.get(str(dtype), dtype)
    if known[method] and computed != "auto" and computed not in known[method]:
        yield (
            "dtype",
            f"{dtype} does not go with quantization {method}; legal with it: auto, {', '.join(known[method])}",
        )


def _attention(engine: Engine, device: Device) -> Iterator[Fault]:
    """Attention backend: vllm/v1/attention/backends/registry.py; the CPU takes its own whatever is asked for."""
    backend, known = engine.get("attention_backend"), document()["attention_backends"]
    if not isinstance(backend, str) or backend.lower() == "auto":
        return
    if backend.upper() not in known:
        legal = f"auto, {', '.join(known)}"
        yield "attention_backend", f"{backend!r} is not legal; {nearest(backend.upper(), known)}legal: {legal}"
    elif (backend.upper() in _CPU_BACKENDS) != (device == "cpu"):
        legal = ", ".join(name for name in known if (name in _CPU_BACKENDS) == (device == "cpu"))
        yield "attention_backend", f"{backend} does not run on a {device.upper()}; legal there: auto, {legal}"
    config = engine.get("attention_config")
    if isinstance(config, dict) and config.get("backend") is not None:
        yield "attention_backend", "is given in attention_config.backend too; legal: one of the two"


def _parallel(engine: Engine, _: Device) -> Iterator[Fault]:
    """Parallelism: vllm/config/parallel.py for context parallelism; data parallelism is replicas of a tier."""
    if engine.get("data_parallel_size", 1) not in (1, 0):
        yield (
            "data_parallel_size",
            "engines of a tier run apart, behind one address; the only legal value is 1: set replicas.min and max",
        )
    tensor, context = engine.get("tensor_parallel_size", 1), engine.get("decode_context_parallel_size", 1)
    if isinstance(tensor, int) and isinstance(context, int) and context > 0 and tensor % context:
        legal = ", ".join(str(size) for size in range(1, tensor + 1) if tensor % size == 0)
        yield "decode_context_parallel_size", f"{context} does not divide tensor_parallel_size; legal: {legal}"
    if engine.get("enable_eplb") is True and engine.get("enable_expert_parallel") is not True:
        yield "enable_eplb", "balances experts between devices; legal with enable_expert_parallel: true"


def _count(engine: Engine, name: str) -> int:
    """A number of things; 0 where vLLM chooses."""
    value = engine.get(name)
    return value if isinstance(value, int) and value > 0 else 0


_RULES: tuple[Callable[[Engine, Device], Iterator[Fault]], ...] = (
    _counts,
    _scheduling,
    _cache,
    _quantization,
    _attention,
    _parallel,
    speculation,
)
