"""A batch window: the first request opens it, it closes at `limit` requests or after `wait_s`.

With N ~ Poisson(λ · wait) and k = limit - 1, the batch is min(limit, 1 + N). Exact for Poisson arrivals; what happens
while the server is busy is another matter (see `capacity.closed_window`).
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln, pdtrc

from capacity.service import Numbers, ServiceTime


@dataclass(frozen=True)
class Window:
    """Batches of a timed window, and how long a request waits for its window to close."""

    mean_batch: float
    second_moment: float
    """E[B²]: a random request sits in a batch of mean size E[B²] / E[B]."""
    full: float
    """Probability that the window closes because it is full."""
    fill_s: float
    """Mean time until full, given that it fills in time."""
    accumulation_s: float
    """Mean wait of a request until its window closes."""
    sizes: Numbers
    """Probability of batch 1, 2 … `limit`."""

    def service_mean(self, service: ServiceTime) -> float:
        """Mean service time of a batch."""
        return service.seconds(self.mean_batch)

    def request_service_mean(self, service: ServiceTime) -> float:
        """Mean service time seen by a request: larger batches hold more of them."""
        return service.seconds(self.second_moment / self.mean_batch)

    def service_second_moment(self, service: ServiceTime) -> float:
        """E[S²] of a batch."""
        fixed, request = service.fixed_s, service.request_s
        return fixed**2 + 2 * fixed * request * self.mean_batch + request**2 * self.second_moment


def window(arrival_rate: float, limit: int, wait_s: float) -> Window:
    """The window for Poisson arrivals at `arrival_rate` per second. `wait_s` may be infinite."""
    if limit < 1 or wait_s < 0 or arrival_rate <= 0:
        raise ValueError("a window needs a positive rate, a limit of at least 1 and a wait of at least 0")
    k = limit - 1
    if math.isinf(wait_s) or k == 0:
        sizes = np.zeros(limit)
        sizes[-1] = 1
        return Window(limit, limit**2, 1.0, k / arrival_rate, k / (2 * arrival_rate), sizes)
    mean = arrival_rate * wait_s
    counts = np.arange(k, dtype=float)
    below = _poisson(counts, mean)
    full = float(pdtrc(k - 1, mean))
    sizes = np.append(below, full)
    numbers = np.arange(1, limit + 1)
    mean_batch = float(numbers @ sizes)
    fill = k / arrival_rate * float(pdtrc(k, mean)) / full if full > 0 else wait_s
    timeout = wait_s / 2 * (1 + 1 / (counts + 1))
    delay = (limit * full * fill / 2 + float(((counts + 1) * below) @ timeout)) / mean_batch
    return Window(mean_batch, float(numbers**2 @ sizes), full, fill, delay, sizes)


def window_utilization(service: ServiceTime, arrival_rate: float, limit: int, wait_s: float) -> float:
    """λ · E[S] / E[B] of a window that closes also while the server is busy; unstable from 1 on."""
    return service.utilization(arrival_rate, window(arrival_rate, limit, wait_s).mean_batch)


def min_wait(service: ServiceTime, arrival_rate: float, limit: int, utilization: float = 1.0) -> float | None:
    """Shortest wait that brings the window's utilization down to `utilization`; None where no wait does."""
    if service.utilization(arrival_rate, limit) >= utilization:
        return None
    if service.utilization(arrival_rate, 1) <= utilization:
        return 0.0
    high = limit / arrival_rate
    while window_utilization(service, arrival_rate, limit, high) >= utilization:
        high *= 2
    return float(
        brentq(lambda wait: window_utilization(service, arrival_rate, limit, wait) - utilization, 0, high, xtol=1e-15)
    )


def surrogate_wait(service: ServiceTime, arrival_rate: float, found: Window) -> float:
    """Pollaczek-Khinchine for windows as if they closed at Poisson times. `inf` where unstable."""
    rate = arrival_rate / found.mean_batch
    load = rate * found.service_mean(service)
    return rate * found.service_second_moment(service) / (2 * (1 - load)) if load < 1 else math.inf


def _poisson(counts: Numbers, mean: float) -> Numbers:
    if mean == 0:
        return np.where(counts == 0, 1.0, 0.0)
    found: Numbers = np.exp(counts * math.log(mean) - mean - gammaln(counts + 1))
    return found
