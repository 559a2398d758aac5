"""Engine arguments that are right one by one and wrong together are refused with the place and the legal values."""

import json
from pathlib import Path
from typing import Any

import pytest

from core.config import validate
from deploy.combinations import check_combinations
from deploy.device import Device
from deploy.engine import check_engine, check_engines
from deploy.groups import gpus

AT = "tiers.small.engine"
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}


def faults(engine: dict[str, Any], device: Device = "gpu") -> dict[str, str]:
    assert check_engine(engine, AT) == []
    return {problem.path.removeprefix(f"{AT}."): problem.message for problem in check_combinations(engine, AT, device)}


@pytest.mark.parametrize(
    ("device", "engine"),
    [
        ("gpu", {"quantization": "fp8", "kv_cache_dtype": "fp8", "dtype": "bfloat16"}),
        ("gpu", {"quantization": "awq", "dtype": "half"}),
        ("cpu", {"quantization": "awq", "dtype": "bfloat16"}),
        ("cpu", {"quantization": "gptq", "dtype": "float16"}),
        ("cpu", {"quantization": "int8_per_channel_weight_only", "dtype": "auto"}),
        ("gpu", {"max_num_batched_tokens": 2048, "max_model_len": 32768}),
        ("gpu", {"max_num_batched_tokens": 2048, "max_model_len": 2048, "enable_chunked_prefill": False}),
        ("gpu", {"enable_chunked_prefill": False, "max_model_len": 8192}),
        ("gpu", {"max_model_len": -1, "max_num_seqs": 256}),
        ("gpu", {"speculative_config": NGRAM}),
        ("cpu", {"speculative_config": {**NGRAM, "prompt_lookup_min": 2, "prompt_lookup_max": 4}}),
        ("gpu", {"speculative_config": {"method": "eagle3", "model": "some/head", "num_speculative_tokens": 3}}),
        ("gpu", {"speculative_config": {"model": "some/draft", "num_speculative_tokens": 3}}),
        ("gpu", {"speculative_config": {"method": "mtp"}}),
        ("gpu", {"spec_method": "ngram", "spec_tokens": 2}),
        ("gpu", {"tensor_parallel_size": 8, "pipeline_parallel_size": 2, "decode_context_parallel_size": 4}),
        ("gpu", {"attention_backend": "flash_attn"}),
        ("cpu", {"attention_backend": "CPU_ATTN", "block_size": 32}),
        ("gpu", {"attention_backend": "auto", "gpu_memory_utilization": 1}),
    ],
)
def test_what_works_together_passes(device: Device, engine: dict[str, Any]) -> None:
    assert faults(engine, device) == {}


@pytest.mark.parametrize(
    ("device", "engine", "at", "said"),
    [
        ("cpu", {"quantization": "fp8"}, "quantization", "needs a GPU; legal on a CPU: auto_awq"),
        ("cpu", {"quantization": "awq_marlin"}, "quantization", "needs a GPU"),
        ("cpu", {"quantization": "modelopt_fp4"}, "quantization", "needs a GPU"),
        ("gpu", {"quantization": "fp9"}, "quantization", "did you mean 'fp8'? legal: auto_awq"),
        ("gpu", {"quantization": "awq", "dtype": "float32"}, "dtype", "legal with it: auto, bfloat16, float16"),
        ("gpu", {"quantization": "fp8", "dtype": "float"}, "dtype", "float does not go with quantization fp8"),
        ("gpu", {"quantization": "mxfp4", "dtype": "half"}, "dtype", "legal with it: auto, bfloat16"),
        ("cpu", {"kv_cache_dtype": "nvfp4"}, "kv_cache_dtype", "legal there: auto, fp8"),
        ("gpu", {"block_size": 20}, "block_size", "legal: 16, 32, 64"),
        ("gpu", {"gpu_memory_utilization": 90.0}, "gpu_memory_utilization", "legal: above 0 to 1"),
        ("gpu", {"max_num_seqs": 0}, "max_num_seqs", "legal: 1 and more"),
        ("gpu", {"kv_cache_memory_bytes": -1}, "kv_cache_memory_bytes", "legal: 1 and more"),
        ("gpu", {"max_num_batched_tokens": 64, "max_num_seqs": 128}, "max_num_batched_tokens", "legal: from 128"),
        (
            "gpu",
            {"max_num_batched_tokens": 1024, "max_model_len": 2048, "enable_chunked_prefill": False},
            "max_num_batched_tokens",
            "legal: from 2048",
        ),
        (
            "gpu",
            {"long_prefill_token_threshold": 4096, "max_model_len": 2048},
            "long_prefill_token_threshold",
            "legal: 0 to 2048",
        ),
        ("gpu", {"attention_backend": "FLASH_ATN"}, "attention_backend", "did you mean 'FLASH_ATTN'?"),
        ("cpu", {"attention_backend": "FLASHINFER"}, "attention_backend", "legal there: auto, AMX_MLA, CPU_ATTN"),
        ("gpu", {"attention_backend": "CPU_ATTN"}, "attention_backend", "does not run on a GPU"),
        (
            "gpu",
            {"attention_backend": "FLASH_ATTN", "attention_config": {"backend": "FLASHINFER"}},
            "attention_backend",
            "one of the two",
        ),
        ("gpu", {"data_parallel_size": 2}, "data_parallel_size", "the only legal value is 1: set replicas"),
        ("gpu", {"tensor_parallel_size": 0}, "tensor_parallel_size", "legal: 1 and more"),
        (
            "gpu",
            {"tensor_parallel_size": 8, "decode_context_parallel_size": 3},
            "decode_context_parallel_size",
            "legal: 1, 2, 4, 8",
        ),
        ("gpu", {"enable_eplb": True}, "enable_eplb", "enable_expert_parallel: true"),
    ],
)
def test_what_cannot_work_together_is_refused(device: Device, engine: dict[str, Any], at: str, said: str) -> None:
    found = faults(engine, device)
    assert list(found) == [at]
    assert said in found[at]


@pytest.mark.parametrize(
    ("config", "at", "said"),
    [
        ({}, "", "is empty; legal: null"),
        ({"method": "ngram"}, ".num_speculative_tokens", "missing; legal: 1 and more"),
        ({"method": "ngram", "num_speculative_tokens": 0}, ".num_speculative_tokens", "0 is not legal"),
        ({"method": "ngram", "num_speculative_tokens": "3"}, ".num_speculative_tokens", "'3' is not legal"),
        ({"num_speculative_tokens": 3}, ".method", "missing, and there is no model to tell it; legal: ngram"),
        ({"method": "ngramm", "num_speculative_tokens": 3}, ".method", "did you mean 'ngram'?"),
        ({"method": "eagle", "num_speculative_tokens": 3}, ".model", "missing; eagle drafts with a model"),
        ({"method": "draft_model", "model": "a/b"}, ".num_speculative_tokens", "missing"),
        ({**NGRAM, "num_spec_tokens": 1}, ".num_spec_tokens", "unknown key; did you mean 'num_speculative_tokens'?"),
        ({**NGRAM, "prompt_lookup_min": 4, "prompt_lookup_max": 2}, ".prompt_lookup_min", "legal: 1 to 2"),
        ({**NGRAM, "prompt_lookup_max": 0}, ".prompt_lookup_max", "legal: 1 and more"),
        ({**NGRAM, "tensor_parallel_size": 1}, ".tensor_parallel_size", "set draft_tensor_parallel_size instead"),
        ({**NGRAM, "draft_tensor_parallel_size": 2}, ".draft_tensor_parallel_size", "legal: 1 or 4"),
        (
            {"method": "eagle", "model": "a/b", "num_speculative_tokens": 3, "prompt_lookup_max": 3},
            ".prompt_lookup_max",
            "has no effect with method eagle",
        ),
    ],
)
def test_speculation_that_cannot_work_is_refused(config: dict[str, Any], at: str, said: str) -> None:
    found = faults({"speculative_config": config, "tensor_parallel_size": 4})
    assert list(found) == [f"speculative_config{at}"]
    assert said in found[f"speculative_config{at}"]


def test_the_same_setting_of_speculation_in_two_places_is_refused() -> None:
    assert list(faults({"speculative_config": NGRAM, "spec_tokens": 4})) == ["spec_tokens"]


def test_the_ngram_method_of_gpus_is_refused_on_a_cpu() -> None:
    engine = {"speculative_config": {**NGRAM, "method": "ngram_gpu"}}
    assert faults(engine, "gpu") == {}
    assert list(faults(engine, "cpu")) == ["speculative_config.method"]


@pytest.mark.parametrize(
    ("engine", "number"), [({}, 1), ({"tensor_parallel_size": 8, "pipeline_parallel_size": 2}, 16)]
)
def test_an_engine_spans_tensor_times_pipeline(engine: dict[str, Any], number: int) -> None:
    assert gpus(engine) == number


def document(**tier: Any) -> dict[str, Any]:
    return {"tiers": {"small": {"model": "m", **tier}}}


def problems(device: Device = "gpu", **tier: Any) -> dict[str, str]:
    return {problem.path: problem.message for problem in check_engines(validate(document(**tier)), device)}


def test_a_combination_with_a_default_of_the_device_is_seen() -> None:
    assert list(problems("cpu", engine={"max_num_batched_tokens": 4})) == ["tiers.small.engine.max_num_batched_tokens"]
    assert problems("gpu", engine={"max_num_batched_tokens": 4}) == {}


def adapter(folder: Path, rank: int) -> str:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank}))
    return str(folder)


def test_adapters_of_a_rank_that_the_engine_takes_pass(tmp_path: Path) -> None:
    adapters = {"a": adapter(tmp_path / "a", 16), "b": adapter(tmp_path / "b", 64), "hub": "owner/name"}
    assert problems(adapters=adapters, engine={"max_lora_rank": 64, "max_loras": 2, "max_cpu_loras": 4}) == {}
    # On the machines of a cluster, not on this one.
    assert problems(adapters={"far": "/models/adapters/far"}) == {}


@pytest.mark.parametrize(
    ("rank", "engine", "said"),
    [
        (17, {}, "16 is below the rank of a (17); legal: 32, 64, 128, 256, 320, 512"),
        (320, {"max_lora_rank": 64}, "64 is below the rank of a (320); legal: 320, 512"),
        (1024, {"max_lora_rank": 512}, "vLLM takes no rank as high"),
    ],
)
def test_an_adapter_above_the_rank_is_refused_with_the_ranks_that_do(
    tmp_path: Path, rank: int, engine: dict[str, Any], said: str
) -> None:
    found = problems(adapters={"a": adapter(tmp_path / "a", rank)}, engine=engine)
    assert list(found) == ["tiers.small.engine.max_lora_rank"]
    assert said in found["tiers.small.engine.max_lora_rank"]


def test_a_folder_that_is_no_adapter_is_named(tmp_path: Path) -> None:
    for name, text in (("none", None), ("list", "[]"), ("broken", "{")):
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / "adapter_config.json").write_text(text)
        assert list(problems(adapters={"x": str(tmp_path / name)})) == ["tiers.small.adapters.x"]


@pytest.mark.parametrize("source", ["folder", "./a/b", "a/b/c", ""])
def test_what_is_neither_folder_nor_hub_id_is_refused(source: str) -> None:
    assert "absolute path, or a hub id" in problems(adapters={"x": source})["tiers.small.adapters.x"]


def test_limits_of_adapters_without_adapters_would_do_nothing() -> None:
    assert problems(engine={"max_loras": 2}) == {
        "tiers.small.engine.max_loras": "has no effect: tiers.small.adapters is empty"
    }


def test_fewer_adapters_kept_than_used_at_once_are_refused() -> None:
    found = problems(adapters={"a": "o/a"}, engine={"max_loras": 4, "max_cpu_loras": 2})
    assert found == {"tiers.small.engine.max_cpu_loras": "2 is below max_loras; legal: null, or 4 and more"}


def test_speculation_with_adapters_needs_room_for_every_draft() -> None:
    engine = {"speculative_config": NGRAM, "max_num_seqs": 100, "max_num_batched_tokens": 300}
    assert problems(engine=engine) == {}
    assert list(problems(engine=engine, adapters={"a": "o/a"})) == ["tiers.small.engine.max_num_batched_tokens"]
