"""What is legal and will hardly pay. It is said, never refused, with the cheaper remedy first."""

from collections.abc import Iterator

from core.config import Config
from core.config.records import Tier
from core.errors import Problem
from deploy.device import Device
from deploy.groups import groups

# Sequences per step from which on others notice a long prompt.
_FEW = 16


def advice(config: Config, device: Device) -> list[Problem]:
    """Notes on the tiers that are run here; each names the key to turn and why."""
    return [
        note
        for name, tier in config.tiers.items()
        if not tier.urls and tier.disaggregation is not None
        for note in _apart(tier, f"tiers.{name}", device)
    ]


def _apart(tier: Tier, path: str, device: Device) -> Iterator[Problem]:
    """Prefill and decode apart, in the order in which to try: chunked prefill, continuous batching, then two groups."""
    apart = tier.disaggregation
    assert apart is not None  # noqa: S101  # the caller has looked
    prefill, decode = groups(tier)
    at = f"{path}.disaggregation"
    if decode.engine.get("enable_chunked_prefill") is False:
        yield Problem(
            f"{path}.engine.enable_chunked_prefill",
            "is false: turn it on before two groups are paid for; prompts in chunks keep other answers' pace already",
        )
    sequences = decode.engine.get("max_num_seqs")
    if isinstance(sequences, int) and sequences < _FEW:
        yield Problem(
            f"{path}.engine.max_num_seqs",
            f"{sequences} answers at a time leave little to protect from long prompts: a larger batch pays first",
        )
    context = decode.engine.get("max_model_len") or tier.context
    if isinstance(context, int) and 0 < context <= apart.min_prompt_tokens:
        yield Problem(
            f"{at}.min_prompt_tokens",
            f"{apart.min_prompt_tokens} is not below the context ({context}): no prompt is ever prefilled apart",
        )
    if prefill.replicas.max == decode.replicas.max == 1:
        yield Problem(
            f"{at}.prefill.replicas",
            "one engine each cannot stand in for the other: two replicas of one group use the same hardware fully; "
            "`forebay plan fleet` sizes that, `forebay simulate --scheduler disaggregated` compares",
        )
    if device == "cpu":
        yield Problem(at, "on a CPU both groups and the transfer share the cores: good for tests, never faster")
