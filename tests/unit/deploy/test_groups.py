"""A tier whose prefill and decode are apart, as its two groups."""

from typing import Any

import pytest

from core.config.records import Config, Disaggregation, Tier
from deploy.groups import check_groups, group, handing_over, handoff_environment, members, settings, side_channel


def tier(**apart: Any) -> Tier:
    document = {"model": "m", "engine": {"block_size": 32, "max_num_seqs": 8}, "disaggregation": apart}
    return Tier.model_validate(document)


def test_a_tier_in_one_piece_is_its_own_group() -> None:
    whole = Tier(model="m")
    assert members(whole) == [whole]


def test_each_group_has_its_own_replicas_and_engine_arguments_on_top_of_the_tiers() -> None:
    both = tier(
        prefill={"replicas": {"min": 2, "max": 3}, "engine": {"max_num_seqs": 2}},
        decode={"replicas": {"min": 1, "max": 4}},
    )
    prefill, decode = members(both)
    assert (prefill.replicas.min, prefill.replicas.max, decode.replicas.max) == (2, 3, 4)
    assert (prefill.engine, decode.engine) == (
        {"block_size": 32, "max_num_seqs": 2},
        {"block_size": 32, "max_num_seqs": 8},
    )
    assert prefill.disaggregation is decode.disaggregation is None


def test_the_decode_side_decides_by_the_configuration_and_its_engines_size() -> None:
    both = tier(min_prompt_tokens=100, prefill_deadline="2s", on_prefill_failure="error")
    chosen = settings(both, group(both, "decode").engine)
    assert (chosen.min_prompt_tokens, chosen.prefill_deadline, chosen.on_prefill_failure) == (100, 2.0, "error")
    assert (chosen.slots, chosen.block_size, chosen.slot_wait) == (8, 32, both.timeout.first_token)


def test_blocks_that_cannot_be_loaded_fail_the_request_and_a_cpu_says_where_they_lie() -> None:
    on_gpu, on_cpu = (handing_over("NixlConnector", device)["kv_transfer_config"] for device in ("gpu", "cpu"))  # type: ignore[arg-type]
    assert on_gpu == {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_load_failure_policy": "fail"}
    assert on_cpu == {**on_gpu, "kv_buffer_device": "cpu"}  # type: ignore[dict-item]
    assert handoff_environment("gpu") == {}
    assert "tcp" in handoff_environment("cpu")["UCX_TLS"]


def test_groups_of_one_machine_have_ports_of_their_own() -> None:
    ports = [side_channel(name, role) for name in ("small", "frontier") for role in ("prefill", "decode")]  # type: ignore[arg-type]
    assert len(set(ports)) == 4


@pytest.mark.parametrize(
    ("apart", "path", "said"),
    [
        ({"connector": "NixlConector"}, "connector", "legal: NixlConnector"),
        ({"prefill": {"engine": {"block_size": 16}}}, "decode.engine.block_size", "16 for prefill and 32 for decode"),
        ({"decode": {"engine": {"max_model_len": 10}}}, "decode.engine.max_model_len", "same on both sides"),
        (
            {"prefill": {"engine": {"exclude_tools_when_tool_choice_none": True}}},
            "prefill.engine.exclude_tools_when_tool_choice_none",
            "must be false",
        ),
    ],
)
def test_p18_sides_that_do_not_fit_are_refused_before_anything_is_started(apart: Any, path: str, said: str) -> None:
    small = {"model": "m", "engine": {"block_size": 32}, "disaggregation": apart}
    (problem,) = check_groups(Config.model_validate({"tiers": {"small": small}}))
    assert problem.path == f"tiers.small.disaggregation.{path}"
    assert said in problem.message


def test_what_runs_elsewhere_is_its_owners_business() -> None:
    there = {"model": "m", "urls": ["http://h:1"], "disaggregation": {"connector": "Other"}}
    assert check_groups(Config.model_validate({"tiers": {"small": there}})) == []


def test_the_defaults_are_those_of_the_contract() -> None:
    apart = Disaggregation()
    assert (apart.connector, apart.min_prompt_tokens, apart.prefill_deadline) == ("NixlConnector", 256, 5.0)
    assert apart.on_prefill_failure == "decode"
