"""What a fleet is planned for: the load, the objective, and the engines that could serve it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from capacity.arrivals import Burstiness, Poisson, burstiness
from capacity.step_model import DecodeCost, PrefillCost, StepModel
from capacity.workload import Group, Lengths, Replay, Requests, Sampled, Synthetic, Workload


@dataclass(frozen=True)
class Objective:
    """Targets in seconds that a share `percentile` of requests must keep; None: no target."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    percentile: float = 0.99

    @property
    def targets(self) -> dict[str, float]:
        """The targets that there are."""
        named = {"ttft": self.ttft_s, "tpot": self.tpot_s, "e2e": self.e2e_s}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class Demand:
    """Requests per second with their lengths, or a recorded stream; means are in tokens."""

    rate: float
    prompt_tokens: float
    output_tokens: float
    lengths: Lengths
    recorded: Requests | None = None

    @classmethod
    def of_trace(cls, requests: Requests, rate_scale: float = 1.0) -> "Demand":
        """The demand of a trace, `rate_scale` times as fast."""
        span = float(requests.arrived[-1] - requests.arrived[0]) / rate_scale
        rate = (len(requests) - 1) / span if span > 0 else 1.0
        scaled = replace(requests, arrived=requests.arrived / rate_scale)
        lengths = Sampled(requests.prompt, requests.output)
        return cls(rate, float(requests.prompt.mean()), float(requests.output.mean()), lengths, scaled)

    @property
    def burstiness(self) -> Burstiness | None:
        """How far a recorded stream is from Poisson; None for a drawn one."""
        recorded = self.recorded
        return burstiness(recorded.arrived) if recorded is not None and len(recorded) > 2 else None

    def part(self, share: float) -> "Demand":
        """The demand of a share of the requests."""
        return replace(self, rate=self.rate * share)

    def workload(self, rate: float, count: int, seed: int) -> Workload:
        """`count` requests at `rate`; of a recording as many as it has, thinned at random or sped up to the rate.

        Thinning keeps bursts, as a router that spreads requests over replicas does.
        """
        recorded = self.recorded
        if recorded is None:
            return Synthetic(Poisson(rate), count, [Group("all", 1.0, self.lengths)])
        own = (len(recorded) - 1) / max(float(recorded.arrived[-1] - recorded.arrived[0]), 1e-9)
        if rate >= own:
            return Replay(recorded, rate / own)
        kept = np.flatnonzero(np.random.default_rng(seed).random(len(recorded)) < rate / own)
        return Replay(recorded.take(kept if len(kept) > 2 else np.arange(min(3, len(recorded)))))


@dataclass(frozen=True)
class EngineOption:
    """One way to run a replica: its step times, its cache, its GPUs."""

    step_model: StepModel
    tensor_parallel: int
    gpus: int
    cache_tokens: int | None
    """Tokens that the KV cache holds; None: unknown, taken as enough."""
    gpu: str = ""
    quantization: str = "fp16"
    cache_dtype: str = "auto"
    interval: float = 1.0
    """Step times lie within this factor in four of five cases; 1 for a calibration on this engine."""
    kv_bytes_per_token: float = 0.0
    fixed: Mapping[str, int | bool] = field(default_factory=dict)
    """Settings that a calibration was made with and that the plan may not change: vLLM's names."""

    def slower(self, factor: float) -> "EngineOption":
        """The same with all step times multiplied."""
        decode, prefill = self.step_model.decode, self.step_model.prefill
        model = StepModel(
            DecodeCost(decode.fixed_s * factor, decode.seq_s * factor, decode.ctx_token_s * factor),
            PrefillCost(
                prefill.fixed_s * factor,
                prefill.token_s * factor,
                prefill.token2_s * factor,
                prefill.seq_s * factor,
                prefill.hidden_tokens,
                prefill.mixed_s * factor,
            ),
            self.step_model.engine,
        )
        return replace(self, step_model=model, interval=1.0)


@dataclass(frozen=True)
class TierAsk:
    """One tier: what it serves, and the engines among which the plan chooses."""

    name: str
    model: str
    share: float
    """Of all requests, those that reach this tier."""
    options: tuple[EngineOption, ...]
    gpu_price: float | None = None
    """Per GPU and hour, in any currency."""


@dataclass(frozen=True)
class FleetAsk:
    """The whole question."""

    demand: Demand
    objective: Objective
    tiers: tuple[TierAsk, ...]
    hit_rate: float = 0.0
    frontier_share: float = 0.0
    target_utilization: float = 0.85
    link: float = 50e9
    """Bytes per second between prefill and decode replicas."""
    memory_fraction: float = 0.9
    seed: int = 0
    requests: int = 10_000
    """Requests of one simulation."""
