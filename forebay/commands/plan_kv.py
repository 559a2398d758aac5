"""`forebay plan kv`: bytes of KV cache per token and request, and how many requests fit."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import ConfigError, Problem
from forebay import arguments

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from capacity.architecture import Architecture

EXAMPLE = "forebay plan kv --config config.json --seq-len 4096 --gpu-memory 80GiB --memory-fraction 0.9"
DTYPES = {"auto": 2.0, "bfloat16": 2.0, "float16": 2.0, "float32": 4.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}


def add(parts: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the part."""
    parser = parts.add_parser(
        "kv",
        help="KV cache per token and request, and how many requests fit",
        description="From a Hugging Face config.json (MHA, GQA, MQA, MLA, windows, hybrids) or from numbers. GB are "
        "powers of 1,000, GiB of 1,024; memory and weights are those of all GPUs of one replica.",
        epilog=f"example: {EXAMPLE}",
    )
    parser.add_argument("--config", type=Path, metavar="F", help="the model's config.json")
    parser.add_argument("--layers", type=arguments.count, metavar="N", help="instead of --config")
    parser.add_argument("--hidden", type=arguments.count, metavar="N", help="hidden size, instead of --config")
    parser.add_argument("--kv-heads", type=arguments.count, metavar="N", help="key-value heads (default: all heads)")
    parser.add_argument("--head-dim", type=arguments.count, metavar="N", help="size of a head, with --kv-heads")
    parser.add_argument("--seq-len", type=arguments.count, required=True, metavar="N", help="tokens of a request")
    parser.add_argument(
        "--dtype-bytes", type=arguments.positive, metavar="N", help="bytes per cache element (default 2)"
    )
    parser.add_argument("--cache-dtype", choices=tuple(DTYPES), help="instead of --dtype-bytes")
    parser.add_argument("--gpu-memory", type=arguments.size, metavar="SIZE", help="of all GPUs of a replica, 640GB")
    parser.add_argument("--weights", type=arguments.size, metavar="SIZE", help="default: counted from --config")
    parser.add_argument(
        "--quantization", metavar="Q", help="of the counted weights: fp16, fp8, int8, awq, gptq, mxfp4 …"
    )
    parser.add_argument(
        "--activations", type=arguments.size, default=0, metavar="SIZE", help="working memory, default 0"
    )
    parser.add_argument("--memory-fraction", type=arguments.share, default=1.0, metavar="F", help="default 1.0")
    parser.add_argument(
        "--block-size", type=arguments.count, metavar="N", help="tokens per block; whole blocks are held"
    )
    parser.add_argument("--tensor-parallel", type=arguments.count, default=1, metavar="N", help="ranks, default 1")
    parser.add_argument(
        "--max-model-len", type=arguments.count, metavar="N", help="what contiguous allocation reserves"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the sizes; 1 where not one request fits."""
    try:
        document = _document(options)
    except ValueError as error:
        raise ConfigError([Problem("", str(error))]) from None
    print(json.dumps(document) if options.json else _text(document))
    for warning in document["warnings"]:
        print(f"forebay: {warning}", file=sys.stderr)
    return 1 if document["max_requests"] == 0 else 0


def _document(options: argparse.Namespace) -> dict[str, Any]:
    from capacity import memory  # noqa: PLC0415  # keeps `--help` quick

    model, weights = _model(options)
    element = options.dtype_bytes or DTYPES[options.cache_dtype or "auto"]
    paging = memory.Paging(element, options.block_size or 1, options.tensor_parallel)
    per_token = memory.kv_bytes_per_token(model, element, options.tensor_parallel)
    per_request = memory.kv_bytes_per_request(model, options.seq_len, paging)
    texts = memory.multi_head_bytes_per_token(model, element)
    document: dict[str, Any] = {
        "bytes_per_token": per_token,
        "bytes_per_request": per_request,
        "max_requests": None,
        "bytes_per_request_gb": per_request / 1e9,
        "bytes_per_request_gib": per_request / 2**30,
        "state_bytes": memory.state_bytes(model, element),
        "attention": model.attention,
        "layers": model.layers,
        "multi_head_bytes_per_token": texts,
        "warnings": _warnings(model, per_token, texts, options),
    }
    if options.block_size:
        document["waste_tokens"] = (options.block_size - 1) / 2
    if options.max_model_len:
        used = memory.allocation(options.seq_len, options.max_model_len, options.block_size or 1)
        document |= {"contiguous_used": used.contiguous_used, "paged_used": used.paged_used}
    if options.gpu_memory is not None:
        if weights is None:
            raise ValueError("--weights is missing: --config counts them, numbers do not")
        budget = memory.Budget(options.gpu_memory, weights, options.memory_fraction, options.activations)
        document |= {
            "weights_bytes": weights,
            "cache_bytes": budget.cache,
            "cache_tokens": memory.cache_tokens(budget, model, paging) if per_token else None,
            "max_requests": memory.max_requests(budget, per_request),
        }
        if options.max_model_len:
            longest = memory.kv_bytes_per_request(model, options.max_model_len, paging)
            document["max_requests_contiguous"] = memory.max_requests(budget, longest)
    return document


def _model(options: argparse.Namespace) -> "tuple[Architecture, int | None]":
    from capacity.architecture import multi_head, read_architecture  # noqa: PLC0415  # keeps `--help` quick
    from capacity.weights import count_weights, quantization_of  # noqa: PLC0415  # as above

    if options.config is not None:
        settings = read_settings(options.config)
        weights = options.weights
        if weights is None and options.gpu_memory is not None:
            weights = count_weights(settings).size(options.quantization or quantization_of(settings))
        return read_architecture(settings, options.config.name), weights
    if options.layers is None or options.hidden is None:
        raise ValueError("give --config F, or --layers N and --hidden N")
    return multi_head(options.layers, options.hidden, options.kv_heads, options.head_dim), options.weights


def read_settings(path: Path) -> dict[str, Any]:
    """The mapping in a config.json. Raises ConfigError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError([Problem("config", f"{path} cannot be read: {error}")]) from None
    if not isinstance(found, dict):
        raise ConfigError([Problem("config", f"{path} is not a model's config.json")])
    return found


def _warnings(model: "Architecture", per_token: int, texts: int, options: argparse.Namespace) -> list[str]:
    found = []
    if per_token and abs(texts / per_token - 1) > 0.01:
        found.append(
            f"2 · layers · hidden · bytes would give {texts:,} bytes per token, {texts / per_token:.1f} times what "
            f"{model.attention} keeps: that formula is for multi-head attention"
        )
    if model.cache and options.tensor_parallel > max(group.heads for group in model.cache):
        found.append(f"{options.tensor_parallel} ranks share fewer cached heads: each rank beyond them holds a copy")
    if model.context is not None and options.seq_len > model.context:
        found.append(f"{options.seq_len} tokens are more than the model's context of {model.context}")
    return found


def _text(document: dict[str, Any]) -> str:
    gb, gib = document["bytes_per_request_gb"], document["bytes_per_request_gib"]
    lines = [
        ("attention", f"{document['attention']}, {document['layers']} layers"),
        ("per token", f"{document['bytes_per_token']:,} B"),
        ("per request", f"{document['bytes_per_request']:,} B = {gb:.3f} GB = {gib:.3f} GiB"),
    ]
    if document.get("weights_bytes") is not None:
        lines += [
            ("weights", f"{document['weights_bytes'] / 1e9:.1f} GB"),
            ("cache", f"{document['cache_bytes'] / 1e9:.1f} GB, {document['cache_tokens'] or 0:,} tokens"),
            ("requests", str(document["max_requests"])),
        ]
    return "\n".join(f"{name:<12}{value}" for name, value in lines)
