"""`forebay plan batch` as a document: rows, recommendations, and advice codes with their reasons."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from capacity.batching import (
    CENTILE,
    Load,
    Method,
    Queue,
    Tradeoff,
    best_batch,
    knee,
    max_batch_slo,
    minimums,
    pareto,
)
from capacity.service import min_replicas, min_stable_batch
from capacity.window import min_wait

UNDERUSED, OVERLOADED = 0.5, 0.85

# What each advice code means; the texts' operating rules, with the thresholds of their decision table.
ADVICE = {
    "infeasible": "no batch is stable: λ · t_req ≥ 1, one server cannot do it; add replicas or a faster engine",
    "unstable": "arrivals outrun the server at this batch: a bigger batch or more replicas",
    "batch_above_limit": "the smallest stable batch is above the largest one searched: raise it or add replicas",
    "window_unstable": "the window closes on batches too small for the arrival rate: wait longer, or fill while busy",
    "slo_missed": "p99 is above the objective: a smaller batch or more replicas",
    "underused": "utilization is under 0.5: fewer replicas or a smaller batch would do",
    "overloaded": "utilization is over 0.85: add replicas before traffic grows",
    "work_conserving": "do not wait for a batch while the server is idle: taking what is there is faster at every load",
    "surrogate_unfit": "batches do not arrive as a Poisson stream; decide by method fixed or work-conserving",
    "poisson": "all of this is for Poisson arrivals; bursty traffic has longer tails: simulate a trace",
}


@dataclass(frozen=True)
class Ask:
    """What to plan: the load, the batches to show, the limits to search within."""

    load: Load
    batches: Sequence[int]
    max_batch: int = 512
    target_utilization: float = 0.75
    slo_p99_s: float | None = None
    output_tokens: int | None = None
    """Passes per request; with it rows count the replicas that the arrival rate needs."""


def plan_batch(ask: Ask) -> dict[str, Any]:
    """The document. Times in seconds; what is infinite is None."""
    load = ask.load
    stable, at_target = minimums(load, ask.max_batch, ask.target_utilization)
    best = best_batch(load, ask.max_batch)
    document: dict[str, Any] = {
        "method": load.method,
        "min_batch_stable": stable,
        "min_batch_target": at_target,
        "best_batch": best,
        "target_utilization": ask.target_utilization,
        "max_batch": ask.max_batch,
        "feasible": min_stable_batch(load.service, load.arrival_rate) is not None,
    }
    if ask.slo_p99_s is not None:
        document["slo_p99_s"] = ask.slo_p99_s
        document["max_batch_slo"] = max_batch_slo(load, ask.max_batch, ask.slo_p99_s)
    if load.max_wait_s is not None:
        document["max_wait_s"] = load.max_wait_s
    document["rows"] = [_row(ask, batch) for batch in ask.batches]
    document["objectives"] = _objectives(ask, best, document.get("max_batch_slo"))
    document |= _curve(ask)
    document["recommended"] = _recommended(ask)
    document["advice"] = _advice(ask, document)
    return document


def _row(ask: Ask, batch: int) -> dict[str, Any]:
    load = ask.load
    queue = load.queue(batch)
    row: dict[str, Any] = {
        "batch": batch,
        "stable": queue.stable,
        "utilization": queue.utilization,
        "throughput_rps": load.service.rate(queue.mean_batch if load.max_wait_s is not None else batch),
        "wait_s": _finite(queue.wait_s),
        "accumulation_s": queue.accumulation_s,
        "service_s": queue.service_s,
        "response_s": _finite(queue.response_s),
        "in_system": _finite(load.arrival_rate * queue.response_s),
    }
    if load.max_wait_s is not None:
        row["mean_batch"] = queue.mean_batch
        row["min_wait_s"] = min_wait(load.service, load.arrival_rate, batch)
        row["min_wait_target_s"] = min_wait(load.service, load.arrival_rate, batch, ask.target_utilization)
    if ask.slo_p99_s is not None:
        row["p99_s"] = _finite(queue.response_quantile(CENTILE))
    if ask.output_tokens is not None:
        tokens = ask.output_tokens
        row["replicas"] = min_replicas(load.service, load.arrival_rate, batch, passes=tokens)
        row["replicas_target"] = min_replicas(
            load.service, load.arrival_rate, batch, passes=tokens, utilization=ask.target_utilization
        )
    row["advice"] = _row_advice(ask, queue, row)
    return row


def _row_advice(ask: Ask, queue: Queue, row: dict[str, Any]) -> list[str]:
    load = ask.load
    if not queue.stable:
        full = load.service.utilization(load.arrival_rate, row["batch"]) < 1
        return ["window_unstable" if full else "unstable"]
    codes = []
    if ask.slo_p99_s is not None and (row["p99_s"] is None or row["p99_s"] > ask.slo_p99_s):
        codes.append("slo_missed")
    if queue.utilization < UNDERUSED:
        codes.append("underused")
    elif queue.utilization > OVERLOADED:
        codes.append("overloaded")
    return codes


def _objectives(ask: Ask, best: int | None, largest: int | None) -> dict[str, Any]:
    """Two ways to choose, which the texts mix up: the fastest answer, and the most work within the objective."""

    def at(batch: int | None) -> dict[str, Any] | None:
        if batch is None:
            return None
        queue = ask.load.queue(batch)
        return {
            "batch": batch,
            "response_s": _finite(queue.response_s),
            "p99_s": _finite(queue.response_quantile(CENTILE)),
            "throughput_rps": ask.load.service.rate(batch),
        }

    return {"latency": at(best), "throughput_within_slo": at(largest)}


def _curve(ask: Ask) -> dict[str, Any]:
    """The Pareto set of the asked batches, its knee, and where doubling gives less than a fifth."""
    points = []
    for batch in sorted(set(ask.batches)):
        queue = ask.load.queue(batch)
        if queue.stable:
            points.append(Tradeoff(batch, ask.load.service.rate(batch), queue.response_s))
    kept = pareto(points)
    bend = knee(kept)
    gain = ask.load.service.batch_of_doubling_gain(1.2) if ask.load.service.request_s else None
    return {
        "pareto": [asdict(point) for point in kept],
        "knee": bend.batch if bend else None,
        "doubling_gains_under_20_percent_from": gain,
    }


def _recommended(ask: Ask) -> dict[str, Any] | None:
    """What to run: taking what waits whenever the server is idle, with the smallest limit that is as good as any."""
    load = replace(ask.load, method="work-conserving", max_wait_s=None)
    batch = best_batch(load, ask.max_batch)
    if batch is None:
        return None
    queue = load.queue(batch)
    fixed = best_batch(replace(load, method="fixed"), ask.max_batch)
    waiting = replace(load, method="fixed").queue(fixed) if fixed is not None else None
    p99 = queue.response_quantile(CENTILE)
    return {
        "dispatch": "work-conserving",
        "max_batch": batch,
        "response_s": queue.response_s,
        "p99_s": p99,
        "meets_slo": None if ask.slo_p99_s is None else p99 <= ask.slo_p99_s,
        "instead_of": None
        if waiting is None
        else {
            "dispatch": "fixed",
            "batch": fixed,
            "response_s": waiting.response_s,
            "p99_s": waiting.response_quantile(CENTILE),
        },
    }


def _advice(ask: Ask, document: dict[str, Any]) -> list[dict[str, str]]:
    codes: list[str] = []
    if not document["feasible"]:
        codes.append("infeasible")
    elif document["min_batch_stable"] is None:
        codes.append("batch_above_limit")
    if ask.load.method == "surrogate":
        codes.append("surrogate_unfit")
    if document["recommended"] is not None and (
        ask.load.method != "work-conserving" or ask.load.max_wait_s is not None
    ):
        codes.append("work_conserving")
    codes += sorted({code for row in document["rows"] for code in row["advice"]})
    if document["feasible"]:
        codes.append("poisson")
    return [{"code": code, "text": ADVICE[code]} for code in codes]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def method_of(name: str) -> Method:
    """The method of this name. Raises ValueError."""
    if name == "surrogate":
        return "surrogate"
    if name == "fixed":
        return "fixed"
    if name == "work-conserving":
        return "work-conserving"
    raise ValueError(f"unknown method {name!r}")
