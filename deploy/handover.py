"""Prefill and decode apart, from the configuration: engine arguments of both sides, and how the decode side decides."""

from collections.abc import Mapping

from pydantic import JsonValue

from core.config import Tier
from core.config.records import Disaggregation
from core.errors import Problem
from deploy.device import Device
from deploy.handoff.group import Settings

# What vLLM takes where nobody says.
_BLOCK_SIZE, _MAX_NUM_SEQS = 16, 256
_CONNECTORS = ("NixlConnector",)
# Blocks are read as they lie in memory, and a prompt fits both sides or neither.
_COMMON = ("block_size", "dtype", "kv_cache_dtype", "max_model_len", "quantization")


def handing_over(apart: Disaggregation, device: Device) -> dict[str, JsonValue]:
    """Engine arguments of both roles. Either may read and be read: which one does is in each request.

    Without a GPU the blocks lie in memory that the connector must be told of. A block that cannot be loaded fails the
    request instead of being computed, so that the decode side notices. Counts of cached tokens come from the prefill
    side, which must report them.
    """
    transfer: dict[str, JsonValue] = {"kv_connector": apart.connector, "kv_role": "kv_both"}
    if device == "cpu":
        transfer["kv_buffer_device"] = "cpu"
    return {
        "kv_transfer_config": {**transfer, "kv_load_failure_policy": "fail"},
        "enable_prompt_tokens_details": True,
    }


def settings(tier: Tier, decode_engine: Mapping[str, JsonValue]) -> Settings:
    """How the decode side decides, from the tier's configuration and its engine's arguments."""
    apart = tier.disaggregation
    assert apart is not None  # noqa: S101  # the caller has looked
    slots, block_size = decode_engine.get("max_num_seqs"), decode_engine.get("block_size")
    return Settings(
        min_prompt_tokens=apart.min_prompt_tokens,
        # Without a deadline of its own, the leg has that of the request.
        prefill_deadline=tier.timeout.total if apart.prefill_deadline is None else apart.prefill_deadline,
        on_prefill_failure=apart.on_prefill_failure,
        slots=slots if isinstance(slots, int) else _MAX_NUM_SEQS,
        slot_wait=tier.timeout.first_token,
        block_size=block_size if isinstance(block_size, int) else _BLOCK_SIZE,
    )


def check_sides(tier: Tier, path: str) -> list[Problem]:
    """What prefill and decode must have in common, and which connectors there are. `path` is the tier's."""
    apart = tier.disaggregation
    if apart is None:
        return []
    at, problems = f"{path}.disaggregation", []
    if apart.connector not in _CONNECTORS:
        legal = ", ".join(_CONNECTORS)
        problems.append(Problem(f"{at}.connector", f"{apart.connector!r} is not supported; legal: {legal}"))
    prefill, decode = ({**tier.engine, **side.engine} for side in (apart.prefill, apart.decode))
    for argument in _COMMON:
        if prefill.get(argument) != decode.get(argument):
            message = f"{prefill.get(argument)!r} for prefill and {decode.get(argument)!r} for decode"
            problems.append(Problem(f"{at}.decode.engine.{argument}", f"must be the same on both sides: {message}"))
    if prefill.get("exclude_tools_when_tool_choice_none"):
        # The prefill leg of a forced tool call says `none`, and must render the same prompt.
        problems.append(Problem(f"{at}.prefill.engine.exclude_tools_when_tool_choice_none", "must be false"))
    return problems
