"""A step model from measured step times: an engine profiled at a few batches and prompt lengths.

Least relative squares with no coefficient below 0 (a linear fit of prefill times alone gives negative fixed times on
real data). What the measurements cannot tell apart is left out, not guessed: with one context length the cost of
context is part of the cost of a sequence, with one prompt length there is no squared term.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from capacity.step_model import DecodeCost, PrefillCost, Setting, StepModel
from core.errors import ConfigError, Problem

Values = NDArray[np.float64]

# A slope this much steeper at the largest batches than at the smallest bends the line upward.
CONVEX = 1.25


@dataclass(frozen=True)
class DecodeStep:
    """A measured step: `sequences` with `context_tokens` in all, and its seconds."""

    sequences: int
    context_tokens: float
    seconds: float


@dataclass(frozen=True)
class PrefillStep:
    """A measured prefill: `prompts` of `prompt_tokens` each, and its seconds."""

    prompts: int
    prompt_tokens: float
    seconds: float


@dataclass(frozen=True)
class MixedStep:
    """A measured step that prefills a prompt of `prompt_tokens` while `sequences` decode, and its seconds.

    `context_tokens`: of the decoding ones, in all.
    """

    sequences: int
    context_tokens: float
    prompt_tokens: float
    seconds: float


@dataclass(frozen=True)
class StepFit:
    """The model and what speaks against it.

    `decode_errors`, `prefill_errors`, `mixed_errors`: fitted over measured, less 1, in their order. Beyond
    `largest_batch` and `largest_prompt` the model is an extrapolation; `convex`: decode steps grow faster at the
    largest batches than at the smallest, so that larger ones are underrated.
    """

    model: StepModel
    decode_errors: tuple[float, ...]
    prefill_errors: tuple[float, ...]
    largest_batch: int
    largest_prompt: float
    convex: bool
    mixed_errors: tuple[float, ...] = ()


def fit_steps(
    decodes: Sequence[DecodeStep],
    prefills: Sequence[PrefillStep],
    engine: Mapping[str, Setting],
    mixed: Sequence[MixedStep] = (),
) -> StepFit:
    """The model nearest to the measurements; at least two different batches and two different amounts of prompt.

    `mixed` gives the model's `prefill.mixed_s`: the median of what those steps take longer than the rest of the model
    says, from 0 on. Raises ConfigError where there are too few of them, or a time is not above 0.
    """
    _check(decodes, prefills)
    batches = np.array([one.sequences for one in decodes], dtype=float)
    contexts = np.array([one.context_tokens for one in decodes], dtype=float)
    decode_s = np.array([one.seconds for one in decodes])
    fixed, seq, ctx = _least([np.ones_like(batches), batches, contexts], decode_s)
    prompts = np.array([one.prompts for one in prefills], dtype=float)
    tokens = np.array([one.prompt_tokens for one in prefills], dtype=float)
    prefill_s = np.array([one.seconds for one in prefills])
    once, token, token2 = _least([np.ones_like(prompts), prompts * tokens, prompts * tokens**2], prefill_s)
    model = StepModel(DecodeCost(fixed, seq, ctx), PrefillCost(once, token, token2), dict(engine))
    if mixed:
        beyond = float(np.median([one.seconds - _foretold(model, one) for one in mixed]))
        model = replace(model, prefill=replace(model.prefill, mixed_s=max(beyond, 0.0)))
    return StepFit(
        model,
        tuple(((fixed + seq * batches + ctx * contexts) / decode_s - 1).tolist()),
        tuple(((once + token * prompts * tokens + token2 * prompts * tokens**2) / prefill_s - 1).tolist()),
        int(batches.max()),
        float(tokens.max()),
        _bends(batches, decode_s),
        tuple(_foretold(model, one) / one.seconds - 1 for one in mixed),
    )


def _foretold(model: StepModel, step: MixedStep) -> float:
    return model.step_s(step.sequences, step.context_tokens, step.prompt_tokens)


def _check(decodes: Sequence[DecodeStep], prefills: Sequence[PrefillStep]) -> None:
    problems = []
    if len({one.sequences for one in decodes}) < 2:
        problems.append(Problem("decode", "measure steps of at least two different batches"))
    if len({one.prompts * one.prompt_tokens for one in prefills}) < 2:
        problems.append(Problem("prefill", "measure prefills of at least two different amounts of prompt"))
    if not all(seconds > 0 for seconds in (*(one.seconds for one in decodes), *(one.seconds for one in prefills))):
        problems.append(Problem("seconds", "a measured time is above 0"))
    if problems:
        raise ConfigError(problems)


def _least(columns: Sequence[Values], seconds: Values) -> list[float]:
    """Coefficients from 0 on; a column that depends on those before it gets 0."""
    scaled = np.stack([column / seconds for column in columns], axis=1)
    scaled /= np.maximum(np.linalg.norm(scaled, axis=0), 1e-300)
    sizes = [float(np.linalg.norm(column / seconds)) for column in columns]
    kept: list[int] = []
    for place in range(len(columns)):
        # A column must say something of its own, a thousandth of it at least; more columns than rows never do.
        if len(kept) < len(seconds) and np.linalg.svd(scaled[:, [*kept, place]], compute_uv=False)[-1] > 1e-3:
            kept.append(place)
    found, _ = nnls(scaled[:, kept], np.ones_like(seconds))
    values = [0.0] * len(columns)
    for place, value in zip(kept, found, strict=True):
        values[place] = float(value) / sizes[place]
    return values


def _bends(batches: Values, seconds: Values) -> bool:
    levels = np.unique(batches)
    means = np.array([seconds[batches == level].mean() for level in levels])
    slopes = np.diff(means) / np.diff(levels)
    return bool(len(slopes) > 1 and slopes[-1] > CONVEX * max(float(slopes[0]), 0.0))
