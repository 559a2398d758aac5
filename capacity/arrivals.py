"""Arrival processes, and how bursty a recorded one is."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from core.errors import ConfigError, Problem

Times = NDArray[np.float64]


class Arrivals(Protocol):
    """A stationary stream of requests."""

    def times(self, count: int, rng: np.random.Generator) -> Times:
        """Ascending arrival times in seconds of `count` requests, from 0."""
        ...


@dataclass(frozen=True)
class Poisson:
    """Independent arrivals at `rate` per second."""

    rate: float

    def times(self, count: int, rng: np.random.Generator) -> Times:
        """Arrival times."""
        _positive("rate", self.rate)
        return np.cumsum(rng.exponential(1 / self.rate, count))


@dataclass(frozen=True)
class Scattered:
    """Poisson arrivals of a known number: scattered evenly over the time that they take at `rate` per second.

    What a load generator does that sends `rate * duration` requests within the duration.
    """

    rate: float

    def times(self, count: int, rng: np.random.Generator) -> Times:
        """Arrival times."""
        _positive("rate", self.rate)
        return np.sort(rng.random(count)) * (count / self.rate)


@dataclass(frozen=True)
class Constant:
    """One arrival each 1/`rate` seconds."""

    rate: float

    def times(self, count: int, rng: np.random.Generator) -> Times:  # noqa: ARG002 - nothing is random here
        """Arrival times."""
        _positive("rate", self.rate)
        return np.arange(count) / self.rate


@dataclass(frozen=True)
class Gamma:
    """Independent gamma gaps at `rate` per second, coefficient of variation `cv`: 1 is Poisson, 1/sqrt(k) Erlang-k."""

    rate: float
    cv: float = 2.0

    def times(self, count: int, rng: np.random.Generator) -> Times:
        """Arrival times."""
        _positive("rate", self.rate)
        _positive("cv", self.cv)
        shape = 1 / self.cv**2
        return np.cumsum(rng.gamma(shape, 1 / (shape * self.rate), count))


@dataclass(frozen=True)
class Mmpp:
    """A Markov-modulated Poisson process of two states: calm, and bursts `ratio` times as fast, `rate` on average.

    `burst_s` and `calm_s` are the mean lengths of the two states. The index of dispersion of counts over a long time is
    1 + 2 (r1 - r0)^2 pi0 pi1 / (rate (1/burst_s + 1/calm_s)), r the rates and pi the shares of time of the states.
    """

    rate: float
    ratio: float = 5.0
    burst_s: float = 10.0
    calm_s: float = 40.0

    def times(self, count: int, rng: np.random.Generator) -> Times:
        """Arrival times; the first state is drawn by its share of time."""
        for name in ("rate", "ratio", "burst_s", "calm_s"):
            _positive(name, getattr(self, name))
        share = self.burst_s / (self.burst_s + self.calm_s)
        calm = self.rate / (1 + share * (self.ratio - 1))
        bursting = rng.random() < share
        # Arrivals are those of a unit Poisson process read on the clock of the expected number of arrivals.
        unit = np.cumsum(rng.exponential(1.0, count))
        clock, expected = [0.0], [0.0]
        while expected[-1] < unit[-1]:
            states = 256
            burst = (np.arange(states) + (0 if bursting else 1)) % 2 == 0
            lengths = rng.exponential(1.0, states) * np.where(burst, self.burst_s, self.calm_s)
            clock.extend(clock[-1] + np.cumsum(lengths))
            expected.extend(expected[-1] + np.cumsum(lengths * calm * np.where(burst, self.ratio, 1.0)))
        return np.interp(unit, expected, clock)

    @property
    def dispersion(self) -> float:
        """Index of dispersion of counts in the long run."""
        share = self.burst_s / (self.burst_s + self.calm_s)
        calm = self.rate / (1 + share * (self.ratio - 1))
        gap = calm * (self.ratio - 1)
        return 1 + 2 * gap**2 * share * (1 - share) / (self.rate * (1 / self.burst_s + 1 / self.calm_s))


@dataclass(frozen=True)
class Immediate:
    """All at time 0: work that lies ready, or the clients of a closed loop."""

    def times(self, count: int, rng: np.random.Generator) -> Times:  # noqa: ARG002 - nothing is random here
        """Zeros."""
        return np.zeros(count)


@dataclass(frozen=True)
class Burstiness:
    """How far a recorded stream is from Poisson, for which every figure is 1.

    `gap_cv`: coefficient of variation of the gaps; `dispersion`: variance over mean of the counts in windows of 1, 10
    and 60 s (None where there are fewer than 5 windows). A plan made for Poisson arrivals does not hold its P99 for a
    stream that is bursty over minutes, however Poisson its gaps look.
    """

    rate: float
    gap_cv: float
    dispersion: dict[int, float | None]

    @property
    def poisson(self) -> bool:
        """Whether nothing contradicts Poisson grossly: gaps within 0.8 … 1.25, no window above 2."""
        bursts = [value for value in self.dispersion.values() if value is not None]
        return 0.8 <= self.gap_cv <= 1.25 and all(value <= 2 for value in bursts)


def burstiness(arrived: Times) -> Burstiness:
    """Figures of ascending arrival times; at least 3 of them over more than no time."""
    if len(arrived) < 3 or arrived[-1] <= arrived[0]:
        raise ValueError("burstiness needs at least 3 arrivals over some time")
    gaps, length = np.diff(arrived), float(arrived[-1] - arrived[0])
    found: dict[int, float | None] = {}
    for window in (1, 10, 60):
        windows = int(length // window)
        counts = np.bincount(((arrived - arrived[0]) // window).astype(np.int64))[:windows]
        found[window] = float(counts.var(ddof=1) / counts.mean()) if windows >= 5 else None
    return Burstiness((len(arrived) - 1) / length, float(gaps.std() / gaps.mean()), found)


def _positive(name: str, value: float) -> None:
    if not np.isfinite(value) or value <= 0:
        raise ConfigError([Problem(name, f"{value!r}; legal is a number above 0")])
