"""The replica groups of a tier: one, or prefill and decode apart."""

from collections.abc import Mapping
from typing import Literal

from pydantic import JsonValue

from core.config import Config, Tier
from core.errors import Problem
from deploy.device import Device
from deploy.handoff.group import Settings

Role = Literal["prefill", "decode"]
ROLES: tuple[Role, ...] = ("prefill", "decode")
# What vLLM takes where nobody says.
_BLOCK_SIZE, _MAX_NUM_SEQS = 16, 256
_CONNECTORS = ("NixlConnector",)
# First ports of the connector's side channels. Serve gives every replica its own above them, counted by group.
_SIDE_CHANNELS: Mapping[tuple[str, Role], int] = {
    ("small", "prefill"): 20_000,
    ("small", "decode"): 21_000,
    ("frontier", "prefill"): 22_000,
    ("frontier", "decode"): 23_000,
}


def members(tier: Tier) -> list[Tier]:
    """The tier's groups, each as a tier: its replicas, and its engine arguments on top of the tier's."""
    return [tier] if tier.disaggregation is None else [group(tier, role) for role in ROLES]


def group(tier: Tier, role: Role) -> Tier:
    """One group of a tier whose prefill and decode are apart."""
    apart = tier.disaggregation
    assert apart is not None  # noqa: S101  # the caller has looked
    chosen = apart.prefill if role == "prefill" else apart.decode
    engine = {**tier.engine, **chosen.engine}
    return tier.model_copy(update={"engine": engine, "replicas": chosen.replicas, "disaggregation": None})


def handing_over(connector: str, device: Device) -> dict[str, JsonValue]:
    """Engine arguments of both roles. Either may read and be read: which one does is in each request.

    Without a GPU the blocks lie in memory that the connector must be told of. A block that cannot be loaded fails the
    request instead of being computed, so that the decode side notices. Counts of cached tokens come from the prefill
    side, which must report them.
    """
    config: dict[str, JsonValue] = {"kv_connector": connector, "kv_role": "kv_both", "kv_load_failure_policy": "fail"}
    if device == "cpu":
        config["kv_buffer_device"] = "cpu"
    return {"kv_transfer_config": config, "enable_prompt_tokens_details": True}


def handoff_environment(device: Device) -> dict[str, str]:
    """Environment of both roles: without a GPU, transports that every machine has."""
    return {"UCX_TLS": "tcp,self,sm"} if device == "cpu" else {}


def side_channel(name: str, role: Role) -> int:
    """The first port of a group's side channels."""
    return _SIDE_CHANNELS[name, role]


def settings(tier: Tier, decode_engine: Mapping[str, JsonValue]) -> Settings:
    """How the decode side decides, from the tier's configuration and its engine's arguments."""
    apart = tier.disaggregation
    assert apart is not None  # noqa: S101  # the caller has looked
    slots, block_size = decode_engine.get("max_num_seqs"), decode_engine.get("block_size")
    return Settings(
        min_prompt_tokens=apart.min_prompt_tokens,
        prefill_deadline=apart.prefill_deadline,
        on_prefill_failure=apart.on_prefill_failure,
        slots=slots if isinstance(slots, int) else _MAX_NUM_SEQS,
        slot_wait=tier.timeout.first_token,
        block_size=block_size if isinstance(block_size, int) else _BLOCK_SIZE,
    )


def check_groups(config: Config) -> list[Problem]:
    """What prefill and decode must have in common, and which connectors there are."""
    problems = []
    for name, tier in config.tiers.items():
        apart = tier.disaggregation
        if apart is None or tier.urls:
            continue
        at = f"tiers.{name}.disaggregation"
        if apart.connector not in _CONNECTORS:
            legal = ", ".join(_CONNECTORS)
            problems.append(Problem(f"{at}.connector", f"{apart.connector!r} is not supported; legal: {legal}"))
        prefill, decode = (group(tier, role).engine for role in ROLES)
        for argument in ("block_size", "dtype", "kv_cache_dtype", "max_model_len", "quantization"):
            if prefill.get(argument) != decode.get(argument):
                message = f"{prefill.get(argument)!r} for prefill and {decode.get(argument)!r} for decode"
                problems.append(Problem(f"{at}.decode.engine.{argument}", f"must be the same on both sides: {message}"))
        if prefill.get("exclude_tools_when_tool_choice_none"):
            # The prefill leg of a forced tool call says `none`, and must render the same prompt.
            problems.append(Problem(f"{at}.prefill.engine.exclude_tools_when_tool_choice_none", "must be false"))
    return problems
