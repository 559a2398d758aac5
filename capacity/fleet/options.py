"""The engines that could run a model: every tensor parallelism whose weights fit, by data sheet or by calibration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capacity.architecture import read_architecture
from capacity.devices import Device
from capacity.fleet.ask import EngineOption
from capacity.memory import Budget, Paging, cache_tokens, kv_bytes_per_token
from capacity.roofline import PROFILES, Roofline, shape_of
from capacity.step_model import Setting, StepModel
from capacity.weights import QUANTIZATIONS, count_weights

PARALLEL = (1, 2, 4, 8)
CACHE_BYTES: Mapping[str, float] = {"auto": 2.0, "fp8": 1.0}
# Bytes of working memory per token of a pass and hidden element: a few activations in 16 bits, and those of the
# feed-forward part; measured engines lie below.
_PER_ELEMENT = 24
# Settings of a calibration that a plan keeps.
_KEPT = ("max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill")


@dataclass(frozen=True)
class ModelOn:
    """A model's `config.json` on a device."""

    settings: Mapping[str, Any]
    device: Device
    profile: str = "vllm"
    quantization: str = "fp16"
    cache_dtype: str = "auto"
    memory_fraction: float = 0.9

    def room(self, tensor_parallel: int, batched_tokens: int = 8192) -> int:
        """Tokens that the cache holds; 0 where the weights do not fit."""
        model, weights = read_architecture(self.settings), count_weights(self.settings)
        working = _PER_ELEMENT * batched_tokens * model.hidden + 4 * 256 * int(self.settings.get("vocab_size") or 0)
        budget = Budget(
            int(self.device.memory_bytes * tensor_parallel),
            weights.size(self.quantization),
            self.memory_fraction,
            working * tensor_parallel,
        )
        if not model.cache:
            return max(0, budget.cache)
        return cache_tokens(budget, model, Paging(CACHE_BYTES[self.cache_dtype], 16, tensor_parallel))

    def roofline(self, tensor_parallel: int) -> Roofline:
        """Step times from the data sheet."""
        model = read_architecture(self.settings)
        return Roofline(
            shape_of(model, count_weights(self.settings)),
            self.device,
            PROFILES[self.profile],
            QUANTIZATIONS[self.quantization],
            CACHE_BYTES[self.cache_dtype],
            tensor_parallel,
        )

    def option(self, tensor_parallel: int, prompt_tokens: float, output_tokens: float) -> EngineOption | None:
        """The engine with this many ranks; None where the weights leave no room for two requests."""
        tokens = self.room(tensor_parallel)
        if tokens < 2 * (prompt_tokens + output_tokens):
            return None
        line = self.roofline(tensor_parallel)
        point = min(256.0, max(8.0, tokens / (prompt_tokens + output_tokens / 2)))
        engine: dict[str, Setting] = {
            "gpu": self.device.name,
            "tensor_parallel_size": tensor_parallel,
            "source": "data sheet",
        }
        return EngineOption(
            line.step_model(point / 2, prompt_tokens, engine),
            tensor_parallel,
            tensor_parallel,
            tokens,
            self.device.name,
            self.quantization,
            self.cache_dtype,
            line.profile.interval,
            kv_bytes_per_token(read_architecture(self.settings), CACHE_BYTES[self.cache_dtype], tensor_parallel),
        )

    def all(self, ranks: Sequence[int], prompt_tokens: float, output_tokens: float) -> tuple[EngineOption, ...]:
        """Every engine whose weights fit, of these tensor parallelisms."""
        heads = read_architecture(self.settings).heads
        found = [self.option(count, prompt_tokens, output_tokens) for count in ranks if not heads or heads % count == 0]
        return tuple(option for option in found if option is not None)


def calibrated(
    model: StepModel, tokens: int | None, kv_bytes: float, gpu: str = "", quantization: str = "fp16"
) -> EngineOption:
    """The engine of a calibration, with the settings that it was made with: it says nothing of others."""
    engine = model.engine
    ranks = engine.get("tensor_parallel_size", 1)
    count = ranks if isinstance(ranks, int) and not isinstance(ranks, bool) else 1
    fixed = {name: value for name in _KEPT if isinstance(value := engine.get(name), int)}
    return EngineOption(
        model,
        count,
        count,
        tokens,
        gpu or str(engine.get("gpu", "")),
        quantization,
        kv_bytes_per_token=kv_bytes,
        fixed=fixed,
    )
