"""The documents that `forebay up` takes without a configuration are right, and complete for their machine."""

from typing import get_args

import pytest

from core.config import TIER_NAMES, validate
from deploy.device import Device
from deploy.engine import check_engines
from deploy.profiles import profile
from deploy.tiers import engine_arguments, is_packaged

DEVICES = get_args(Device)


@pytest.mark.parametrize("device", DEVICES)
def test_a_profile_is_valid_and_has_both_tiers(device: Device) -> None:
    config = validate(profile(device))
    assert tuple(name for name, _ in config.tiers.items()) == TIER_NAMES
    assert check_engines(config, device) == []
    assert not any(tier.urls for _, tier in config.tiers.items())


def test_the_cpu_profile_needs_no_model_hub() -> None:
    assert all(is_packaged(tier) for tier in dict(validate(profile("cpu")).tiers.items()).values())


def test_an_answer_of_the_cpu_profile_fits_the_context_with_room_for_the_question() -> None:
    for tier in dict(validate(profile("cpu")).tiers.items()).values():
        arguments = engine_arguments(tier, "cpu")
        assert 2 * arguments["additional_config"]["brevity"] < arguments["max_model_len"] / 4


def test_the_gateway_sends_no_more_to_a_cpu_tier_than_its_engine_runs_at_once() -> None:
    for tier in dict(validate(profile("cpu")).tiers.items()).values():
        assert tier.queue.max_inflight <= engine_arguments(tier, "cpu")["max_num_seqs"]
