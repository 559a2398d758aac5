"""Rows of model and cache-size tables as the planner's own input: used by `bench.capacity_closed_forms`."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from capacity.architecture import read_architecture
from capacity.memory import Paging, fit_memory_fraction, kv_bytes_per_token

Row = Mapping[str, str]
GPU_BYTES = 80 * 2**30
"""An A100 of 80 GB holds 80 GiB."""


def configuration(row: Row) -> dict[str, Any]:
    """A row of an architecture table as the `config.json` that states the same."""
    found: dict[str, Any] = {
        "num_hidden_layers": int(row["layers"]),
        "hidden_size": int(row["hidden"]),
        "num_attention_heads": int(row["q_heads"]),
        "vocab_size": int(row["vocab"]),
        "max_position_embeddings": int(row["max_ctx"]),
    }
    latent = re.search(r"MLA kv_lora (\d+) \+ rope (\d+)", row["attn"])
    window = re.search(r"SWA(\d+)", row["attn"])
    if latent:
        return found | {"kv_lora_rank": int(latent[1]), "qk_rope_head_dim": int(latent[2])}
    if window:
        found["sliding_window"] = int(window[1])
    return found | {"num_key_value_heads": int(row["kv_heads"]), "head_dim": int(row["head_dim"])}


def kv_bytes(rows: Sequence[Row]) -> Iterator[tuple[str, int, int]]:
    """(model, bytes per token in the table, bytes per token of the planner)."""
    for row in rows:
        found = kv_bytes_per_token(read_architecture(configuration(row)))
        yield row["model"], int(row["kv_bytes_per_token_fp16"]), found


def cache_sizes(rows: Sequence[Row], architectures: Sequence[Row]) -> Iterator[tuple[str, int, float]]:
    """(parallelism, cached tokens measured, cached tokens planned) with one memory fraction fitted per model."""
    known = {row["model"]: row for row in architectures}
    models: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        models[row["model"].split("/")[-1]].append(row)
    for name, found in models.items():
        model = read_architecture(configuration(known[name]))
        weights = int(float(known[name]["params"]) * 2)
        gpus = [int(row["tp"]) * int(row["pp"]) for row in found]
        tokens = [int(row["max_num_tokens"]) for row in found]
        memory = [count * GPU_BYTES for count in gpus]
        fraction = fit_memory_fraction(model, memory, weights, tokens, Paging())
        for row, total, count in zip(found, memory, tokens, strict=True):
            planned = (total * fraction - weights) / kv_bytes_per_token(model)
            yield f"{name} tp {row['tp']} pp {row['pp']}, fraction {fraction:.3f}", count, planned
