"""What Ray Serve is told about a tier."""

from pathlib import Path
from typing import Any

import pytest

from core.config.records import Replicas, Tier
from core.errors import ConfigError
from deploy.app import build
from deploy.tiers import deployment, engine_arguments, environment, on_disk


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
    assert options["autoscaling_config"] == {"min_replicas": 0, "max_replicas": 3, "target_ongoing_requests": 7}
    assert "num_replicas" not in options


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
