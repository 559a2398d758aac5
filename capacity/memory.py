"""Memory of one replica: KV cache per token and request, how many requests fit, and what allocation wastes.

Sizes are bytes. GB is 10⁹ and GiB 2³⁰: an "80 GB" card holds 80 GiB on NVIDIA's A100 and H100, which is 7 % more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from capacity.architecture import Architecture, CacheLayers


@dataclass(frozen=True)
class Paging:
    """How the cache is kept: bytes per element, tokens per block (1: no blocks), ranks of tensor parallelism."""

    element_bytes: float = 2
    block: int = 1
    tensor_parallel: int = 1


def kv_bytes_per_token(model: Architecture, element_bytes: float = 2, tensor_parallel: int = 1) -> int:
    """Bytes that one more token adds over all ranks, while it is inside every window.

    2 · layers · kv_heads · head_dim · bytes for keys and values; layers · (rank + rope) · bytes for latent attention.
    Ranks beyond the number of key-value heads hold copies.
    """
    return math.ceil(sum(group.count * _token(group, element_bytes, tensor_parallel) for group in model.cache))


def multi_head_bytes_per_token(model: Architecture, element_bytes: float = 2) -> int:
    """The formula of the texts, 2 · layers · hidden · bytes: right for multi-head attention only."""
    return math.ceil(2 * model.layers * model.hidden * element_bytes)


def kv_bytes_per_request(model: Architecture, tokens: int, paging: Paging) -> int:
    """Bytes that a sequence of `tokens` holds: whole blocks, windows that forget, and states of fixed size."""
    total = 0.0
    for group in model.cache:
        kept = tokens if group.window is None else min(tokens, group.window)
        blocks = math.ceil(kept / paging.block)
        # A window rarely begins where a block does, so a full one touches a block more.
        if group.window is not None and tokens > group.window and paging.block > 1:
            blocks += 1
        total += group.count * blocks * paging.block * _token(group, paging.element_bytes, paging.tensor_parallel)
    return math.ceil(total + state_bytes(model, paging.element_bytes))


def state_bytes(model: Architecture, element_bytes: float = 2) -> float:
    """Bytes of states of fixed size, per sequence."""
    return sum(group.count * group.elements * element_bytes for group in model.states)


def _token(group: CacheLayers, element_bytes: float, tensor_parallel: int) -> float:
    copies = max(1.0, tensor_parallel / group.heads)
    return (group.elements * element_bytes + group.extra_bytes) * copies


@dataclass(frozen=True)
class Budget:
    """What is in the memory of one replica (all its GPUs together)."""

    memory: int
    weights: int
    fraction: float = 1.0
    """The part of the memory that the engine may use."""
    activations: int = 0
    """Working memory of a pass, and what else the engine holds beside weights and cache."""

    @property
    def cache(self) -> int:
        """Bytes left for the KV cache; below 0 where the weights do not fit."""
        return math.floor(self.memory * self.fraction) - self.weights - self.activations


def max_requests(budget: Budget, request_bytes: int) -> int:
    """How many requests of this size fit at one time; 0 where the weights do not fit."""
    return max(0, budget.cache // request_bytes)


def cache_tokens(budget: Budget, model: Architecture, paging: Paging) -> int:
    """Tokens that fit into the cache, in whole blocks."""
    token = kv_bytes_per_token(model, paging.element_bytes, paging.tensor_parallel)
    return max(0, int(budget.cache // (token * paging.block))) * paging.block


def fit_memory_fraction(
    model: Architecture, memory: Sequence[int], weights: int, tokens: Sequence[int], paging: Paging
) -> float:
    """The fraction that explains measured cache sizes: least relative squares over replicas of different memory."""
    token = kv_bytes_per_token(model, paging.element_bytes, paging.tensor_parallel)
    rows = [
        (total / (count * token), (count * token + weights) / (count * token))
        for total, count in zip(memory, tokens, strict=True)
    ]
    return sum(a * b for a, b in rows) / sum(a * a for a, _ in rows)


@dataclass(frozen=True)
class Allocation:
    """Contiguous allocation of the longest length against blocks, for sequences of a mean length."""

    contiguous_used: float
    """Share of reserved memory that holds tokens."""
    paged_used: float
    waste_tokens: float
    """Per sequence in the last block, on average: (block - 1) / 2."""


def allocation(mean_tokens: float, reserved_tokens: int, block: int) -> Allocation:
    """How much of the reserved memory is used. Lengths are taken as uniform within a block."""
    waste = (block - 1) / 2
    return Allocation(min(1.0, mean_tokens / reserved_tokens), mean_tokens / (mean_tokens + waste), waste)
