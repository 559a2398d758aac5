"""KV cache and weights from the configurations that model families publish."""

from typing import Any

import pytest

from capacity.architecture import multi_head, read_architecture
from capacity.memory import (
    Budget,
    Paging,
    allocation,
    cache_tokens,
    fit_memory_fraction,
    kv_bytes_per_request,
    kv_bytes_per_token,
    max_requests,
    multi_head_bytes_per_token,
    state_bytes,
)
from capacity.weights import count_weights, quantization_of

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
# Keys as the families write them; bytes per token at two bytes per element, and published counts of weights.
FAMILIES: dict[str, tuple[dict[str, Any], int, float]] = {
    "llama-3.1-8b": (LLAMA, 131_072, 8.03e9),
    "gpt-j-6b": (
        {"model_type": "gptj", "n_layer": 28, "n_embd": 4096, "n_head": 16, "vocab_size": 50400, "n_positions": 2048},
        458_752,
        6.05e9,
    ),
    "bloom-176b": (
        {"model_type": "bloom", "n_layer": 70, "hidden_size": 14336, "n_head": 112, "vocab_size": 250880},
        4_014_080,
        176.2e9,
    ),
    "opt-13b": (
        {
            "model_type": "opt",
            "num_hidden_layers": 40,
            "hidden_size": 5120,
            "num_attention_heads": 40,
            "ffn_dim": 20480,
            "vocab_size": 50272,
            "max_position_embeddings": 2048,
        },
        819_200,
        12.85e9,
    ),
    "falcon-7b": (
        {
            "model_type": "falcon",
            "num_hidden_layers": 32,
            "hidden_size": 4544,
            "num_attention_heads": 71,
            "num_kv_heads": 71,
            "multi_query": True,
            "new_decoder_architecture": False,
            "vocab_size": 65024,
        },
        8_192,
        6.92e9,
    ),
    "falcon-180b": (
        {
            "model_type": "falcon",
            "num_hidden_layers": 80,
            "hidden_size": 14848,
            "num_attention_heads": 232,
            "num_kv_heads": 8,
            "multi_query": True,
            "new_decoder_architecture": True,
            "vocab_size": 65024,
        },
        163_840,
        179.5e9,
    ),
    "mixtral-8x7b": (
        {**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000, "sliding_window": None},
        131_072,
        46.7e9,
    ),
    "qwen2.5-7b": (
        {
            "model_type": "qwen2",
            "num_hidden_layers": 28,
            "hidden_size": 3584,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "intermediate_size": 18944,
            "vocab_size": 152064,
            "sliding_window": 131072,
            "use_sliding_window": False,
            "max_window_layers": 28,
            "tie_word_embeddings": False,
        },
        57_344,
        7.616e9,
    ),
    "qwen3-32b": (
        {
            "num_hidden_layers": 64,
            "hidden_size": 5120,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 25600,
            "vocab_size": 151936,
        },
        262_144,
        32.76e9,
    ),
    "deepseek-v3": (
        {
            "model_type": "deepseek_v3",
            "num_hidden_layers": 61,
            "hidden_size": 7168,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "kv_lora_rank": 512,
            "q_lora_rank": 1536,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 3,
            "vocab_size": 129280,
        },
        70_272,
        671e9,
    ),
    "chatglm3-6b": (
        {
            "model_type": "chatglm",
            "num_layers": 28,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "kv_channels": 128,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "ffn_hidden_size": 13696,
            "padded_vocab_size": 65024,
            "vocab_size": 65024,
        },
        28_672,
        6.24e9,
    ),
    "starcoder": (
        {
            "model_type": "gpt_bigcode",
            "n_layer": 40,
            "n_embd": 6144,
            "n_head": 48,
            "multi_query": True,
            "n_inner": 24576,
        }
        | {"vocab_size": 49152, "n_positions": 8192},
        20_480,
        15.5e9,
    ),
    "a wrapper around a language model": ({"model_type": "llava", "text_config": LLAMA}, 131_072, 8.03e9),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_cache_and_weights_of_a_family(name: str) -> None:
    settings, per_token, weights = FAMILIES[name]
    assert kv_bytes_per_token(read_architecture(settings)) == per_token
    assert count_weights(settings).total == pytest.approx(weights, rel=0.01)


def test_a_mixture_reads_only_the_experts_that_a_token_chose() -> None:
    settings = FAMILIES["deepseek-v3"][0]
    assert count_weights(settings).active == pytest.approx(37e9, rel=0.03)
    assert count_weights(FAMILIES["mixtral-8x7b"][0]).active == pytest.approx(12.9e9, rel=0.02)


@pytest.mark.parametrize(
    ("settings", "attention"),
    [
        (LLAMA, "GQA"),
        (FAMILIES["falcon-7b"][0], "MQA"),
        (FAMILIES["opt-13b"][0], "MHA"),
        (FAMILIES["deepseek-v3"][0], "MLA"),
        ({**LLAMA, "sliding_window": 4096}, "GQA, sliding 4096"),
    ],
)
def test_the_kind_of_attention_has_a_name(settings: dict[str, Any], attention: str) -> None:
    assert read_architecture(settings).attention == attention


@pytest.mark.parametrize(
    ("extra", "full_layers"),
    [
        ({"sliding_window": 1024}, 0),
        ({"sliding_window": 1024, "use_sliding_window": False, "max_window_layers": 8}, 32),
        ({"sliding_window": 1024, "use_sliding_window": True, "max_window_layers": 8}, 8),
        ({"sliding_window": 1024, "model_type": "gemma2"}, 16),
        ({"sliding_window": 1024, "sliding_window_pattern": 4}, 8),
        ({"sliding_window": 1024, "layer_types": ["sliding_attention", "full_attention"] * 16}, 16),
        ({"attention_chunk_size": 1024}, 8),
    ],
)
def test_windows_forget_and_global_layers_do_not(extra: dict[str, Any], full_layers: int) -> None:
    model = read_architecture(LLAMA | extra)
    layer = 2 * 8 * 128 * 2
    assert kv_bytes_per_request(model, 10_000, Paging()) == layer * (full_layers * 10_000 + (32 - full_layers) * 1024)
    assert kv_bytes_per_request(model, 100, Paging()) == layer * 32 * 100


def test_hybrids_hold_a_state_of_fixed_size() -> None:
    jamba = {**LLAMA, "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16, "mamba_d_conv": 4}
    model = read_architecture(jamba)
    assert kv_bytes_per_token(model) == 4 * 2 * 8 * 128 * 2
    assert state_bytes(model) == 28 * (8192 * 16 + 8192 * 3) * 2
    next_ = LLAMA | {
        "layer_types": ["linear_attention"] * 24 + ["full_attention"] * 8,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }
    assert state_bytes(read_architecture(next_)) == 24 * (32 * 128 * 128 + (2 * 2048 + 4096) * 3) * 2
    shared = read_architecture({**LLAMA, "num_kv_shared_layers": 12})
    assert kv_bytes_per_token(shared) == 20 * 2 * 8 * 128 * 2


def test_families_with_keys_of_their_own() -> None:
    mamba = {"model_type": "mamba2", "num_hidden_layers": 64, "hidden_size": 4096, "state_size": 128}
    found = read_architecture(mamba | {"num_heads": 128, "head_dim": 64, "n_groups": 8, "expand": 2, "conv_kernel": 4})
    assert found.attention == "none"
    assert state_bytes(found) == 64 * (8192 * 128 + (8192 + 2 * 8 * 128) * 3) * 2
    dbrx = {"model_type": "dbrx", "n_layers": 40, "d_model": 6144, "n_heads": 48, "vocab_size": 100352}
    experts = {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}
    dbrx |= {"attn_config": {"kv_n_heads": 8}, "ffn_config": experts}
    assert kv_bytes_per_token(read_architecture(dbrx)) == 2 * 40 * 8 * 128 * 2
    assert count_weights(dbrx).total == pytest.approx(132e9, rel=0.01)
    assert count_weights(dbrx).active == pytest.approx(36e9, rel=0.03)
    griffin = {**LLAMA, "block_types": ["recurrent", "recurrent", "attention"], "lru_width": 2560}
    griffin |= {"attention_window_size": 2048}
    assert read_architecture(griffin).attention == "GQA, sliding 2048, 22 layers with a state"
    with pytest.raises(ValueError, match="rwkv"):
        read_architecture(LLAMA | {"model_type": "rwkv"})


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"hidden_size": 64}, "num_hidden_layers"),
        ({**LLAMA, "layer_types": ["telepathy"] * 32}, "telepathy"),
        ({**LLAMA, "is_encoder_decoder": True}, "encoder-decoder"),
        ({"num_hidden_layers": 4, "num_attention_heads": 4}, "hidden_size"),
    ],
)
def test_what_cannot_be_known_is_an_error(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        read_architecture(settings)


def test_the_texts_formula_is_right_for_multi_head_attention_only() -> None:
    gpt3 = multi_head(96, 12288)
    assert kv_bytes_per_token(gpt3) == multi_head_bytes_per_token(gpt3) == 4_718_592
    assert gpt3.attention == "MHA"
    llama = read_architecture(LLAMA)
    assert multi_head_bytes_per_token(llama) == 4 * kv_bytes_per_token(llama)
    assert kv_bytes_per_token(multi_head(96, 12288, 8, 128)) == 96 * 2 * 8 * 128 * 2


def test_requests_that_fit_in_gigabytes_and_gibibytes() -> None:
    request = kv_bytes_per_request(multi_head(96, 12288), 2048, Paging())
    assert request == 9_663_676_416
    assert max_requests(Budget(640 * 10**9, 350 * 10**9), request) == 30
    assert max_requests(Budget(640 * 10**9, 350 * 10**9, 0.9), request) == 23
    assert max_requests(Budget(640 * 2**30, 350 * 10**9), request) == 34
    assert max_requests(Budget(300 * 10**9, 350 * 10**9), request) == 0


def test_blocks_round_up_and_ranks_beyond_the_heads_hold_copies() -> None:
    model = read_architecture(LLAMA)
    assert kv_bytes_per_request(model, 17, Paging(block=16)) == 32 * 131_072
    assert kv_bytes_per_token(model, tensor_parallel=8) == 131_072
    assert kv_bytes_per_token(model, tensor_parallel=16) == 2 * 131_072
    latent = read_architecture(FAMILIES["deepseek-v3"][0])
    assert kv_bytes_per_token(latent, tensor_parallel=8) == 8 * 70_272
    assert kv_bytes_per_token(model, element_bytes=1) == 65_536
    budget = Budget(10**9, 0)
    assert cache_tokens(budget, model, Paging(block=16)) == 10**9 // (131_072 * 16) * 16


def test_a_memory_fraction_explains_measured_caches() -> None:
    model = read_architecture(FAMILIES["opt-13b"][0])
    weights, memory = 25_700_000_000, [80 * 2**30, 160 * 2**30]
    tokens = [int((total * 0.93 - weights) / 819_200) for total in memory]
    assert fit_memory_fraction(model, memory, weights, tokens, Paging()) == pytest.approx(0.93, rel=1e-4)


def test_contiguous_allocation_wastes_what_blocks_do_not() -> None:
    found = allocation(512, 2048, 16)
    assert (found.contiguous_used, found.waste_tokens) == (0.25, 7.5)
    assert found.paged_used == pytest.approx(512 / 519.5)


def test_weights_by_quantization() -> None:
    counted = count_weights(LLAMA)
    assert counted.size() == 2 * counted.total
    assert counted.size("fp8") == counted.matrices + 2 * counted.embeddings
    assert counted.size("awq") == pytest.approx(counted.matrices * (4 + 20 / 128) / 8 + 2 * counted.embeddings)
    with pytest.raises(ValueError, match="legal"):
        counted.size("fp7")
    named = {"quantization_config": {"quant_method": "awq", "bits": 4}}
    assert quantization_of(LLAMA | named) == "awq"
    assert quantization_of(LLAMA | {"quantization_config": {"quant_method": "gptq", "bits": 8}}) == "int8"
    assert quantization_of(LLAMA | {"quantization_config": {"quant_method": "fp8"}}) == "fp8"
    assert quantization_of(LLAMA) == "fp16"
