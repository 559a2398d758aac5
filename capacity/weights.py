"""How many weights a model has, and what they weigh by quantization, from its `config.json`.

Counted from the shapes of the matrices; norms and biases (under 0.1 %) are left out. Within 1 % of the published counts
of the families in the tests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capacity.architecture import (
    NONE,
    Architecture,
    Settings,
    kv_heads_by_layer,
    layer_kinds,
    read_architecture,
    text_settings,
)

# Families whose feed-forward part has two matrices instead of three.
_PLAIN = (
    *("gpt2", "gptj", "gpt_neo", "gpt_neox", "gpt_bigcode", "opt", "bloom", "falcon", "mpt", "phi", "codegen"),
    *("starcoder2", "nemotron", "gpt-j", "biogpt", "persimmon"),
)
# Families whose head is the embedding unless they say otherwise.
_TIED = (
    "gpt2",
    "gpt_neo",
    "gpt_bigcode",
    "opt",
    "bloom",
    "falcon",
    "mpt",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "cohere",
    "cohere2",
)
_LEARNED_POSITIONS = ("gpt2", "gpt_neo", "gpt_bigcode", "opt", "biogpt")

# Bits per weight of the matrices; group formats carry a 16-bit scale and a zero point per group of 128.
QUANTIZATIONS: Mapping[str, float] = {
    "fp32": 32,
    "fp16": 16,
    "bf16": 16,
    "fp8": 8,
    "int8": 8,
    "awq": 4 + 20 / 128,
    "gptq": 4 + 20 / 128,
    "int4": 4 + 20 / 128,
    "mxfp4": 4 + 8 / 32,
    "nvfp4": 4 + 8 / 16,
}


@dataclass(frozen=True)
class Weights:
    """Numbers of weights."""

    matrices: int
    """Of the layers; quantization makes these smaller."""
    embeddings: int
    """Embedding and head; they stay in 16 bits."""
    active: int
    """Matrices that one token passes through, the head included: all but the experts that are not chosen."""
    experts: int = 0
    """Part of `matrices` in routed experts."""
    routes: tuple[int, int] = (0, 0)
    """Routed experts of a layer, and how many of them a token passes."""

    @property
    def total(self) -> int:
        """All weights."""
        return self.matrices + self.embeddings

    def size(self, quantization: str = "fp16") -> int:
        """Bytes. Raises ValueError for an unknown quantization."""
        if quantization not in QUANTIZATIONS:
            raise ValueError(f"unknown quantization {quantization!r}; legal: {', '.join(QUANTIZATIONS)}")
        bits = QUANTIZATIONS[quantization]
        return int((self.matrices * bits + self.embeddings * max(16.0, min(bits, 32.0) if bits > 16 else 16.0)) / 8)


def count_weights(document: Settings) -> Weights:
    """The weights in a `config.json`. Raises ValueError where a shape is missing."""
    settings = text_settings(document)
    model = read_architecture(document)
    family = str(settings.get("model_type", ""))
    hidden, vocab = model.hidden, int(settings.get("vocab_size") or 0)
    kinds = layer_kinds(settings)
    kv_heads = kv_heads_by_layer(settings, model.layers, model.heads) if model.heads else [0] * model.layers
    attention = sum(
        _attention(settings, model, count) for kind, count in zip(kinds, kv_heads, strict=True) if kind != NONE
    )
    dense, experts, chosen = _feed_forward(settings, model, family)
    tied = bool(settings.get("tie_word_embeddings", family in _TIED))
    positions = int(model.context or 0) * hidden if family in _LEARNED_POSITIONS else 0
    embeddings = vocab * hidden * (1 if tied else 2) + positions
    active = attention + dense + chosen + vocab * hidden
    routes = (_experts(settings), _chosen(settings)) if experts else (0, 0)
    return Weights(attention + dense + experts, embeddings, active, experts, routes)


def quantization_of(document: Settings) -> str:
    """The quantization that a `config.json` names, else fp16."""
    named = document.get("quantization_config") or text_settings(document).get("quantization_config")
    if not isinstance(named, Mapping):
        return "fp16"
    method = str(named.get("quant_method", "")).lower()
    bits = named.get("bits") or named.get("w_bit")
    if method in QUANTIZATIONS and bits in (None, 4):
        return method
    if "fp8" in method or (method == "compressed-tensors" and "float" in str(named)):
        return "fp8"
    return {4: "int4", 8: "int8"}.get(int(bits or 16), "fp16")


def _attention(settings: Settings, model: Architecture, kv_heads: int) -> int:
    """Matrices of one layer's attention (or of what stands in its place)."""
    hidden, heads = model.hidden, model.heads
    rank = settings.get("kv_lora_rank")
    if rank:
        nope, rope = int(settings.get("qk_nope_head_dim") or 0), int(settings.get("qk_rope_head_dim") or 0)
        value = int(settings.get("v_head_dim") or nope)
        query_rank = settings.get("q_lora_rank")
        query = (hidden + heads * (nope + rope)) * int(query_rank) if query_rank else hidden * heads * (nope + rope)
        return query + hidden * (int(rank) + rope) + int(rank) * heads * (nope + value) + heads * value * hidden
    if not heads:
        # A state-space layer: two inner projections of twice the width and one back.
        return 6 * hidden * hidden
    width = heads * model.head_dim
    return 2 * hidden * width + 2 * hidden * kv_heads * model.head_dim


def _feed_forward(settings: Settings, model: Architecture, family: str) -> tuple[int, int, int]:
    """(weights that every token passes, weights of routed experts, weights of the chosen experts) of all layers."""
    hidden = model.hidden
    matrices = 2 if family in _PLAIN else 3
    inner = _width(settings, hidden, ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff"))
    experts = _experts(settings)
    if not experts:
        return model.layers * matrices * hidden * inner, 0, 0
    expert = _first(settings, ("moe_intermediate_size", "expert_ffn_hidden_size")) or inner
    dense_layers = _dense_layers(settings, model.layers)
    shared = int(settings.get("shared_expert_intermediate_size") or 0)
    # Llama 4 has a shared expert that its configuration does not mention.
    shared += expert * int(settings.get("n_shared_experts") or family.startswith("llama4"))
    sparse_layers = model.layers - dense_layers
    always = dense_layers * matrices * hidden * inner + sparse_layers * (matrices * hidden * shared + hidden * experts)
    one = sparse_layers * matrices * hidden * expert
    return always, one * experts, one * _chosen(settings)


def _experts(settings: Settings) -> int:
    return _first(settings, ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"))


def _chosen(settings: Settings) -> int:
    return _first(settings, ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k")) or 1


def _dense_layers(settings: Settings, layers: int) -> int:
    """Layers of a mixture of experts that have no experts."""
    if settings.get("first_k_dense_replace"):
        return int(settings["first_k_dense_replace"])
    listed = settings.get("mlp_only_layers")
    if isinstance(listed, Sequence) and listed:
        return len(listed)
    step = (
        settings.get("decoder_sparse_step")
        or settings.get("expert_layer_period")
        or settings.get("interleave_moe_layer_step")
    )
    return layers - layers // int(step) if step else 0


def _first(settings: Settings, names: Sequence[str]) -> int:
    value: Any = next((settings[name] for name in names if settings.get(name)), 0)
    # Layers of different widths: the mean gives the same sum.
    return round(sum(value) / len(value)) if isinstance(value, Sequence) else int(value)


def _width(settings: Settings, hidden: int, names: Sequence[str]) -> int:
    return _first(settings, names) or 4 * hidden
