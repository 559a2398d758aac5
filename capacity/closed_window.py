"""A timed window in front of one server, closing also while the server is busy: a GI/G/1 queue of windows, exact means.

Windows follow each other: a gap to the first arrival, then the window. A window's length and batch hang together, but
the batch in service and the gap of the next are of different windows, so the Lindley recursion holds. Requests are
weighted by their window's batch. Percentiles are simulated, with a fixed seed.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import gammainc

from capacity.lattice import CELLS, LatticeWait, spread, waiting_time
from capacity.service import Numbers, ServiceTime
from capacity.window import Window, window

_DRAWS = 20_000_000


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
        """Whether windows are done faster than they close. A short wait makes small batches and can upset a large limit."""
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
        # Busy periods lengthen as load nears 1; so does the lattice.
        mean = self.window.service_mean(self.service)
        reach = self.max_wait_s + 40 / self.arrival_rate + self.service.seconds(self.limit)
        reach += 20 * mean * min(1 / (1 - self.utilization), 1e4)
        step = 2 * reach / CELLS
        service = np.fft.fft(self._service_cells(step))
        gap = np.fft.fft(self._gap_cells(step))
        plain = np.conj(gap * np.fft.fft(self._length_cells(step, weighted=False)))
        found = waiting_time(_real(service * plain), step)
        weighted = np.conj(gap * np.fft.fft(self._length_cells(step, weighted=True)))
        # A request's window waits max(0, V − A) with V the wait and service of the window before.
        ahead = np.fft.fft(_padded(found)) * service
        late = _real(ahead * weighted)[: CELLS // 2]
        return float(np.arange(CELLS // 2) @ late) * step

    def _service_cells(self, step: float) -> Numbers:
        sizes = np.arange(1, self.limit + 1)
        times = self.service.fixed_s + self.service.request_s * sizes
        return spread(times, self.window.sizes, step)

    def _gap_cells(self, step: float) -> Numbers:
        grid = np.arange(CELLS // 2 + 1) * step
        return _from_integral(grid - (1 - np.exp(-self.arrival_rate * grid)) / self.arrival_rate, step)

    def _length_cells(self, step: float, *, weighted: bool) -> Numbers:
        """The window's length: its whole wait, or the time to fill; weighted by the batch where requests are counted."""
        k, full = self.limit - 1, self.window.full
        short = float(np.arange(1, self.limit) @ self.window.sizes[:-1]) / self.mean_batch if weighted else 1 - full
        filled = self.limit * full / self.mean_batch if weighted else full
        cells = spread(np.array([self.max_wait_s]), np.array([short]), step)
        if k == 0 or full <= 0:
            return spread(np.array([0.0 if k == 0 else self.max_wait_s]), np.array([1.0]), step)
        grid = np.arange(CELLS // 2 + 1) * step
        inside = np.minimum(grid, self.max_wait_s)
        shape, scaled = float(k), self.arrival_rate * inside
        integral = inside * gammainc(shape, scaled) - k / self.arrival_rate * gammainc(shape + 1, scaled)
        integral = integral / full + np.maximum(grid - self.max_wait_s, 0)
        return cells + filled * _from_integral(integral, step)

    def response_quantile(self, share: float) -> float:
        """The response time that a `share` of requests does not exceed, simulated (about 0.5 % of error at 0.99)."""
        if not self.stable:
            return math.inf
        generator = np.random.default_rng(20_240_117)
        rate, k = self.arrival_rate, self.limit - 1
        mean = rate * self.max_wait_s
        columns = int(min(k, mean + 10 * math.sqrt(mean) + 20))
        windows = max(20_000, min(400_000, _DRAWS // (columns + 1)))
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


def _real(transform: np.ndarray) -> Numbers:
    found: Numbers = np.maximum(np.fft.ifft(transform).real, 0.0)
    return found / found.sum()


def _padded(wait: LatticeWait) -> Numbers:
    return np.concatenate([wait.shares, np.zeros(CELLS - len(wait.shares))])


def _from_integral(integral: Numbers, step: float) -> Numbers:
    """Lattice probabilities of a value at or above 0 from ∫₀ˣ P(value ≤ t) dt on the lattice: the mean is kept."""
    shares = np.diff(np.concatenate([[0.0], integral, [2 * integral[-1] - integral[-2]]]), 2) / step
    cells = np.zeros(CELLS)
    cells[: len(shares)] = np.maximum(shares, 0.0)[: CELLS // 2]
    cells[CELLS // 2 - 1] += max(0.0, 1 - float(cells.sum()))
    return cells
