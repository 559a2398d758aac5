"""A timed window in front of one server, closing also while the server is busy: a queue of windows, its mean to 0.5 %.

Windows follow each other: a gap to the first arrival, then the window. A window's length and its batch hang together,
so this is no textbook queue; its recursion is iterated on a lattice. Requests are weighted by their window's batch.
Percentiles are simulated, with a fixed seed.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc, pdtrc

from capacity.lattice import spread, waiting_time
from capacity.service import Numbers, ServiceTime
from capacity.window import Window, window

_DRAWS = 8_000_000
_MOST_PASSES = 300
CELLS = 1 << 13

Transform = NDArray[np.complex128]


@dataclass(frozen=True)
class ClosedWindow:
    """Windows of at most `limit` requests and `max_wait_s`, Poisson arrivals at `arrival_rate`, one server."""

    service: ServiceTime
    arrival_rate: float
    limit: int
    max_wait_s: float

    @cached_property
    def window(self) -> Window:
        """The batches, whatever the server does."""
        return window(self.arrival_rate, self.limit, self.max_wait_s)

    @property
    def mean_batch(self) -> float:
        """Mean batch."""
        return self.window.mean_batch

    @property
    def utilization(self) -> float:
        """λ · E[S] / E[B]."""
        return self.service.utilization(self.arrival_rate, self.mean_batch)

    @property
    def stable(self) -> bool:
        """Whether windows are done faster than they close; a short wait makes small batches."""
        return self.utilization < 1

    @property
    def accumulation_s(self) -> float:
        """Mean wait of a request for its window to close."""
        return self.window.accumulation_s

    @property
    def service_s(self) -> float:
        """Mean service time that a request sees."""
        return self.window.request_service_mean(self.service)

    @property
    def response_s(self) -> float:
        """Mean time from arrival to the end of service."""
        return self.accumulation_s + self.wait_s + self.service_s

    @cached_property
    def wait_s(self) -> float:
        """Mean wait of a request from the close of its window until service; `inf` where unstable."""
        if not self.stable:
            return math.inf
        return self._mean_wait(2 * self._reach() / CELLS)

    def _reach(self) -> float:
        """A time that no wait is longer than: heavy traffic makes waits exponential with rate 2 · drift / variance."""
        rate, k, full = self.arrival_rate, self.limit - 1, self.window.full
        length = (1 - full) * self.max_wait_s + full * self.window.fill_s
        squared = (1 - full) * self.max_wait_s**2 + k * (k + 1) / rate**2 * float(pdtrc(k + 1, rate * self.max_wait_s))
        service = self.window.service_mean(self.service)
        spread_service = math.sqrt(max(self.window.service_second_moment(self.service) - service**2, 0.0))
        variance = (math.sqrt(max(squared - length**2, 0.0)) + spread_service) ** 2 + 1 / rate**2
        drift = length + 1 / rate - service
        return length + 25 / rate + self.service.seconds(self.limit) + 14 * variance / drift

    def _mean_wait(self, step: float) -> float:
        """Iterates V -> max(0, V - A) + S, V the work left when a window has closed, until the mean stands still.

        S and A of one window hang together: a full window has its own length and its own service.
        """
        grid = _grid(step)
        short, full = self._services(step)
        gap = np.fft.fft(_cells(grid - -np.expm1(-self.arrival_rate * grid) / self.arrival_rate, step))
        lengths = (spread(np.array([self.max_wait_s]), np.array([1.0]), step, CELLS), self._filled(step))
        timeout, filled = (np.conj(gap * np.fft.fft(length)) for length in lengths)
        share = self.window.full
        services, gaps = short * (1 - share) + full * share, timeout * (1 - share) + filled * share
        # As if they were independent: near enough to start from.
        start = waiting_time(_real(services * gaps), step).shares
        waits = [np.concatenate([start, np.zeros(CELLS // 2)])] * 2
        weight = self.limit * share / self.mean_batch
        places = np.arange(CELLS // 2) * step
        means = [math.inf]
        for _ in range(_MOST_PASSES):
            work = (1 - share) * np.fft.fft(waits[0]) * short + share * np.fft.fft(waits[1]) * full
            waits = [_nothing_below_0(np.fft.ifft(work * part).real) for part in (timeout, filled)]
            # A request is in a full window more often than a window is full.
            mean = float(((1 - weight) * waits[0] + weight * waits[1])[: CELLS // 2] @ places)
            means.append(mean)
            if abs(mean - means[-2]) < 1e-7 * mean + 1e-12:
                break
        return _limit(means)

    def _services(self, step: float) -> tuple[Transform, Transform]:
        """Service of windows that timed out and of full ones."""
        times = self.service.fixed_s + self.service.request_s * np.arange(1.0, self.limit + 1)
        shares = self.window.sizes[:-1]
        total = float(shares.sum())
        short = (
            spread(times[:-1], shares / total, step, CELLS) if total > 0 else spread(times[:1], np.ones(1), step, CELLS)
        )
        return np.fft.fft(short), np.fft.fft(spread(times[-1:], np.ones(1), step, CELLS))

    def _filled(self, step: float) -> Numbers:
        """Time to fill of windows that fill in time."""
        k, full = self.limit - 1, self.window.full
        if k == 0 or full < 1e-12:
            return spread(np.array([0.0 if k == 0 else self.max_wait_s]), np.array([1.0]), step, CELLS)
        grid = _grid(step)
        inside = np.minimum(grid, self.max_wait_s)
        scaled = self.arrival_rate * inside
        integral = inside * gammainc(k, scaled) - k / self.arrival_rate * gammainc(k + 1, scaled)
        return _cells(integral / full + np.maximum(grid - self.max_wait_s, 0.0), step)

    def response_quantile(self, share: float) -> float:
        """The response time that a `share` of requests does not exceed, simulated (about 0.5 % of error at 0.99)."""
        if not self.stable:
            return math.inf
        generator = np.random.default_rng(20_240_117)
        rate, k = self.arrival_rate, self.limit - 1
        mean = rate * self.max_wait_s
        columns = int(min(k, mean + 10 * math.sqrt(mean) + 20))
        windows = max(20_000, min(2_000_000, _DRAWS // (columns + 1)))
        gaps = generator.exponential(1 / rate, windows)
        arrivals = np.cumsum(generator.exponential(1 / rate, (windows, columns)), axis=1)
        inside = arrivals <= self.max_wait_s
        count = inside.sum(axis=1)
        full = count >= k
        length = np.where(full, arrivals[:, k - 1], self.max_wait_s) if 0 < k <= columns else np.zeros(windows)
        if k > columns:
            length = np.full(windows, self.max_wait_s)
        service = self.service.fixed_s + self.service.request_s * (1 + count)
        walk = np.concatenate([[0.0], np.cumsum(service[:-1] - (gaps + length)[1:])])
        wait = walk - np.minimum.accumulate(walk)
        end = length + wait + service
        first = end
        others = (end[:, None] - arrivals)[inside]
        return float(np.quantile(np.concatenate([first, others]), share))


def _real(transform: Transform) -> Numbers:
    found: Numbers = np.maximum(np.fft.ifft(transform).real, 0.0)
    found /= found.sum()
    return found


def _limit(means: list[float]) -> float:
    """Where a sequence that ends geometrically goes (Aitken)."""
    if len(means) < 4:
        return means[-1]
    first, second, last = means[-3:]
    change = (last - second) - (second - first)
    return last - (last - second) ** 2 / change if change else last


def _nothing_below_0(shares: Numbers) -> Numbers:
    """A wait: what would be below 0 is 0."""
    found = np.zeros(CELLS)
    found[: CELLS // 2] = np.maximum(shares[: CELLS // 2], 0.0)
    found[0] += 1 - found.sum()
    return found


def _grid(step: float) -> Numbers:
    return np.arange(CELLS // 2 + 1) * step


def _cells(integral: Numbers, step: float) -> Numbers:
    """Lattice probabilities of a value at or above 0 from the integral of P(value ≤ t) up to each lattice point.

    Each value is shared by its two neighbours, so that means are kept: near saturation they decide.
    """
    cells = np.zeros(CELLS)
    shares = np.maximum(np.diff(np.concatenate([[0.0], integral]), 2) / step, 0.0)
    cells[: len(shares)] = shares
    cells[len(shares) - 1] += max(0.0, 1 - float(shares.sum()))
    cells /= cells.sum()
    return cells
