"""What a model keeps per token and per sequence, and how many weights it has, read from a Hugging Face `config.json`.

Every family writes the same facts under other names; the lists below are those names. A value that cannot be known is a
ValueError that says which key is missing, never a guess.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Settings = Mapping[str, Any]

_NESTED = ("text_config", "llm_config", "language_config", "thinker_config", "text_model_config", "decoder")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "model_dim")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads", "attention_heads")
_KV_HEADS = (
    *("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "kv_n_heads"),
    *("num_key_value_heads_per_layer", "num_attention_groups"),
)
_HEAD_DIM = ("head_dim", "kv_channels", "attention_head_size", "head_size", "attention_head_dim", "d_kv")
_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", "n_ctx")
_WINDOW = ("sliding_window", "sliding_window_size", "attention_window_size", "window_size")
# Families with multi-query attention unless they say otherwise.
_MULTI_QUERY = ("gpt_bigcode",)
# Families without attention; the heads of some are those of their state.
_STATES_ONLY = ("mamba", "mamba2", "falcon_mamba")
_NOT_MODELLED = ("rwkv", "xlstm")
# How many layers, one of them global, repeat: families that alternate without saying so in every file.
_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}

FULL, SLIDING, CHUNKED, LINEAR, NONE = "full", "sliding", "chunked", "linear", "none"
_KINDS = {
    **dict.fromkeys(("full_attention", "attention", "global_attention", "global", "full", "hybrid", "*"), FULL),
    **dict.fromkeys(("sliding_attention", "sliding", "local_attention", "local", "sliding_window"), SLIDING),
    "chunked_attention": CHUNKED,
    **dict.fromkeys(("linear_attention", "mamba", "mamba2", "recurrent", "conv", "linear", "M", "kda"), LINEAR),
    **dict.fromkeys(("mlp", "moe", "ffn", "-", "E", "no_op"), NONE),
}


@dataclass(frozen=True)
class CacheLayers:
    """Layers with the same cache: elements per token and layer, at most `window` tokens of them, shared out by head."""

    count: int
    elements: int
    heads: int
    """Tensor parallelism shards over these; ranks beyond that number hold copies."""
    window: int | None = None
    kind: str = FULL
    extra_bytes: int = 0
    """Per token and layer whatever the cache's type is (an index of sparse attention)."""


@dataclass(frozen=True)
class StateLayers:
    """Layers whose state has a fixed size per sequence (state space and linear attention)."""

    count: int
    elements: int


@dataclass(frozen=True)
class Architecture:
    """The facts of a model that memory and step times follow from."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int | None
    cache: tuple[CacheLayers, ...]
    states: tuple[StateLayers, ...] = ()

    @property
    def latent(self) -> bool:
        """Multi-head latent attention: one compressed vector per token instead of keys and values."""
        return any(group.kind == "latent" for group in self.cache)

    @property
    def attention(self) -> str:
        """MHA, GQA, MQA or MLA, with what else the layers are."""
        if not self.cache:
            return "none"
        if self.latent:
            base = "MLA"
        elif self.kv_heads == 1:
            base = "MQA"
        else:
            base = "MHA" if self.kv_heads >= self.heads else "GQA"
        parts = [base]
        parts += sorted({f"{group.kind} {group.window}" for group in self.cache if group.window is not None})
        parts += [f"{sum(group.count for group in self.states)} layers with a state"] if self.states else []
        return ", ".join(parts)


def multi_head(layers: int, hidden: int, kv_heads: int | None = None, head_dim: int | None = None) -> Architecture:
    """An architecture from numbers: keys and values of the hidden size, or of `kv_heads` · `head_dim`."""
    if (kv_heads is None) != (head_dim is None):
        raise ValueError("kv_heads and head_dim belong together")
    width = hidden if kv_heads is None or head_dim is None else kv_heads * head_dim
    group = CacheLayers(layers, 2 * width, kv_heads or hidden)
    heads = max(1, hidden // head_dim) if head_dim else 2
    return Architecture("", layers, hidden, heads, kv_heads or heads, head_dim or hidden // heads, None, (group,))


def read_architecture(document: Settings, name: str = "") -> Architecture:
    """The architecture in a `config.json`. Raises ValueError that names what is missing or not modelled."""
    settings = text_settings(document)
    if settings.get("is_encoder_decoder"):
        raise ValueError("encoder-decoder models are not modelled: their cross-attention keeps a second cache")
    if settings.get("model_type") in _NOT_MODELLED:
        raise ValueError(f"the state of {settings['model_type']} is not modelled")
    kinds = layer_kinds(settings)
    layers, hidden = len(kinds), _whole(settings, _HIDDEN)
    states = _states(settings, kinds, hidden)
    if not any(kind in (FULL, SLIDING, CHUNKED) for kind in kinds):
        return Architecture(name, layers, hidden, 0, 0, 0, _maybe(settings, _CONTEXT), (), states)
    heads = _whole(settings, _HEADS)
    head_dim = _maybe(settings, _HEAD_DIM) or hidden // heads
    kv_heads = kv_heads_by_layer(settings, layers, heads)
    groups: Counter[CacheLayers] = Counter()
    shared = int(settings.get("num_kv_shared_layers") or 0)
    for place, (kind, count) in enumerate(zip(kinds, kv_heads, strict=True)):
        if kind in (FULL, SLIDING, CHUNKED) and count and place < layers - shared:
            groups[_cache_layer(settings, kind, count, head_dim)] += 1
    cache = tuple(replace(group, count=number) for group, number in groups.items())
    most = max(kv_heads)
    context = _maybe(settings, _CONTEXT)
    return Architecture(name, layers, hidden, heads, most, head_dim, context, cache, states)


def text_settings(document: Settings) -> Settings:
    """The language model's part of a configuration, the rest of it as defaults below."""
    for key in _NESTED:
        inner = document.get(key)
        if isinstance(inner, Mapping) and any(name in inner for name in (*_LAYERS, *_HIDDEN, *_NESTED)):
            above = {name: value for name, value in document.items() if name not in _NESTED}
            return text_settings({**above, **inner})
    inner = [part for key in ("attn_config", "ffn_config") if isinstance(part := document.get(key), Mapping)]
    return {key: value for part in (*inner, document) for key, value in part.items()} if inner else document


def layer_kinds(settings: Settings) -> list[str]:
    """What each layer keeps, first to last."""
    for key in ("layer_types", "layers_block_type", "block_configs"):
        named = settings.get(key)
        if isinstance(named, Sequence) and not isinstance(named, str) and named:
            return _named_kinds(settings, named, key)
    if isinstance(settings.get("hybrid_override_pattern"), str):
        return [_kind(sign, "hybrid_override_pattern") for sign in settings["hybrid_override_pattern"]]
    layers = _whole(settings, _LAYERS)
    if settings.get("model_type") in _STATES_ONLY:
        return [LINEAR] * layers
    placed = _placed_kinds(settings, layers)
    if placed is not None:
        return placed
    return _window_kinds(settings, layers)


def _named_kinds(settings: Settings, named: Sequence[Any], key: str) -> list[str]:
    if key == "block_configs":
        parts = [block.get("attention") or {} for block in named]
        return [NONE if part.get("no_op") or part.get("replace_with_linear") else FULL for part in parts]
    kinds = [_kind(str(name), key) for name in named]
    if SLIDING in kinds and _maybe(settings, _WINDOW) is None:
        raise ValueError(f"{key} names sliding layers but there is no sliding_window")
    return kinds


def _placed_kinds(settings: Settings, layers: int) -> list[str] | None:
    """Hybrids that give the places of their attention layers."""
    period = settings.get("attn_layer_period") or settings.get("full_attention_interval")
    if period:
        offset = settings.get("attn_layer_offset", period - 1)
        return [FULL if place % period == offset else LINEAR for place in range(layers)]
    linear = settings.get("linear_attn_config")
    if isinstance(linear, Mapping) and "full_attn_layers" in linear:
        # Counted from 1.
        return [FULL if place + 1 in linear["full_attn_layers"] else LINEAR for place in range(layers)]
    for key in ("attn_layer_indices", "full_attn_idxs"):
        if settings.get(key):
            return [FULL if place in settings[key] else LINEAR for place in range(layers)]
    if isinstance(settings.get("attn_type_list"), Sequence):
        return [FULL if kind else LINEAR for kind in settings["attn_type_list"]]
    if isinstance(settings.get("attention_types"), Sequence):
        pattern = [kind for kinds, times in settings["attention_types"] for kind in kinds * times]
        return [_kind(kind, "attention_types") for kind in pattern]
    blocks = settings.get("block_types") or settings.get("_block_types")
    if blocks:
        names = [_kind(blocks[place % len(blocks)], "block_types") for place in range(layers)]
        return [SLIDING if kind == FULL and _maybe(settings, _WINDOW) else kind for kind in names]
    if not any(settings.get(key) for key in _HEADS) and ("state_size" in settings or "ssm_cfg" in settings):
        return [LINEAR] * layers
    return None


def _window_kinds(settings: Settings, layers: int) -> list[str]:
    """Families that alternate by rule, or have one window for all."""
    if settings.get("attention_chunk_size"):
        rotary = settings.get("no_rope_layers") or []
        every = settings.get("no_rope_layer_interval") or 4
        chunked = rotary or [int((place + 1) % every != 0) for place in range(layers)]
        return [CHUNKED if chunk else FULL for chunk in chunked]
    window = _maybe(settings, _WINDOW)
    if window is None or settings.get("use_sliding_window") is False:
        return [FULL] * layers
    if "max_window_layers" in settings and "use_sliding_window" in settings:
        first = int(settings["max_window_layers"])
        return [SLIDING if place >= first else FULL for place in range(layers)]
    every = settings.get("sliding_window_pattern") or _PATTERNS.get(str(settings.get("model_type")))
    if isinstance(every, str):
        return [SLIDING if every[place % len(every)] == "L" else FULL for place in range(layers)]
    if every:
        return [FULL if (place + 1) % every == 0 else SLIDING for place in range(layers)]
    return [SLIDING] * layers


def kv_heads_by_layer(settings: Settings, layers: int, heads: int) -> list[int]:
    """Key-value heads of each layer."""
    blocks = settings.get("block_configs")
    if isinstance(blocks, Sequence) and blocks:
        parts = [block.get("attention") or {} for block in blocks]
        return [
            int(part.get("num_key_value_heads") or heads // (part.get("n_heads_in_group") or heads)) for part in parts
        ]
    new = settings.get("new_decoder_architecture")
    falcon = "new_decoder_architecture" in settings
    many = settings.get("multi_query", settings.get("model_type") in _MULTI_QUERY)
    if many and not (falcon and new):
        return [1] * layers
    grouped = settings.get("multi_query_attention", True)
    for key in _KV_HEADS:
        value = settings.get(key)
        if value and not (key == "multi_query_group_num" and not grouped) and not (falcon and not new):
            return [int(number) for number in value] if isinstance(value, Sequence) else [int(value)] * layers
    return [heads] * layers


def _cache_layer(settings: Settings, kind: str, kv_heads: int, head_dim: int) -> CacheLayers:
    window = _maybe(settings, _WINDOW) if kind == SLIDING else None
    window = int(settings["attention_chunk_size"]) if kind == CHUNKED else window
    rank = settings.get("kv_lora_rank")
    if rank:
        rope = int(settings.get("qk_rope_head_dim") or 0)
        index = int(settings.get("index_head_dim") or 0)
        # The sparse index keeps a byte per element and a scale of four bytes per 128.
        return CacheLayers(1, int(rank) + rope, 1, window, "latent", index + 4 * -(-index // 128))
    value_dim = int(settings.get("v_head_dim") or head_dim)
    return CacheLayers(1, kv_heads * (head_dim + value_dim), kv_heads, window, kind)


def _states(settings: Settings, kinds: Sequence[str], hidden: int) -> tuple[StateLayers, ...]:
    """Layers with a state of fixed size; every layer of a parallel hybrid has one beside its attention."""
    count = sum(kind == LINEAR for kind in kinds)
    if settings.get("model_type") == "falcon_h1":
        count = len(kinds)
    if not count:
        return ()
    return (StateLayers(count, _state_elements(settings, hidden)),)


def _state_elements(settings: Settings, hidden: int) -> int:
    get = settings.get
    if get("linear_num_value_heads"):
        values = int(settings["linear_num_value_heads"]) * int(settings["linear_value_head_dim"])
        keys = int(settings["linear_num_key_heads"]) * int(settings["linear_key_head_dim"])
        kernel = int(get("linear_conv_kernel_dim") or 4)
        return values * int(settings["linear_key_head_dim"]) + (2 * keys + values) * (kernel - 1)
    if get("conv_L_cache"):
        return hidden * (int(settings["conv_L_cache"]) - 1)
    if get("lru_width"):
        return int(settings["lru_width"]) * int(get("conv1d_width") or 4)
    if "minimax" in str(get("model_type", "")).lower():
        # Lightning attention: a square per head.
        return _whole(settings, _HEADS) * (_maybe(settings, _HEAD_DIM) or hidden // _whole(settings, _HEADS)) ** 2
    size = get("mamba_d_state") or get("ssm_state_size") or get("state_size")
    if not size:
        raise ValueError("state layers without a known state size (mamba_d_state, ssm_state_size, state_size)")
    kernel = int(get("mamba_d_conv") or get("conv_kernel") or get("d_conv") or 4)
    heads = get("mamba_n_heads") or get("mamba_num_heads") or get("n_mamba_heads")
    heads = heads or (get("num_heads") if get("model_type") in _STATES_ONLY else None)
    dim = get("mamba_d_head") or get("mamba_head_dim") or get("mamba_headdim") or (get("head_dim") if heads else None)
    expand = get("mamba_expand") or get("expand") or 2
    inner = int(get("mamba_d_ssm") or (int(heads) * int(dim) if heads and isinstance(dim, int) else expand * hidden))
    groups = int(get("mamba_n_groups") or get("n_groups") or get("mamba_ngroups") or 0) if heads else 0
    return inner * int(size) + (inner + 2 * groups * int(size)) * (kernel - 1)


def _kind(name: str, key: str) -> str:
    if name not in _KINDS:
        raise ValueError(f"{key} has a layer of unknown kind {name!r}")
    return _KINDS[name]


def _maybe(settings: Settings, names: Sequence[str]) -> int | None:
    for name in names:
        value = settings.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _whole(settings: Settings, names: Sequence[str]) -> int:
    value = _maybe(settings, names)
    if value is None:
        raise ValueError(f"the configuration has none of {', '.join(names)}")
    return value
