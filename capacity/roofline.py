"""Step times from data sheets: what a model must read and compute, over what a device can, in the parts it reaches.

A decode step reads the weights once and each sequence's cache, and computes two operations per weight and sequence; a
prefill computes two operations per weight and token and the squares of attention. Engines reach a part of the data
sheet: `Profile` holds those parts, fitted to published measurements by `python -m bench.capacity_cross_gpu --fit`, and
how far estimates for a device that was left out of the fit were off. An estimate is never without that interval; a
calibration on the device itself (`StepModel`) is always better.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from capacity.architecture import Architecture
from capacity.devices import Device
from capacity.memory import kv_bytes_per_token
from capacity.step_model import DecodeCost, PrefillCost, Setting, StepModel
from capacity.weights import Weights


@dataclass(frozen=True)
class Shape:
    """The sizes that step times follow from."""

    layers: int
    hidden: int
    attention_width: int
    """Query heads times head size."""
    weights: float
    """All weights that a large batch reads."""
    active: float
    """Weights that one token passes through."""
    kv_elements: float
    """Cache elements per token."""
    experts: int = 0
    chosen: int = 0
    """Routed experts, and how many of them a token passes."""

    def read(self, tokens: float) -> float:
        """Weights that a pass over `tokens` reads: with experts, those that at least one token chose."""
        if not self.experts:
            return self.weights
        routed = (self.weights - self.active) / (1 - self.chosen / self.experts)
        touched = 1.0 - math.pow(1 - self.chosen / self.experts, max(tokens, 1.0))
        return self.weights - routed + routed * touched


def shape_of(model: Architecture, weights: Weights) -> Shape:
    """The shape of a model that was read from its `config.json`."""
    width = model.heads * model.head_dim if model.heads else model.hidden
    kv = kv_bytes_per_token(model, 1) if model.cache else 0
    experts, chosen = weights.routes
    # The embedding is looked up, not read; the head is read as every matrix is.
    read = weights.active + (weights.experts * (1 - chosen / experts) if experts else 0.0)
    return Shape(model.layers, model.hidden, width, read, weights.active, kv, experts, chosen)


@dataclass(frozen=True)
class Profile:
    """The parts of a data sheet that an engine reaches, and its own times."""

    name: str
    memory: float
    """Of the memory bandwidth, reading weights."""
    cache: float
    """Of the memory bandwidth, reading the KV cache."""
    compute16: float
    """Of the dense 16-bit rate."""
    compute8: float
    """Of the dense 8-bit rate."""
    step_s: float
    """Once per step: scheduling, sampling, launching."""
    layer_s: float
    """Per layer and step."""
    sequence_s: float
    """Per sequence and step."""
    reduce_s: float
    """Latency of one reduction among the ranks."""
    interval: float
    """Estimates lie within this factor of measurements, up or down, in four of five cases."""

    def compute(self, weight_bits: float) -> float:
        """The part of the compute rate that counts for weights of this width."""
        return self.compute8 if weight_bits == 8 else self.compute16


# Fitted by `python -m bench.capacity_cross_gpu --fit`. On devices left out of the fit, factors of 1.16 (trtllm), 1.30
# (vllm) and 1.17 (eager, one device only) hold four of five rows; the interval is wider, for models and engines that no
# table has.
PROFILES: dict[str, Profile] = {
    "vllm": Profile("vllm", 0.825, 0.839, 0.718, 0.465, 1.58e-3, 1.85e-5, 2.27e-5, 7.7e-6, 1.4),
    "trtllm": Profile("trtllm", 0.807, 0.950, 0.706, 0.579, 2.61e-3, 3.80e-5, 4.2e-6, 1.58e-5, 1.4),
    "eager": Profile("eager", 0.950, 0.707, 0.619, 0.500, 2.11e-3, 3.19e-4, 2.57e-4, 1.60e-5, 1.4),
}


@dataclass(frozen=True)
class Estimate:
    """A number and the interval that holds four of five measurements."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Roofline:
    """One replica of a model on devices of a kind, run by an engine."""

    shape: Shape
    device: Device
    profile: Profile
    weight_bits: float = 16
    cache_bytes: float = 2
    tensor_parallel: int = 1

    def interval(self, value: float) -> Estimate:
        """The estimate with its interval."""
        return Estimate(value, value / self.profile.interval, value * self.profile.interval)

    def matrices_s(self, tokens: float) -> float:
        """Seconds that the weights take for a pass over `tokens`: reading them, or computing with them."""
        ranks = self.tensor_parallel
        read = self.shape.read(tokens) * self.weight_bits / 8
        reading = read / (ranks * self.device.bandwidth * self.profile.memory)
        rate = ranks * self.device.flops(self.weight_bits) * self.profile.compute(self.weight_bits)
        computing = 2 * self.shape.active * tokens / rate
        # Neither hides fully behind the other where they are close.
        return float((reading**3 + computing**3) ** (1 / 3))

    def reduce_s(self, tokens: float) -> float:
        """Seconds of two reductions per layer among the ranks."""
        ranks = self.tensor_parallel
        if ranks == 1:
            return 0.0
        payload = tokens * self.shape.hidden * 2
        moved = 2 * (ranks - 1) / ranks * payload / (self.device.link * 0.7)
        return 2 * self.shape.layers * (self.profile.reduce_s + moved)

    def overhead_s(self, sequences: float) -> float:
        """The engine's own time of a step."""
        return self.profile.step_s + self.profile.layer_s * self.shape.layers + self.profile.sequence_s * sequences

    def decode_s(self, sequences: float, context_tokens: float) -> float:
        """Seconds of a step that decodes one token each, with `context_tokens` in all caches together."""
        cache = context_tokens * self.shape.kv_elements * self.cache_bytes
        reading = cache / (self.tensor_parallel * self.device.bandwidth * self.profile.cache)
        return self.matrices_s(sequences) + reading + self.reduce_s(sequences) + self.overhead_s(sequences)

    def prefill_s(self, prompt_tokens: float, prompts: float = 1) -> float:
        """Seconds to prefill `prompts` of `prompt_tokens` each in one pass."""
        tokens = prompt_tokens * prompts
        squares = 2 * self.shape.layers * self.shape.attention_width * prompt_tokens**2 * prompts
        rate = self.tensor_parallel * self.device.flops16 * self.profile.compute16
        return self.matrices_s(tokens) + squares / rate + self.reduce_s(tokens) + self.overhead_s(prompts)

    def token_s(self, sequences: float, prompt_tokens: float, output_tokens: float) -> float:
        """Seconds per step in a steady state: as many prompts join as sequences end."""
        joining = sequences / output_tokens
        context = sequences * (prompt_tokens + output_tokens / 2)
        decode = self.decode_s(sequences, context)
        tokens = joining * prompt_tokens
        squares = 2 * self.shape.layers * self.shape.attention_width * prompt_tokens**2 * joining
        rate = self.tensor_parallel * self.device.flops16 * self.profile.compute16
        return (
            decode
            + self.matrices_s(sequences + tokens)
            - self.matrices_s(sequences)
            + squares / rate
            + (self.reduce_s(tokens) if tokens else 0.0)
        )

    def ridge_batch(self) -> float:
        """The batch at which decode turns compute-bound, by the reached rates."""
        rate = self.device.flops(self.weight_bits) * self.profile.compute(self.weight_bits)
        return (
            rate
            * self.weight_bits
            / 8
            * self.shape.weights
            / (2 * self.device.bandwidth * self.profile.memory * self.shape.active)
        )

    def step_model(
        self, sequences: float, prompt_tokens: float, engine: Mapping[str, Setting] | None = None
    ) -> StepModel:
        """The step model around an operating point: `sequences` in the engine, prompts of `prompt_tokens`.

        Linear in sequences as the file format is, exact at one sequence and at twice the point.
        """
        high = max(2 * sequences, 2.0)
        per_context = (
            self.shape.kv_elements
            * self.cache_bytes
            / (self.tensor_parallel * self.device.bandwidth * self.profile.cache)
        )
        low_s, high_s = self.decode_s(1, 0), self.decode_s(high, 0)
        slope = (high_s - low_s) / (high - 1)
        rate = self.tensor_parallel * self.device.flops16 * self.profile.compute16
        square = 2 * self.shape.layers * self.shape.attention_width / rate
        long = max(2 * prompt_tokens, 512.0)
        fixed = self.decode_s(1, 0)
        token = (self.prefill_s(long) - square * long**2 - fixed) / long
        return StepModel(
            DecodeCost(max(low_s - slope, 0.0), slope, per_context),
            PrefillCost(fixed, max(token, 0.0), square),
            dict(engine or {}),
        )
