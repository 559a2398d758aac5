"""A step model from measured load sweeps: the simulator is fitted to what a harness saw.

A sweep gives means and percentiles per load, not step times. So each candidate model is simulated under the same loads,
with the engine's own scheduler settings, and the one whose figures lie nearest (least squares of log ratios, outliers
damped) is taken. What the loads cannot tell apart is not fitted: with prompts of one length, a prefill's fixed time is
that of a decode step, and the cost of context is part of the cost of a sequence.

Two things that are not the engine's are fitted beside it: `overhead_s`, which network, HTTP and tokenizer add to each
request, and `clients`, the most requests that the load generator keeps in flight (found only where it fell behind its
schedule).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from capacity.arrivals import Arrivals, Immediate, Scattered
from capacity.scheduler import Scheduler
from capacity.simulate import Result, run
from capacity.step_model import DecodeCost, PrefillCost, Setting, StepModel
from capacity.workload import Clients, Group, Spread, Synthetic
from core.errors import ConfigError, Problem

Values = NDArray[np.float64]

# How much each figure counts in a fit: rates are what a plan needs most and are measured best.
WEIGHTS = {
    "req_s": 3.0,
    "tok_s": 3.0,
    "e2e_mean": 2.0,
    "itl_mean": 2.0,
    "ttft_mean": 1.0,
    "e2e_p50": 1.0,
    "e2e_p99": 1.0,
    "e2e_p90": 0.5,
    "ttft_p50": 0.5,
    "ttft_p90": 0.3,
    "ttft_p99": 0.3,
}
# A generator that sends less than this share of the wanted rate has run out of clients.
KEPT_UP = 0.95
# A tenth of a natural logarithm away from the first guess counts as much as this share of a figure's log ratio.
PRIOR = 0.02


@dataclass(frozen=True)
class Point:
    """One measured load: an open loop at `rate` requests per second, or `concurrency` clients in a closed loop.

    `measured` has figures by the names of `WEIGHTS`, in seconds and per second.
    """

    requests: int
    prompt_tokens: float
    output_tokens: float
    measured: Mapping[str, float]
    rate: float | None = None
    concurrency: int | None = None

    @property
    def kept_up(self) -> bool:
        """Whether the generator sent what it was to send."""
        return self.rate is None or self.measured["req_s"] >= KEPT_UP * self.rate


@dataclass(frozen=True)
class Calibration:
    """A fitted model, what is not the engine's, and the root mean square of the log ratios of the fit."""

    model: StepModel
    scheduler: Scheduler
    overhead_s: float
    clients: int | None
    residual: float


def predict(found: Calibration, point: Point, seeds: Sequence[int] = (1, 2, 3)) -> dict[str, float]:
    """The figures of a load, by the names of `WEIGHTS`: means over the seeds."""
    each = [_figures(run(_workload(found, point), found.scheduler, found.model, seed), found, point) for seed in seeds]
    return {name: float(np.mean([one[name] for one in each])) for name in each[0]}


def calibrate(
    points: Sequence[Point],
    scheduler: Scheduler,
    engine: Mapping[str, Setting],
    *,
    seeds: Sequence[int] = (1,),
) -> Calibration:
    """The model nearest to the points (at least two). `engine` is what they were measured with, kept in the model."""
    if len(points) < 2:
        raise ConfigError([Problem("points", f"{len(points)} measured loads; legal is at least 2")])
    bounded = not all(point.kept_up for point in points)
    start = np.log(_guess(points, bounded=bounded))

    def made(x: Values) -> Calibration:
        fixed, seq, token, hidden, overhead, *clients = np.exp(x).tolist()
        model = StepModel(DecodeCost(fixed, seq), PrefillCost(fixed, token, hidden_tokens=hidden), dict(engine))
        return Calibration(model, scheduler, overhead, max(round(clients[0]), 1) if clients else None, math.nan)

    def misses(x: Values) -> Values:
        candidate = made(x)
        parts = []
        for point in points:
            found = predict(candidate, point, seeds)
            parts += [
                weight * _log_ratio(found[name], point.measured[name])
                for name, weight in WEIGHTS.items()
                if name in point.measured
            ]
        return np.concatenate([parts, PRIOR * (x - start)])

    best = least_squares(misses, start, diff_step=0.01, loss="soft_l1", f_scale=0.2, max_nfev=40)
    figures = sum(len(set(point.measured) & set(WEIGHTS)) for point in points)
    return replace(made(best.x), residual=float(np.sqrt(np.mean(misses(best.x)[:figures] ** 2))))


def _log_ratio(found: float, measured: float) -> float:
    return math.log(max(found, 1e-9) / max(measured, 1e-9))


def _guess(points: Sequence[Point], *, bounded: bool) -> list[float]:
    """Fixed, per sequence, per prompt token, hidden tokens, overhead, and clients where the generator fell behind."""
    calm = min(points, key=_load)
    rates = [_rate(point) for point in points]
    busiest = points[int(np.argmax(rates))]
    step = _tpot(calm)
    # At the highest rate a third of the time goes to each of the fixed part, the sequences and the prompts.
    share = 1 / (3 * max(rates))
    found = [
        step,
        share / busiest.output_tokens,
        share / busiest.prompt_tokens,
        150.0,
        max(calm.measured.get("ttft_mean", step) - step, 0.1 * step),
    ]
    if bounded:
        late = [point for point in points if not point.kept_up]
        found.append(float(np.mean([point.measured["req_s"] * point.measured["e2e_mean"] for point in late])))
    return found


def _load(point: Point) -> float:
    return point.rate if point.rate is not None else float(point.concurrency or 1)


def _rate(point: Point) -> float:
    if "req_s" in point.measured:
        return point.measured["req_s"]
    return point.measured["tok_s"] / point.output_tokens


def _tpot(point: Point) -> float:
    if "itl_mean" in point.measured:
        return point.measured["itl_mean"]
    return (point.measured["e2e_mean"] - point.measured["ttft_mean"]) / max(point.output_tokens - 1, 1)


def _workload(found: Calibration, point: Point) -> Synthetic:
    arrivals: Arrivals = Immediate() if point.rate is None else Scattered(point.rate)
    in_flight = point.concurrency if point.rate is None else found.clients
    clients = None if in_flight is None else Clients(in_flight, think_s=found.overhead_s)
    return Synthetic(
        arrivals, point.requests, [Group("all", 1, Spread(point.prompt_tokens, point.output_tokens))], clients=clients
    )


def _figures(result: Result, found: Calibration, point: Point) -> dict[str, float]:
    if point.rate is None:
        # The closed loop's start, all clients at once, is not what a harness reports.
        result = replace(result, warmup=0.25)
    ttft = result.values("ttft") + found.overhead_s
    e2e = result.values("e2e") + found.overhead_s
    tpot = result.values("tpot")
    figures = {
        "req_s": len(result) / (result.duration_s + found.overhead_s),
        "itl_mean": float(tpot.mean()) if len(tpot) else 0.0,
        "ttft_mean": float(ttft.mean()),
        "e2e_mean": float(e2e.mean()),
    }
    if point.rate is None:
        # Little's law: what N clients that never pause get through.
        figures["req_s"] = (point.concurrency or 1) / figures["e2e_mean"]
    figures["tok_s"] = figures["req_s"] * point.output_tokens
    for name, values in (("ttft", ttft), ("e2e", e2e)):
        found_at = np.percentile(values, (50, 90, 99))
        figures |= {f"{name}_p{percent}": float(value) for percent, value in zip((50, 90, 99), found_at, strict=True)}
    return figures
