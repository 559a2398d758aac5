"""What a step of an engine costs, profiled from outside: the step model that `forebay plan` and `simulate` read.

Decode: so many requests at once, and the time between their tokens while all of them decode; at two lengths of context,
so that what a token of context costs can be told from what a sequence costs. Prefill: one request at a time, one token,
at several lengths of prompt. Mixed: the same prompts while half of the largest batch decodes, and the time between the
tokens of those that decode. What HTTP and the tokenizer add is in the times, as it is in users'.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from bench.load.loop import Job, Loop
from bench.load.prompts import Prompts, Scale, Synthetic
from bench.load.records import Measured, measured
from bench.load.target import Target
from capacity.step_fit import DecodeStep, MixedStep, PrefillStep, StepFit, fit_steps
from capacity.step_model import Setting
from core.errors import ForebayError

# Tokens between the last first token and the first last one that a decode profile must have to count.
LEAST_GAPS = 4
# Seconds by which a sum of gaps, kept in single precision, may miss the time of its last token.
ROUNDING = 1e-5
Step = TypeVar("Step", DecodeStep, PrefillStep, MixedStep)


@dataclass(frozen=True)
class Profile:
    """What to measure. `batches` decode together `steps` tokens each, after prompts of each of `contexts` tokens;
    `prompts` are prefilled alone, and while half of the largest batch decodes. Everything `rounds` times, in an order
    drawn anew each round.
    """

    batches: Sequence[int] = (1, 2, 4, 8)
    contexts: Sequence[int] = (32, 512)
    prompts: Sequence[int] = (16, 128, 512, 1024)
    steps: int = 48
    rounds: int = 3
    seed: int = 0


@dataclass(frozen=True)
class Fitted:
    """The fit and the measurements behind it: medians of the rounds, with their interquartile spread in seconds."""

    fit: StepFit
    decodes: Sequence[DecodeStep]
    prefills: Sequence[PrefillStep]
    decode_spread: Sequence[float]
    prefill_spread: Sequence[float]
    mixed: Sequence[MixedStep] = ()
    mixed_spread: Sequence[float] = ()

    @property
    def compute_bound_batch(self) -> float | None:
        """Where the sequences of a step cost as much as reading the weights: a larger batch gains less than it costs.

        None where sequences cost nothing that could be seen.
        """
        cost = self.fit.model.decode
        context = float(np.median([one.context_tokens / one.sequences for one in self.decodes]))
        each = cost.seq_s + cost.ctx_token_s * context
        return cost.fixed_s / each if each > 0 else None

    def document(self) -> dict[str, object]:
        """The step model's file, with the fit's statistics beside it."""
        bound = self.compute_bound_batch
        largest = self.fit.largest_batch
        return {
            **self.fit.model.document(),
            "t_fixed_s": self.fit.model.decode.fixed_s,
            "t_req_s": {
                "decode": self.fit.model.decode.seq_s,
                "prefill_token": self.fit.model.prefill.token_s,
            },
            "compute_bound_batch": bound,
            "compute_bound_seen": None if bound is None else bound <= largest,
            "largest_batch": largest,
            "largest_prompt": self.fit.largest_prompt,
            "convex": self.fit.convex,
            "decode_steps": [
                {
                    "batch": one.sequences, "context_tokens": one.context_tokens, "seconds": one.seconds,
                    "spread_s": spread, "fitted_over_measured": 1 + error,
                }
                for one, spread, error in zip(self.decodes, self.decode_spread, self.fit.decode_errors, strict=True)
            ],
            "prefills": [
                {
                    "prompts": one.prompts, "prompt_tokens": one.prompt_tokens, "seconds": one.seconds,
                    "spread_s": spread, "fitted_over_measured": 1 + error,
                }
                for one, spread, error in zip(self.prefills, self.prefill_spread, self.fit.prefill_errors, strict=True)
            ],
            "mixed_steps": [
                {
                    "batch": one.sequences, "context_tokens": one.context_tokens, "prompt_tokens": one.prompt_tokens,
                    "seconds": one.seconds, "spread_s": spread, "fitted_over_measured": 1 + error,
                }
                for one, spread, error in zip(self.mixed, self.mixed_spread, self.fit.mixed_errors, strict=True)
            ],
        }  # fmt: skip


class Profiler:
    """Measures an endpoint, alone on it: whatever else runs there is in the times."""

    def __init__(self, target: Target, model: str, scale: Scale, salt: int, timeout_s: float = 600.0) -> None:
        self._target, self._model, self._scale = target, model, scale
        self._salt, self._timeout = salt, timeout_s

    def profile(
        self, wanted: Profile, engine: Mapping[str, Setting], tell: Callable[[int], None] | None = None
    ) -> Fitted:
        """The fit. Raises ForebayError where answers fail, ConfigError where the measurements are too few."""
        decode_cases = [(batch, context) for batch in wanted.batches for context in wanted.contexts]
        decodes: dict[tuple[int, int], list[DecodeStep]] = {case: [] for case in decode_cases}
        prefills: dict[int, list[PrefillStep]] = {length: [] for length in wanted.prompts}
        mixed: dict[int, list[MixedStep]] = {length: [] for length in wanted.prompts}
        rng = np.random.default_rng(wanted.seed)
        # The first of everything compiles, allocates and connects; it does not count.
        self._ask(1, max(wanted.prompts), 2)
        self._ask(max(wanted.batches), min(wanted.contexts), 4)
        done = 0
        for _ in range(wanted.rounds):
            cases: list[tuple[int, int] | int] = [*decode_cases, *wanted.prompts]
            for place in rng.permutation(len(cases)):
                case = cases[int(place)]
                if isinstance(case, int):
                    prefills[case].append(self._prefill(case))
                else:
                    decodes[case].append(self._decode(*case, wanted.steps))
                done += 1
                if tell is not None:
                    tell(done)
            # A batch of one leaves no slot for a prompt beside it.
            if max(wanted.batches) > 1:
                pace = min(found[-1].seconds for found in decodes.values())
                firsts = {length: found[-1].seconds for length, found in prefills.items()}
                for length, step in self._mixed(wanted, pace, firsts, rng).items():
                    mixed[length].append(step)
        middle = [_middle(found) for found in decodes.values()]
        alone = [_middle(found) for found in prefills.values()]
        beside = [found for found in mixed.values() if found]
        both = [_middle(found) for found in beside]
        return Fitted(
            fit_steps(middle, alone, engine, both),
            middle,
            alone,
            [_spread(found) for found in decodes.values()],
            [_spread(found) for found in prefills.values()],
            both,
            [_spread(found) for found in beside],
        )

    def _decode(self, batch: int, context: int, steps: int) -> DecodeStep:
        run = self._ask(batch, context, steps)
        found = run.requests
        return decode_step(run, float(np.where(found["prompt"] > 0, found["prompt"], context).mean()))

    def _prefill(self, length: int) -> PrefillStep:
        run = self._ask(1, length, 1)
        tokens = int(run.requests["prompt"][0])
        first = np.where(np.isfinite(run.requests["first"]), run.requests["first"], run.requests["last"])
        return PrefillStep(1, float(tokens if tokens > 0 else length), float((first - run.requests["sent"])[0]))

    def _mixed(
        self, wanted: Profile, pace_s: float, alone_s: Mapping[int, float], rng: np.random.Generator
    ) -> dict[int, MixedStep]:
        """Every length of prompt that was prefilled while half of the largest batch decoded.

        `pace_s`: the shortest decode step, so that the last prompt comes before the batch ends; `alone_s`: seconds of
        each prompt alone. From them follows when each is sent.
        """
        batch, context = max(wanted.batches) // 2, min(wanted.contexts)
        order = [int(length) for length in rng.permutation(list(alone_s))]
        between = wanted.steps * pace_s / (len(order) + 1)
        due, at = [], batch * min(alone_s.values()) + between
        for length in order:
            due.append(at)
            at += alone_s[length] + between
        run = self._send([context] * batch + order, [wanted.steps] * batch + [1] * len(order), [0.0] * batch + due)
        return dict(mixed_steps(run, [context] * batch + order, batch))

    def _ask(self, count: int, prompt: int, output: int) -> Measured:
        """So many equal requests at one moment."""
        return self._send([prompt] * count, [output] * count, [0.0] * count)

    def _send(self, prompt: Sequence[int], output: Sequence[int], due: Sequence[float]) -> Measured:
        """Requests of these tokens at these seconds, ascending."""
        self._salt += 1
        count = len(due)
        lengths = (np.array(prompt, dtype=np.int32), np.array(output, dtype=np.int32))
        prompts = Prompts(self._model, Synthetic(*lengths, self._salt, self._scale), self._target.kind)
        loop = Loop(Job(self._target, prompts, np.arange(count), np.array(due), timeout_s=self._timeout))
        loop.open()
        start = time.monotonic() + 0.02
        loop.run(start)
        found = measured(loop.seen, start, loop.area, 0.0)
        errors = found.requests["error"][found.requests["error"] != ""]
        if len(errors):
            raise ForebayError(f"{len(errors)} of {count} answers failed: {errors[0]}")
        return found


def decode_step(run: Measured, prompt: float) -> DecodeStep:
    """The step of a batch: the mean time between tokens while every one of its requests decodes.

    `prompt`: mean tokens. Raises ForebayError where they hardly decode together: the server runs fewer at a time.
    """
    found = run.requests
    begin, end = float(found["first"].max()), float(found["last"].min())
    together, context = [], []
    for place in range(len(found)):
        gaps = run.gaps[run.offsets[place] : run.offsets[place + 1]].astype(float)
        ends = found["first"][place] + np.cumsum(gaps)
        inside = (ends - gaps >= begin - ROUNDING) & (ends <= end + ROUNDING)
        together.append(gaps[inside])
        context.append(prompt + 1 + np.flatnonzero(inside))
    gaps = np.concatenate(together)
    if len(gaps) < LEAST_GAPS * len(found):
        raise ForebayError(
            f"{len(found)} requests at once do not decode together: the server runs fewer at a time; give smaller "
            "--batches, or larger --steps"
        )
    # The mean of all, not the median: a step that takes twice as long now and then is a part of what steps take. Their
    # tail is to the right, so a mean without the extremes at both ends is too small.
    return DecodeStep(len(found), float(np.concatenate(context).mean()) * len(found), float(gaps.mean()))


def mixed_steps(run: Measured, prompts: Sequence[int], batch: int) -> Iterator[tuple[int, MixedStep]]:
    """The steps that prefilled a prompt beside the first `batch` requests, with the tokens that were asked for.

    `prompts`: tokens asked for, by index. The step is the one whose tokens came nearest to the prompt's first; a prompt
    that came in while not all of the batch decoded is left out.
    """
    found = run.requests
    decoding = np.flatnonzero(found["index"] < batch)
    begin, end = float(found["first"][decoding].max()), float(found["last"][decoding].min())
    for place in np.flatnonzero(found["index"] >= batch):
        one = found[place]
        came = one["first"] if np.isfinite(one["first"]) else one["last"]
        if not (begin <= one["sent"] and came <= end):
            continue
        gaps, context = [], 0.0
        for row in decoding:
            own = run.gaps[run.offsets[row] : run.offsets[row + 1]].astype(float)
            step = int(np.argmin(np.abs(found["first"][row] + np.cumsum(own) - came)))
            gaps.append(own[step])
            context += _prompt(found[row], prompts) + 1 + step
        yield prompts[one["index"]], MixedStep(batch, context, _prompt(one, prompts), float(np.mean(gaps)))


def _prompt(one: np.void, asked: Sequence[int]) -> float:
    """Tokens of a request's prompt: what the server says, else what was asked for."""
    return float(one["prompt"] if one["prompt"] > 0 else asked[one["index"]])


def _middle(found: Sequence[Step]) -> Step:
    return replace(found[0], seconds=float(np.median([one.seconds for one in found])))


def _spread(found: Sequence[Step]) -> float:
    seconds = [one.seconds for one in found]
    return float(np.percentile(seconds, 75) - np.percentile(seconds, 25))
