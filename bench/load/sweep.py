"""Rates one after another, up to where the server no longer keeps up: the knee."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.load.measures import Run
from bench.load.order import Order, Outcome, carry_out

# Answers over arrivals in the second half of a run, below which requests pile up.
KEPT = 0.9
# Share within the targets, and share answered, that a rate must keep.
GOOD, ANSWERED = 0.9, 0.99
STEPS, HALVINGS = 12, 3


@dataclass(frozen=True)
class Tried:
    """One rate: what came of it, and why it is beyond the knee; empty where it is not."""

    rate: float
    outcome: Outcome
    beyond: str


def swept(
    order: Order,
    *,
    start: float | None,
    rates: Sequence[float] | None,
    tell: Callable[[int], None] | None = None,
    measure: Callable[[Order, Callable[[int], None] | None], Outcome] = carry_out,
) -> Outcome:
    """The document of the highest rate that is kept, with all of them in `sweep` and the knee in `knee`.

    With `rates` these are run; else `start` is doubled until a rate is not kept, and the knee is narrowed down by
    halving (to a twelfth of it). Where not even the first is kept, the document is that one's.
    """
    tried: list[Tried] = []

    def attempt(rate: float) -> bool:
        arriving = replace(order.arriving, rate=rate)
        # Each rate its own texts: what one run left in a prefix cache is no help to the next.
        found = measure(replace(order, arriving=arriving, salt=order.salt + 1000 * len(tried)), tell)
        tried.append(Tried(rate, found, beyond(found)))
        return not tried[-1].beyond

    if rates is not None:
        for rate in rates:
            attempt(rate)
    else:
        _search(start or 1.0, attempt)
    tried.sort(key=lambda one: one.rate)
    kept = [one for one in tried if not one.beyond]
    best = kept[-1] if kept else tried[0]
    lost = [one for one in tried if one.beyond and one.rate > best.rate] or [one for one in tried if one.beyond]
    document = dict(best.outcome.document)
    document["sweep"] = [_row(one) for one in tried]
    document["knee"] = {
        "rate_rps": best.rate if kept else None,
        "next_rate_rps": lost[0].rate if lost else None,
        "because": lost[0].beyond if lost else "every rate that was tried is kept",
    }
    return Outcome(document, best.outcome.runs)


def _search(start: float, attempt: Callable[[float], bool]) -> None:
    rate, low = start, None
    for _ in range(STEPS):
        if not attempt(rate):
            break
        low, rate = rate, rate * 2
    else:
        return
    if low is None:
        return
    high = rate
    for _ in range(HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if attempt(middle) else (low, middle)


def beyond(outcome: Outcome) -> str:
    """Why a rate is more than the server, or the generator, keeps; empty where it is kept."""
    document: dict[str, Any] = outcome.document
    if not document["valid"]:
        return "the generator could not keep up"
    if document["success"] < ANSWERED:
        return f"only {document['success']:.1%} were answered"
    share = min(kept(run) for run in outcome.runs)
    if share < KEPT:
        return f"answers are {share:.0%} of the arrivals: requests pile up"
    if document["goodput"] is not None and document["goodput"] < GOOD:
        return f"only {document['goodput']:.1%} are within the targets"
    return ""


def kept(run: Run) -> float:
    """Answers over arrivals in the second half of the schedule; 1 where both are too few to tell."""
    due, last = run.found["due"], run.found["last"]
    middle, end = float(due[0] + due[-1]) / 2, float(due[-1])
    arrived = int(((due >= middle) & (due <= end)).sum())
    with np.errstate(invalid="ignore"):
        answered = int(((last >= middle) & (last <= end) & run.answered).sum())
    # Two standard deviations of a Poisson count are no pile.
    return 1.0 if arrived - answered <= 2 * np.sqrt(arrived) else answered / arrived


def _row(one: Tried) -> dict[str, object]:
    document: dict[str, Any] = one.outcome.document
    keys = ("requests", "throughput_rps", "throughput_tok_s", "ttft", "tpot", "e2e", "goodput", "success", "valid")
    return {"rate": one.rate, **{key: document[key] for key in keys}, "kept": not one.beyond, "because": one.beyond}
