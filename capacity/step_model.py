"""What one engine iteration costs: the record, its JSON file, and the times that follow from it.

The file is what `forebay bench fit` writes and `forebay simulate` and `forebay plan` read:

    {"decode": {"fixed_s", "seq_s", "ctx_token_s"}, "prefill": {"fixed_s", "token_s", "token2_s"}, "engine": {...}}

An iteration that decodes `n` sequences with `c` tokens of context together takes
`decode.fixed_s + decode.seq_s * n + decode.ctx_token_s * c`; one that prefills prompts of `p` tokens takes
`prefill.fixed_s + sum(prefill.token_s * p + prefill.token2_s * p**2)`. In an iteration that does both, the weights are
read once: the larger of the two fixed times counts. Three more numbers are 0 unless the file has them: `prefill.seq_s`,
the cost of a prompt whatever its length, `prefill.hidden_tokens` and `prefill.mixed_s`, see `PrefillCost`.

The linear form in `n` is the textbook's `T_svc(B) = Tf + tr * B` read as what it fits, a decode step; measured steps
are convex at large batches, so a fit says little outside the batches that it saw.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import orjson

from core.errors import ConfigError, Problem

Setting = str | int | float | bool | None


@dataclass(frozen=True)
class DecodeCost:
    """Seconds of a decode step: once, per sequence, and per token of context over all sequences."""

    fixed_s: float
    seq_s: float
    ctx_token_s: float = 0.0


@dataclass(frozen=True)
class PrefillCost:
    """Seconds of a prefill: once, per prompt token, per squared prompt token, and per prompt (0 where not fitted).

    `hidden_tokens`: while the weights are read, the engine computes this many tokens at no further cost, decoded ones
    first (the roofline's ridge; 0 where not fitted). Prompt tokens beyond cost `token_s`.

    `mixed_s`: what a step that also decodes takes longer than the larger of the two fixed times explains (0 where not
    fitted).
    """

    fixed_s: float
    token_s: float
    token2_s: float = 0.0
    seq_s: float = 0.0
    hidden_tokens: float = 0.0
    mixed_s: float = 0.0


@dataclass(frozen=True)
class StepModel:
    """Iteration times of one engine, and the settings of the engine that they were measured with.

    `engine` holds vLLM's own argument names with underscores (`max_num_seqs`, `tensor_parallel_size`, `model`, …) and
    whatever else names the measurement (`gpu`, `version`). It is what `mismatches` compares: a calibration of one
    engine says nothing of another.
    """

    decode: DecodeCost
    prefill: PrefillCost
    engine: Mapping[str, Setting] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = [
            Problem(f"{part}.{name}", f"{value!r} is not a time; legal is a number of seconds from 0")
            for part, cost in (("decode", self.decode), ("prefill", self.prefill))
            for name, value in asdict(cost).items()
            if not math.isfinite(value) or value < 0
        ]
        if problems:
            raise ConfigError(problems)

    @classmethod
    def of_batch(cls, t_fixed: float, t_req: float) -> "StepModel":
        """The textbook's service model `Tf + tr * B` (seconds) as a step: a prompt costs what a decoded token costs."""
        return cls(DecodeCost(t_fixed, t_req), PrefillCost(t_fixed, 0.0, 0.0, t_req))

    def decode_s(self, sequences: float, context_tokens: float = 0.0) -> float:
        """Seconds of a step that decodes one token each of `sequences` with `context_tokens` in all; 0 for none."""
        if sequences <= 0:
            return 0.0
        return self.decode.fixed_s + self.decode.seq_s * sequences + self.decode.ctx_token_s * context_tokens

    def prefill_s(self, prompt_tokens: float, prompts: int = 1) -> float:
        """Seconds to prefill `prompts` of `prompt_tokens` each in one step; 0 for none."""
        if prompts <= 0:
            return 0.0
        return self.prefill.fixed_s + self._prompts_s(prompts, prompt_tokens, 0.0)

    def step_s(self, sequences: float, context_tokens: float, prompt_tokens: float, prompts: int = 1) -> float:
        """Seconds of a step that decodes and prefills: the weights are read once, and mixing may cost (`mixed_s`)."""
        if sequences <= 0:
            return self.prefill_s(prompt_tokens, prompts if prompt_tokens > 0 else 0)
        alone = self.decode_s(sequences, context_tokens)
        if prompts <= 0 or prompt_tokens <= 0:
            return alone
        more = max(self.prefill.fixed_s - self.decode.fixed_s, 0.0)
        return alone + more + self.prefill.mixed_s + self._prompts_s(prompts, prompt_tokens, sequences)

    def _prompts_s(self, prompts: float, prompt_tokens: float, decoding: float) -> float:
        """Seconds that prompts add to a step beside its fixed time."""
        cost = self.prefill
        seen = max(prompts * prompt_tokens - max(cost.hidden_tokens - decoding, 0.0), 0.0)
        return cost.token_s * seen + prompts * (cost.seq_s + cost.token2_s * prompt_tokens**2)

    def unloaded(self, prompt_tokens: int, output_tokens: int) -> "Latency":
        """Latency of a request that is alone in the engine: its prefill gives token 1, each decode step one more."""
        steps = max(output_tokens - 1, 0)
        # Step j (from 1) reads the prompt and j tokens.
        context = steps * prompt_tokens + steps * (steps + 1) / 2
        ttft = self.prefill_s(prompt_tokens)
        decode = steps * (self.decode.fixed_s + self.decode.seq_s) + self.decode.ctx_token_s * context
        return Latency(ttft, decode / steps if steps else None, ttft + decode)

    def at_concurrency(self, concurrency: float, prompt_tokens: float, output_tokens: float) -> "Latency":
        """Mean latency with `concurrency` sequences kept in the engine, prefills mixed into the decode steps.

        Per step, `concurrency / output_tokens` sequences end and as many prompts come in; the mean context of a
        sequence is its prompt and half its output. A mean-value estimate for planning: the simulator gives percentiles.
        """
        joining = concurrency / max(output_tokens, 1.0)
        cost = self.prefill
        prefill = self._prompts_s(joining, prompt_tokens, concurrency - joining)
        decode = self.decode_s(concurrency - joining, (concurrency - joining) * (prompt_tokens + output_tokens / 2))
        # A step with a prefill pays the larger fixed time; a fraction of the steps has one.
        extra = (max(cost.fixed_s - self.decode.fixed_s, 0.0) + cost.mixed_s) * min(joining, 1.0)
        step = decode + prefill + extra
        ttft = step / 2 + self.step_s(
            concurrency - 1, (concurrency - 1) * (prompt_tokens + output_tokens / 2), prompt_tokens
        )
        return Latency(ttft, step if output_tokens > 1 else None, ttft + step * max(output_tokens - 1, 0))

    def mismatches(self, wanted: Mapping[str, Setting]) -> list[str]:
        """One line for each setting that `wanted` states and this calibration was measured with another value of."""
        return [
            f"{name}: calibrated with {self.engine[name]!r}, asked for {value!r}"
            for name, value in wanted.items()
            if name in self.engine and self.engine[name] != value
        ]

    def document(self) -> dict[str, object]:
        """The file's content."""
        optional = ("seq_s", "hidden_tokens", "mixed_s")
        prefill = {name: value for name, value in asdict(self.prefill).items() if name not in optional or value}
        return {"decode": asdict(self.decode), "prefill": prefill, "engine": dict(self.engine)}


@dataclass(frozen=True)
class Latency:
    """Seconds to the first token, per further token (None where there is none), and to the end."""

    ttft_s: float
    tpot_s: float | None
    e2e_s: float


def total_latency(ttft: float, output_tokens: int, tpot: float) -> float:
    """Seconds to the last of `output_tokens` (from 1): `ttft + (n - 1) * tpot`; the prefill gives the first token."""
    return ttft + (output_tokens - 1) * tpot


def read_step_model(path: Path) -> StepModel:
    """The model in a file. Raises ConfigError that names the key path of what is missing, unknown or not a time."""
    try:
        document = orjson.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError([Problem("step_model", f"{path} does not exist")]) from error
    except orjson.JSONDecodeError as error:
        raise ConfigError([Problem("step_model", f"{path} is not JSON: {error}")]) from error
    return parse_step_model(document)


def parse_step_model(document: object) -> StepModel:
    """The model in a parsed file; keys beside decode, prefill and engine (a fit's statistics, say) are left alone."""
    if not isinstance(document, dict):
        raise ConfigError([Problem("", "a step model is an object with decode, prefill and engine")])
    engine = document.get("engine", {})
    if not isinstance(engine, dict):
        raise ConfigError([Problem("engine", "not an object of engine settings")])
    return StepModel(
        DecodeCost(**_cost(document, "decode", DecodeCost)),
        PrefillCost(**_cost(document, "prefill", PrefillCost)),
        engine,
    )


def write_step_model(model: StepModel, path: Path) -> None:
    """Write the file that `read_step_model` reads."""
    path.write_bytes(orjson.dumps(model.document(), option=orjson.OPT_INDENT_2) + b"\n")


_REQUIRED = {"decode": ("fixed_s", "seq_s"), "prefill": ("fixed_s", "token_s")}


def _cost(document: dict[str, object], part: str, record: type[DecodeCost] | type[PrefillCost]) -> dict[str, float]:
    found = document.get(part)
    legal = [entry.name for entry in fields(record)]
    if not isinstance(found, dict):
        raise ConfigError([Problem(part, f"missing; an object with {', '.join(legal)}")])
    problems = [
        Problem(f"{part}.{name}", f"unknown; legal are {', '.join(legal)}") for name in found if name not in legal
    ]
    problems += [Problem(f"{part}.{name}", "missing") for name in _REQUIRED[part] if name not in found]
    values: dict[str, float] = {}
    for name in legal:
        value = found.get(name, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            problems.append(Problem(f"{part}.{name}", f"{value!r} is not a number of seconds"))
        else:
            values[name] = float(value)
    if problems:
        raise ConfigError(problems)
    return values
