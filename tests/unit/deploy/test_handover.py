"""A tier whose prefill and decode are apart, from its configuration."""

from typing import Any

import pytest

from core.config.records import Disaggregation, Tier
from deploy.device import Device
from deploy.handover import check_sides, handing_over, settings

DEVICES: tuple[Device, Device] = ("gpu", "cpu")


def tier(**apart: Any) -> Tier:
    document = {"model": "m", "engine": {"block_size": 32, "max_num_seqs": 8}, "disaggregation": apart}
    return Tier.model_validate(document)


def test_the_decode_side_decides_by_the_configuration_and_its_engines_size() -> None:
    both = tier(min_prompt_tokens=100, prefill_deadline="2s", on_prefill_failure="error")
    chosen = settings(both, both.engine)
    assert (chosen.min_prompt_tokens, chosen.prefill_deadline, chosen.on_prefill_failure) == (100, 2.0, "error")
    assert (chosen.slots, chosen.block_size, chosen.slot_wait) == (8, 32, both.timeout.first_token)


def test_blocks_that_cannot_be_loaded_fail_the_request_and_a_cpu_says_where_they_lie() -> None:
    on_gpu, on_cpu = (handing_over(Disaggregation(), device)["kv_transfer_config"] for device in DEVICES)
    assert on_gpu == {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_load_failure_policy": "fail"}
    assert on_cpu == {**on_gpu, "kv_buffer_device": "cpu"}
    assert handing_over(Disaggregation(), "gpu")["enable_prompt_tokens_details"] is True


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
    small = Tier.model_validate({"model": "m", "engine": {"block_size": 32}, "disaggregation": apart})
    (problem,) = check_sides(small, "tiers.small")
    assert problem.path == f"tiers.small.disaggregation.{path}"
    assert said in problem.message


def test_the_defaults_are_those_of_the_contract() -> None:
    apart = Disaggregation()
    assert (apart.connector, apart.min_prompt_tokens, apart.prefill_deadline) == ("NixlConnector", 256, 5.0)
    assert apart.on_prefill_failure == "decode"
