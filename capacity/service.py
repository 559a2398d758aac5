"""Service time of a batch, T(B) = fixed + request · B, and the batch sizes that follow from it.

The model is that of batched inference texts (weights are read once per pass, the rest grows with the batch). It holds
for a decode step up to the batch where decode turns compute-bound; beyond, measured times are convex and the fit is
too low.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class ServiceTime:
    """Seconds for one pass over a batch: `fixed_s` per pass and `request_s` per request in it."""

    fixed_s: float
    request_s: float

    def __post_init__(self) -> None:
        if not (self.fixed_s >= 0 and self.request_s >= 0 and self.fixed_s + self.request_s > 0):
            raise ValueError("a service time needs a fixed part or a part per request, and neither below 0")

    def seconds(self, batch: float) -> float:
        """T(B); `batch` may be a mean, because the model is linear."""
        return self.fixed_s + self.request_s * batch

    def rate(self, batch: float) -> float:
        """Requests per second of a server that is never idle: B / T(B), which tends to 1 / `request_s`."""
        return batch / self.seconds(batch)

    def utilization(self, arrival_rate: float, batch: float) -> float:
        """λ · T(B) / B: the share of time a server is busy that only takes batches of B."""
        return arrival_rate * self.seconds(batch) / batch

    def doubling_gain(self, batch: float) -> tuple[float, float]:
        """What a batch twice as large gives: the factor on throughput and the factor on service time."""
        latency = self.seconds(2 * batch) / self.seconds(batch)
        return 2 / latency, latency

    def batch_of_doubling_gain(self, gain: float) -> float:
        """The batch whose doubling multiplies throughput by `gain` (between 1 and 2)."""
        if not 1 < gain < 2 or not self.request_s:
            raise ValueError("a gain lies between 1 and 2, and needs a time per request")
        return self.fixed_s * (2 - gain) / (2 * self.request_s * (gain - 1))


@dataclass(frozen=True)
class ServiceFit:
    """A service time fitted to measurements, with what speaks against it."""

    service: ServiceTime
    residuals_s: tuple[float, ...]
    """Measured minus fitted, in the order of the measurements."""
    relative_error: float
    """Largest residual as a share of its measurement."""
    largest_batch: int
    """Beyond this batch the fit is an extrapolation."""
    convex: bool
    """The last measured slope is over 1.25 times the first: the linear model underrates larger batches."""


def fit_service(batches: Sequence[int], seconds: Sequence[float]) -> ServiceFit:
    """Least relative squares of T(B) = fixed + request · B, neither below 0.

    Raises ValueError for fewer than two different batches, and where times are not positive.
    """
    x, y = np.array(batches, dtype=float), np.array(seconds, dtype=float)
    if len(x) != len(y) or len(set(batches)) < 2 or (y <= 0).any() or (x < 1).any():
        raise ValueError("a fit needs positive times of at least two different batches")
    columns = np.stack([1 / y, x / y], axis=1)
    fixed, request = np.linalg.lstsq(columns, np.ones(len(y)), rcond=None)[0]
    if request < 0:
        fixed, request = float((1 / y).sum() / (1 / y**2).sum()), 0.0
    if fixed < 0:
        fixed, request = 0.0, float((x / y).sum() / (x**2 / y**2).sum())
    residuals = y - fixed - request * x
    order = np.argsort(x, kind="stable")
    levels = np.unique(x)
    means = np.array([y[order][x[order] == level].mean() for level in levels])
    slopes = np.diff(means) / np.diff(levels)
    return ServiceFit(
        ServiceTime(float(fixed), float(request)),
        tuple(residuals.tolist()),
        float(np.abs(residuals / y).max()),
        int(x.max()),
        bool(len(slopes) > 1 and slopes[-1] > 1.25 * max(slopes[0], 0.0) and slopes[-1] > 0),
    )


def exact(value: float) -> Fraction:
    """The short fraction that a decimal such as 0.08 stands for, so that integer rules do not hang on its last bit."""
    return Fraction(value).limit_denominator(10**12)


def stable_batch(service: ServiceTime, arrival_rate: float) -> float:
    """λ · fixed / (1 - λ · request): at this real batch, throughput equals the arrival rate. `inf` where none does."""
    room = 1 - arrival_rate * service.request_s
    return arrival_rate * service.fixed_s / room if room > 0 else math.inf


def min_stable_batch(service: ServiceTime, arrival_rate: float) -> int | None:
    """Smallest batch whose throughput is above the arrival rate; None where no batch is enough.

    Throughput must exceed the rate, so a whole number x becomes x + 1: floor(x) + 1, not ceil(x).
    """
    rate = exact(arrival_rate)
    room = 1 - rate * exact(service.request_s)
    return None if room <= 0 else math.floor(rate * exact(service.fixed_s) / room) + 1


def min_target_batch(service: ServiceTime, arrival_rate: float, target: float) -> int | None:
    """Smallest batch whose utilization λ·T(B)/B is at most `target`; None where none is.

    The target is a choice, the stable batch a limit: they are different numbers.
    """
    if not 0 < target <= 1:
        raise ValueError("a target utilization lies above 0 and at most at 1")
    if target == 1:
        return min_stable_batch(service, arrival_rate)
    rate = exact(arrival_rate)
    room = exact(target) - rate * exact(service.request_s)
    return None if room <= 0 else max(1, math.ceil(rate * exact(service.fixed_s) / room))


def min_replicas(
    service: ServiceTime, arrival_rate: float, batch: int, *, passes: float = 1, utilization: float = 1.0
) -> int:
    """Servers for an arrival rate where a request takes `passes` passes (its output tokens) in batches of `batch`.

    At `utilization` 1 this is the bound that no fleet can go below, not a fleet to run.
    """
    per_request = exact(passes) * (exact(service.fixed_s) + exact(service.request_s) * batch) / batch
    return max(1, math.ceil(exact(arrival_rate) * per_request / exact(utilization)))
