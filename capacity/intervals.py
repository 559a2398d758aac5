"""How sure a simulated mean or percentile is: intervals from one run whose requests depend on each other.

The run is cut into consecutive batches long enough to be nearly independent. The mean's interval is that of batch means
(Student's t over the batches), widened by what correlation is left between neighbours. A percentile's interval is by
sectioning: the percentile of the whole run, with the spread of the batches' percentiles around it (Asmussen and Glynn,
Stochastic Simulation, III.3 to III.5).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

# Few and long: of 5 to 50, ten held the exact mean of queues at load 0.95 nearest to 95 % of the time.
BATCHES = 10
# Student's t at 97.5 %, 9 degrees of freedom.
T_9 = 2.2621571627409915
# A batch needs this many values beyond a percentile before its own percentile means something.
BEYOND = 5


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval; no interval where the run is too short for one."""

    value: float
    low: float | None
    high: float | None

    @property
    def relative(self) -> float | None:
        """Half the interval's width over the value; None without an interval or for 0."""
        if self.low is None or self.high is None or self.value == 0:
            return None
        return (self.high - self.low) / 2 / abs(self.value)


def mean_of(values: Values) -> Estimate:
    """Mean of at least one value in order of arrival."""
    mean = float(values.mean())
    size = len(values) // BATCHES
    if size < BEYOND:
        return Estimate(mean, None, None)
    parts = values[len(values) - size * BATCHES :].reshape(BATCHES, size).mean(axis=1)
    half = T_9 * float(np.sqrt(parts.var(ddof=1) / BATCHES)) * _widening(parts)
    return Estimate(mean, mean - half, mean + half)


def percentile_of(values: Values, percent: float) -> Estimate:
    """A percentile (0 to 100) of at least one value in order of arrival."""
    return percentiles_of(values, (percent,))[0]


def percentiles_of(values: Values, percents: Sequence[float]) -> list[Estimate]:
    """Several percentiles of at least one value in order of arrival."""
    ordered = np.sort(values)
    size = len(values) // BATCHES
    parts = np.sort(values[len(values) - size * BATCHES :].reshape(BATCHES, size), axis=1)
    return [_sectioned(ordered, parts, percent) for percent in percents]


def _sectioned(ordered: Values, parts: Values, percent: float) -> Estimate:
    whole = float(_at_rank(ordered, percent))
    if parts.shape[1] * min(percent, 100 - percent) < BEYOND * 100:
        return Estimate(whole, None, None)
    each = _at_rank(parts, percent)
    spread = float(np.sqrt(((each - whole) ** 2).sum() / (BATCHES * (BATCHES - 1))))
    half = T_9 * spread * _widening(each)
    return Estimate(whole, whole - half, whole + half)


def _at_rank(ordered: Values, percent: float) -> Values:
    """The percentile of values sorted along their last axis, between neighbours in a straight line as numpy's."""
    place = (ordered.shape[-1] - 1) * percent / 100
    low = int(place)
    high = min(low + 1, ordered.shape[-1] - 1)
    between: Values = ordered[..., low] + (ordered[..., high] - ordered[..., low]) * (place - low)
    return between


def _widening(parts: Values) -> float:
    """Factor for a positive lag-1 correlation of the batches, taken as that of a first-order autoregression."""
    centred = parts - parts.mean()
    total = float((centred**2).sum())
    if total == 0:
        return 1.0
    lag = float((centred[1:] * centred[:-1]).sum()) / total
    # The estimate of a correlation that is 0 lies at -1 / BATCHES on average.
    lag = min(max(lag + 1 / len(parts), 0.0), 0.8)
    return float(np.sqrt((1 + lag) / (1 - lag)))
