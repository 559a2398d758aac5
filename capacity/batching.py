"""Which batch to choose for one server of a Poisson stream: the queues of `capacity` side by side, and what they
advise.

Three rules of dispatch, each with its own arithmetic:

surrogate         full batches, taken as if they arrived as a Poisson stream of super-requests (Pollaczek-Khinchine).
                  The texts' formula; too large by 7 times and more, because full batches arrive far more regularly.
fixed             full batches, exactly (E_B/D/1).
work-conserving   up to B whenever the server is idle, exactly (embedded Markov chain).

With a maximum wait the rule is a timed window that closes also while the server is busy: by the surrogate, or exactly.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from capacity.bulk import Bulk, states_needed
from capacity.closed_window import ClosedWindow
from capacity.fixed_batch import FixedBatch
from capacity.queues import pollaczek_khinchine
from capacity.service import ServiceTime, min_stable_batch, min_target_batch
from capacity.window import Window, surrogate_wait, window

Method = Literal["surrogate", "fixed", "work-conserving"]
METHODS: tuple[Method, ...] = get_args(Method)
# A batch is as good as the best when its response is within this share of it.
TOLERANCE = 1e-3
CENTILE = 0.99


class Queue(Protocol):
    """A server under one rule of dispatch. Times in seconds, `inf` where it is unstable."""

    @property
    def stable(self) -> bool: ...
    @property
    def utilization(self) -> float: ...
    @property
    def mean_batch(self) -> float: ...
    @property
    def wait_s(self) -> float: ...
    @property
    def accumulation_s(self) -> float: ...
    @property
    def service_s(self) -> float: ...
    @property
    def response_s(self) -> float: ...
    def response_quantile(self, share: float) -> float: ...


@dataclass(frozen=True)
class Load:
    """What is planned for: a Poisson stream, a service time, a rule of dispatch."""

    arrival_rate: float
    service: ServiceTime
    method: Method = "work-conserving"
    max_wait_s: float | None = None

    def queue(self, batch: int) -> Queue:
        """The queue with batches of (at most) `batch`."""
        if self.method == "surrogate":
            return _Surrogate(self, batch)
        if self.max_wait_s is not None:
            return ClosedWindow(self.service, self.arrival_rate, batch, self.max_wait_s)
        if self.method == "fixed":
            return _Fixed(self, batch)
        return _Greedy(self, batch)


class _Surrogate:
    """Pollaczek-Khinchine on batches; percentiles as if the response were exponential, which the texts offer."""

    def __init__(self, load: Load, batch: int) -> None:
        self._load, self._batch = load, batch
        wait = math.inf if load.max_wait_s is None else load.max_wait_s
        self._window: Window = window(load.arrival_rate, batch, wait)

    @property
    def mean_batch(self) -> float:
        return self._window.mean_batch

    @property
    def utilization(self) -> float:
        return self._load.service.utilization(self._load.arrival_rate, self.mean_batch)

    @property
    def stable(self) -> bool:
        return self.utilization < 1

    @property
    def wait_s(self) -> float:
        if self._load.max_wait_s is not None:
            return surrogate_wait(self._load.service, self._load.arrival_rate, self._window)
        seconds = self._load.service.seconds(self._batch)
        return pollaczek_khinchine(self._load.arrival_rate / self._batch, seconds, seconds**2)

    @property
    def accumulation_s(self) -> float:
        return self._window.accumulation_s

    @property
    def service_s(self) -> float:
        return self._window.request_service_mean(self._load.service)

    @property
    def response_s(self) -> float:
        return self.wait_s + self.accumulation_s + self.service_s

    def response_quantile(self, share: float) -> float:
        return -math.log(1 - share) * self.response_s


class _Fixed(FixedBatch):
    """Full batches with a service time that follows from the batch."""

    def __init__(self, load: Load, batch: int) -> None:
        super().__init__(load.arrival_rate, load.service.seconds(batch), batch)

    @property
    def mean_batch(self) -> float:
        return float(self.batch)


class _Greedy(Bulk):
    """Work-conserving; `utilization` is that of full batches, because the busy share says nothing."""

    def __init__(self, load: Load, batch: int) -> None:
        super().__init__(load.service, load.arrival_rate, batch)

    @property
    def utilization(self) -> float:
        return self.service.utilization(self.arrival_rate, self.limit)

    @property
    def accumulation_s(self) -> float:
        return 0.0


def best_batch(load: Load, max_batch: int) -> int | None:
    """The smallest batch up to `max_batch` whose mean response is within 0.1 % of the least; None: none is stable."""
    if load.method == "work-conserving" and load.max_wait_s is None:
        return _best_greedy(load, max_batch)
    responses: dict[int, float] = {}
    for batch in range(_first_stable(load), max_batch + 1):
        queue = load.queue(batch)
        # Fill and service only grow with the batch: once they alone are worse than the best, all further are.
        if responses and queue.accumulation_s + queue.service_s > min(responses.values()) * (1 + TOLERANCE):
            break
        if queue.stable:
            responses[batch] = queue.response_s
        if load.max_wait_s is not None and _settled(load, batch, list(responses.values())):
            break
    least = min(responses.values(), default=math.inf)
    return next((batch for batch, response in sorted(responses.items()) if response <= least * (1 + TOLERANCE)), None)


def _settled(load: Load, batch: int, responses: list[float]) -> bool:
    """Windows: larger limits change nothing once none fills, or are worse three times in a row."""
    worse = len(responses) > 3 and min(responses[-3:]) > min(responses) * (1 + TOLERANCE)
    return worse or window(load.arrival_rate, batch, load.max_wait_s or 0.0).full < 1e-12


def _first_stable(load: Load) -> int:
    """No window and no rule makes a batch stable that is not stable when full."""
    return min_stable_batch(load.service, load.arrival_rate) or 1


def _best_greedy(load: Load, max_batch: int) -> int | None:
    """Work-conserving response never rises with the limit, so the smallest good one is found by halving."""
    low = min_stable_batch(load.service, load.arrival_rate)
    if low is None or low > max_batch:
        return None
    high = min(max_batch, max(low, states_needed(load.service, load.arrival_rate, max_batch)[0]))
    enough = load.queue(max_batch).response_s * (1 + TOLERANCE)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if load.queue(middle).response_s <= enough else (middle + 1, high)
    return low


def max_batch_slo(load: Load, max_batch: int, slo_s: float, share: float = CENTILE) -> int | None:
    """The largest batch up to `max_batch` whose response percentile keeps the objective; None where none does."""
    first = min_stable_batch(load.service, load.arrival_rate)
    if first is None or first > max_batch:
        return None

    def keeps(batch: int) -> bool:
        queue = load.queue(batch)
        return queue.stable and queue.response_quantile(share) <= slo_s

    if load.method == "work-conserving" and load.max_wait_s is None:
        return _largest_greedy(load, first, max_batch, keeps)
    last = _last_possible(load, first, max_batch, slo_s, share)
    if last < first:
        return None
    return next((batch for batch in range(last, first - 1, -1) if keeps(batch)), None)


def _largest_greedy(load: Load, first: int, max_batch: int, keeps: Callable[[int], bool]) -> int | None:
    """Work-conserving: percentiles fall with the limit and hardly rise again, so a few looks find the largest."""
    high = min(max_batch, max(first, states_needed(load.service, load.arrival_rate, max_batch)[0]))
    if keeps(high):
        return max_batch
    back = 1
    while high - back >= first and not keeps(high - back):
        back *= 2
    low = high - back
    if low < first:
        return first if keeps(first) else None
    return _last(keeps, low, high - back // 2 if back > 1 else high)


def _last_possible(load: Load, first: int, max_batch: int, slo_s: float, share: float) -> int:
    """The largest batch that could keep the objective if nobody waited for the server."""

    def could(batch: int) -> bool:
        if load.method == "fixed" and load.max_wait_s is None:
            found = FixedBatch(load.arrival_rate, load.service.seconds(batch), batch)
            return found.fill_quantile(share) + found.service_s <= slo_s
        queue = load.queue(batch)
        factor = -math.log(1 - share) if load.method == "surrogate" else 1.0
        return factor * (queue.accumulation_s + queue.service_s) <= slo_s

    if could(max_batch):
        return max_batch
    return _last(could, first - 1, max_batch)


def _last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The last number for which something holds that holds up to a point; it does not for `high`."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


@dataclass(frozen=True)
class Tradeoff:
    """One batch: requests per second it can do, and the mean response at the planned arrival rate."""

    batch: int
    throughput_rps: float
    response_s: float


def pareto(points: list[Tradeoff]) -> list[Tradeoff]:
    """Those that no other beats in throughput without being slower, by batch."""
    kept: list[Tradeoff] = []
    best = math.inf
    for point in sorted(points, key=lambda p: (-p.throughput_rps, p.response_s)):
        if point.response_s < best:
            kept.append(point)
            best = point.response_s
    return sorted(kept, key=lambda p: p.batch)


def knee(points: list[Tradeoff]) -> Tradeoff | None:
    """Where a Pareto curve bends most: the largest gain in throughput over the straight line between its ends."""
    if len(points) < 3:
        return points[-1] if points else None
    ends = (points[0], points[-1])
    width = ends[1].response_s - ends[0].response_s
    height = ends[1].throughput_rps - ends[0].throughput_rps
    if width <= 0 or height <= 0:
        return points[-1]

    def gain(point: Tradeoff) -> float:
        return (point.throughput_rps - ends[0].throughput_rps) / height - (
            point.response_s - ends[0].response_s
        ) / width

    return max(points, key=gain)


def minimums(load: Load, max_batch: int, target: float) -> tuple[int | None, int | None]:
    """(smallest stable batch, smallest batch at the target utilization), None beyond `max_batch`."""
    found = (
        min_stable_batch(load.service, load.arrival_rate),
        min_target_batch(load.service, load.arrival_rate, target),
    )
    stable, at_target = (batch if batch is not None and batch <= max_batch else None for batch in found)
    return stable, at_target
