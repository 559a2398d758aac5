"""The replica groups of a tier: one, or prefill and decode apart. Each is a deployment of equal engines."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from core.config import Tier
from core.config.records import Replicas

Role = Literal["engine", "prefill", "decode"]


@dataclass(frozen=True)
class Group:
    """Replicas that run the same engine. `engine`: the tier's arguments with the group's own over them."""

    role: Role
    replicas: Replicas
    engine: Mapping[str, JsonValue]

    @property
    def gpus(self) -> int:
        """GPUs that one engine of the group spans."""
        return gpus(self.engine)


def groups(tier: Tier) -> tuple[Group, ...]:
    """What the tier runs: the group `engine`, or `prefill` and `decode`."""
    apart = tier.disaggregation
    if apart is None:
        return (Group("engine", tier.replicas, tier.engine),)
    return (
        Group("prefill", apart.prefill.replicas, {**tier.engine, **apart.prefill.engine}),
        Group("decode", apart.decode.replicas, {**tier.engine, **apart.decode.engine}),
    )


def gpus(engine: Mapping[str, JsonValue]) -> int:
    """GPUs of an engine with these arguments: tensor times pipeline parallelism."""
    tensor, pipeline = (engine.get(f"{name}_parallel_size", 1) for name in ("tensor", "pipeline"))
    return (tensor if isinstance(tensor, int) else 1) * (pipeline if isinstance(pipeline, int) else 1)
