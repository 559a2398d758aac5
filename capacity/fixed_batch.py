"""A server that takes full batches of B only (wait to fill): E_B/D/c, exact.

Poisson arrivals; every B-th completes a batch, so batches arrive as Erlang-B, far more regular than Poisson. Their mean
wait is that of M/D/(B·c). Percentiles come from the lattice (`capacity.lattice`), joined with the wait of each place in
the batch for its batch to fill, with which the batch's own wait is correlated.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import gammainc, gammaincc

from capacity.lattice import CELLS, LatticeWait, LogMoment, decay_rate, waiting_time
from capacity.queues import mdc_wait
from capacity.service import Numbers


@dataclass(frozen=True)
class FixedBatch:
    """Full batches of `batch`, each `service_s` long, on `servers` servers; one Poisson stream of `arrival_rate`."""

    arrival_rate: float
    service_s: float
    batch: int
    servers: int = 1

    @property
    def utilization(self) -> float:
        """Share of time that servers are busy."""
        return self.arrival_rate * self.service_s / (self.batch * self.servers)

    @property
    def stable(self) -> bool:
        """Whether batches are done faster than they come."""
        return self.utilization < 1

    @property
    def accumulation_s(self) -> float:
        """Mean wait for the batch to fill: (B - 1) / 2λ."""
        return (self.batch - 1) / (2 * self.arrival_rate)

    @cached_property
    def wait_s(self) -> float:
        """Mean wait of a full batch for a server; `inf` where unstable."""
        if not self.stable:
            return math.inf
        return mdc_wait(self.arrival_rate, self.service_s, self.batch * self.servers)

    @property
    def response_s(self) -> float:
        """Mean time from arrival to the end of service."""
        return self.wait_s + self.accumulation_s + self.service_s

    @cached_property
    def _lattice(self) -> LatticeWait:
        """The batch's wait for a server. Servers take batches in turn, so each sees every `servers`-th batch."""
        phases = self.batch * self.servers
        drift = self.service_s - phases / self.arrival_rate
        theta = decay_rate(drift, LogMoment(phases, self.arrival_rate, self.service_s), self.service_s)
        reach = self.service_s + 36 / theta
        step = 2 * reach / CELLS
        return waiting_time(_increments(phases, self.arrival_rate, self.service_s, step), step)

    def response_quantile(self, share: float) -> float:
        """The response time that a `share` of requests does not exceed; `inf` where unstable."""
        if not self.stable:
            return math.inf
        fill_only = self.fill_quantile(share)
        if self.wait_s < 1e-9 * self.service_s:
            return fill_only + self.service_s
        waits, shares = self._lattice.points()
        low, high = fill_only, fill_only + float(waits.max()) + self.service_s
        return self.service_s + _root(lambda time: self._at_most(time, waits, shares) - share, low, high)

    def fill_quantile(self, share: float) -> float:
        """The time to fill that a `share` of requests does not exceed: place j waits Erlang(B - j)."""
        if share <= 1 / self.batch:
            return 0.0
        left = np.arange(1, self.batch)

        def at_most(time: float) -> float:
            return (1 + float(gammainc(left, self.arrival_rate * time).sum())) / self.batch - share

        return _root(at_most, 0.0, (self.batch + 10 * math.sqrt(self.batch) + 20) / self.arrival_rate)

    def _at_most(self, time: float, waits: Numbers, shares: Numbers) -> float:
        """P(response - service ≤ time).

        Place j of B came X ~ Erlang(j) after the previous batch filled and Y ~ Erlang(B - j) before its own; with V the
        wait and service of the batch before on the same server, fill and wait are max(Y, V - X), and X, Y, V are
        independent. With several servers the batch before is `servers` batches back, and X longer by whole batches.
        """
        places = np.arange(1, self.batch + 1)
        filled = np.ones(self.batch)
        if self.batch > 1:
            filled[:-1] = gammainc(self.batch - places[:-1], self.arrival_rate * time)
        passed = places + (self.servers - 1) * self.batch
        ahead = self.arrival_rate * np.maximum(waits + self.service_s - time, 0.0)
        # X ≥ V - time: fewer than `passed` arrivals in V - time.
        free = gammaincc(passed[:, None], ahead[None, :]) @ shares
        return float(filled @ free) / self.batch


def _increments(phases: int, rate: float, service_s: float, step: float) -> Numbers:
    """Lattice probabilities of service - gap, the gap an Erlang(`phases`, `rate`); longer gaps count as the longest."""
    half = CELLS // 2
    # The increments from the largest down, each with the gaps half a step around it.
    steps = np.arange(half - 1, -half - 1, -1)
    past = np.maximum(service_s - (steps - 0.5) * step, 0.0)
    increments = np.empty(CELLS)
    increments[steps % CELLS] = np.diff(gammainc(phases, rate * past), prepend=0.0)
    increments[half] += 1 - increments.sum()
    return increments


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function crosses 0; `high` is moved up where it lies too low."""
    for _ in range(200):
        if function(high) >= 0:
            break
        high = 2 * high + 1e-9
    for _ in range(60):
        middle = (low + high) / 2
        if high - low < 1e-7 * high:
            break
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2
