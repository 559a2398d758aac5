"""What Ray Serve is told about a tier."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from core.config.records import Disaggregation, Replicas, Tier
from core.config.records import Group as GroupSettings
from core.errors import ConfigError
from deploy.app import build
from deploy.groups import groups
from deploy.pinning import VARIABLE, bundle
from deploy.tiers import deployment, engine_arguments, environment, llm_arguments, on_disk


def test_on_a_cpu_the_engine_has_defaults_and_the_tier_wins() -> None:
    tier = Tier(model="m", engine={"max_num_seqs": 3, "dtype": "bfloat16"})
    arguments = engine_arguments(tier, "cpu")
    assert arguments["max_num_seqs"] == 3
    assert arguments["dtype"] == "bfloat16"
    assert arguments["enforce_eager"] is True
    assert arguments["kv_cache_memory_bytes"] > 0


def test_on_a_gpu_the_engine_gets_what_the_tier_says() -> None:
    assert engine_arguments(Tier(model="m", engine={"max_num_seqs": 3}), "gpu") == {"max_num_seqs": 3}


def test_a_fixed_number_of_replicas_is_not_autoscaled() -> None:
    options = deployment(Tier(model="m", replicas=Replicas(min=2, max=2)))
    assert options["num_replicas"] == 2
    assert "autoscaling_config" not in options


def test_a_range_of_replicas_is_autoscaled_at_the_target() -> None:
    options = deployment(Tier(model="m", replicas=Replicas(min=0, max=3, target_ongoing_requests=7)))
    assert options["autoscaling_config"] == {
        "min_replicas": 0,
        "max_replicas": 3,
        "target_ongoing_requests": 7,
        "downscale_delay_s": 120.0,
    }
    assert "num_replicas" not in options


@pytest.mark.parametrize(
    "replicas", [{"min": 1, "max": 3, "policy": "no colon"}, {"max": 1, "policy": "module:function"}]
)
def test_a_policy_that_is_none_or_has_nothing_to_decide_is_refused(replicas: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="policy"):
        Replicas(**replicas)


def test_a_replica_may_finish_the_longest_answer_before_it_ends_and_its_replacement_comes_first() -> None:
    options = deployment(Tier(model="m"))
    assert (options["graceful_shutdown_timeout_s"], options["max_surge_percent"]) == (600, 1)


def test_adapters_turn_lora_on_and_are_named_to_the_engine() -> None:
    tier = Tier(model="m", adapters={"legal": "owner/legal"}, engine={"max_loras": 2})
    engine = llm_arguments(tier, groups(tier)[0], "gpu")["engine_kwargs"]
    assert engine == {
        "enable_lora": True,
        "max_loras": 2,
        "lora_modules": [{"name": "legal", "path": "owner/legal"}],
    }


@pytest.mark.parametrize(
    ("engine", "gpus", "strategy"),
    [
        ({}, 1, "STRICT_PACK"),
        ({"tensor_parallel_size": 8}, 8, "STRICT_PACK"),
        ({"tensor_parallel_size": 8, "pipeline_parallel_size": 2}, 16, "PACK"),
        ({"tensor_parallel_size": 16}, 16, "PACK"),
    ],
)
def test_an_engine_has_a_bundle_per_gpu_on_one_node_where_it_fits(
    engine: dict[str, Any], gpus: int, strategy: str
) -> None:
    tier = Tier(model="m", engine=engine)
    placed = llm_arguments(tier, groups(tier)[0], "gpu")["placement_group_config"]
    assert placed == {"bundles": [{"GPU": 1}] * gpus, "strategy": strategy}


def test_on_a_cluster_with_a_group_of_machines_for_each_group_bundles_ask_for_theirs() -> None:
    tier = Tier(model="Qwen/Qwen3-4B", engine={"tensor_parallel_size": 2})
    (group,) = groups(tier)
    assert bundle(tier, group, {VARIABLE: "1"}) == {"GPU": 1, "forebay-engine-Qwen-Qwen3-4B": 1}
    assert bundle(tier, group, {}) == bundle(tier, group, {VARIABLE: "0"}) == {"GPU": 1}


def test_several_replicas_keep_a_session_on_one_of_them_until_it_is_full() -> None:
    def options(most: int, **engine: Any) -> dict[str, Any]:
        tier = Tier(model="m", replicas=Replicas(min=1, max=most), engine=engine)
        found: dict[str, Any] = llm_arguments(tier, groups(tier)[0], "gpu")["deployment_config"]
        return found

    assert not {"request_router_config", "max_ongoing_requests"} & set(options(1))
    assert options(2)["request_router_config"]["request_router_class"].endswith("ConsistentHashRouter")
    assert options(2)["max_ongoing_requests"] == 512
    assert options(2, max_num_seqs=32)["max_ongoing_requests"] == 64
    two = Tier(model="m", replicas=Replicas(min=2, max=2))
    running = engine_arguments(two, "cpu")["max_num_seqs"]
    assert llm_arguments(two, groups(two)[0], "cpu")["deployment_config"]["max_ongoing_requests"] == 2 * running


APART = Tier(
    model="m",
    engine={"max_num_seqs": 4, "block_size": 64},
    disaggregation=Disaggregation(
        prefill=GroupSettings(replicas=Replicas(min=1, max=3), engine={"max_num_seqs": 2}),
        decode=GroupSettings(replicas=Replicas(min=2, max=2), engine={"tensor_parallel_size": 2}),
    ),
)


def test_prefill_and_decode_have_replicas_and_engines_of_their_own() -> None:
    prefill, decode = (llm_arguments(APART, group, "gpu") for group in groups(APART))
    assert prefill["engine_kwargs"]["max_num_seqs"] == 2
    assert decode["engine_kwargs"]["max_num_seqs"] == 4
    assert prefill["engine_kwargs"]["block_size"] == decode["engine_kwargs"]["block_size"] == 64
    assert prefill["deployment_config"]["autoscaling_config"]["max_replicas"] == 3
    assert decode["deployment_config"]["num_replicas"] == 2
    assert len(decode["placement_group_config"]["bundles"]) == 2
    assert prefill["model_loading_config"] == decode["model_loading_config"]


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_both_groups_hand_over_by_the_connector_on_ports_apart(device: Any) -> None:
    prefill, decode = (llm_arguments(APART, group, device) for group in groups(APART))
    transfer = prefill["engine_kwargs"]["kv_transfer_config"]
    assert transfer == decode["engine_kwargs"]["kv_transfer_config"]
    assert transfer["kv_connector"] == "NixlConnector"
    assert ("kv_buffer_device" in transfer) == (device == "cpu")
    ports = [side["experimental_configs"]["NIXL_SIDE_CHANNEL_PORT_BASE"] for side in (prefill, decode)]
    assert abs(ports[0] - ports[1]) >= 1000


def test_prompts_are_not_logged_and_nothing_is_reported() -> None:
    variables = environment("gpu", offline=False)
    assert variables["RAYLLM_ENABLE_REQUEST_PROMPT_LOGS"] == "0"
    assert variables["DO_NOT_TRACK"] == variables["VLLM_NO_USAGE_STATS"] == "1"
    assert not any(name.startswith("VLLM_CPU") for name in variables)


def test_weights_on_disk_need_no_hub(tmp_path: Path) -> None:
    assert on_disk(Tier(model="m", source=str(tmp_path)))
    assert not on_disk(Tier(model="m", source="someone/something"))
    assert environment("cpu", offline=True)["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in environment("cpu", offline=False)


CONFIG = {"tiers": {"small": {"model": "a"}}}


@pytest.mark.parametrize(
    ("args", "path", "said"),
    [
        ({"config": CONFIG}, "tier", "missing; legal: small"),
        ({"config": CONFIG, "tier": "large"}, "tier", "'large' is not legal; legal: small"),
        ({"config": CONFIG, "tier": "frontier"}, "tier", "'frontier' is not configured; configured: small"),
        ({"tier": "small"}, "config", "missing"),
        ({"tier": "small", "config": CONFIG, "extra": 1}, "extra", "legal arguments: tier, config"),
        ({"tier": "small", "config": {"tiers": {"small": {}}}}, "tiers.small.model", "required"),
        (
            {"tier": "small", "config": {"tiers": {"small": {"model": "a", "engine": {"max_num_seq": 1}}}}},
            "tiers.small.engine.max_num_seq",
            "max_num_seqs",
        ),
    ],
)
def test_an_application_is_refused_with_the_place_and_the_legal_values(
    args: dict[str, Any], path: str, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        build(args)
    (problem,) = refused.value.problems
    assert problem.path == path
    assert said in problem.message
