"""Waiting time of a GI/G/1 queue on a lattice, to rounding error: the Lindley recursion solved by factorization.

W = max(0, W + S - A) has E[zᵂ] = exp(Σ_{k≥1} c_k · (zᵏ - 1)) with c the cepstrum of 1 - E[z^{S-A}] (Wiener-Hopf,
Spitzer). Two Fourier transforms give it for any distribution of S - A with a negative mean.
"""

import math
from dataclasses import dataclass

import numpy as np

from capacity.service import Numbers

CELLS = 1 << 16


@dataclass(frozen=True)
class LatticeWait:
    """A waiting time: the probability of 0, `step_s`, 2 · `step_s` …"""

    step_s: float
    shares: Numbers

    @property
    def mean_s(self) -> float:
        """Mean wait."""
        return float(np.arange(len(self.shares)) @ self.shares) * self.step_s

    def points(self, negligible: float = 1e-10) -> tuple[Numbers, Numbers]:
        """Waits and their probabilities, without a tail of `negligible` probability, in at most some 500 groups."""
        tail = np.cumsum(self.shares[::-1])[::-1]
        last = max(1, int((tail > negligible).sum()))
        shares, waits = self.shares[:last], np.arange(last) * self.step_s
        # 0 is an atom and stays alone.
        width = max(1, (last - 1) // 500)
        starts = np.concatenate([[0], np.arange(1, last, width)]) if last > 1 else np.array([0])
        mass = np.add.reduceat(shares, starts)
        centre = np.add.reduceat(shares * waits, starts) / np.maximum(mass, 1e-300)
        kept = mass > 1e-14
        return centre[kept], mass[kept]


def waiting_time(increments: Numbers, step_s: float) -> LatticeWait:
    """The wait of a queue whose S - A has the probabilities `increments`: index k is +k steps, index -k is -k steps.

    Raises ValueError where the mean of S - A is not negative.
    """
    cells = len(increments)
    offsets = np.arange(cells, dtype=float)
    offsets[cells // 2 :] -= cells
    drift = float(offsets @ increments)
    if drift >= 0:
        raise ValueError("the queue is unstable: work arrives at least as fast as it is done")
    # On a circle between the unit circle and the queue's decay rate the transform stays inside the unit disc, so the
    # logarithm has one branch; coefficients of positive powers are the same there.
    tilt = _tilt(increments, offsets)
    twisted = increments * np.exp(tilt * offsets)
    cepstrum = np.fft.ifft(np.log(1 - np.fft.fft(twisted))).real
    half = cells // 2
    upward = np.zeros(cells)
    upward[1:half] = cepstrum[1:half] * np.exp(-tilt * offsets[1:half])
    shares = np.fft.ifft(np.exp(upward.sum() - np.fft.fft(upward))).real[:half]
    shares = np.maximum(shares, 0.0)
    return LatticeWait(step_s, shares / shares.sum())


def _tilt(increments: Numbers, offsets: Numbers) -> float:
    """A rate s > 0 near the least of E[e^{s(S-A)}], per step."""
    seen = increments > 0
    places, weights = offsets[seen], increments[seen]
    highest = max(float(places.max()), 1.0)

    def slope(rate: float) -> float:
        return float((places * weights * np.exp(rate * (places - highest))).sum())

    # Beyond this the largest increments alone would count; a queue that never waits has no least.
    low, high = 0.0, 30 / highest
    if slope(high) < 0:
        return high
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
        if low > 0.9 * high:
            break
    return low


def spread(values: Numbers, weights: Numbers, step_s: float, cells: int = CELLS) -> Numbers:
    """Increments on the lattice: each value is shared by its two neighbours so that the mean is kept.

    What lies below the lattice is moved to its lower end: the wait after it is 0 either way.
    """
    places = np.maximum(values / step_s, -(cells // 2) + 1.0)
    lower = np.floor(places).astype(int)
    upper_share = places - lower
    increments = np.zeros(cells)
    np.add.at(increments, lower % cells, weights * (1 - upper_share))
    np.add.at(increments, (lower + 1) % cells, weights * upper_share)
    return increments


def decay_rate(drift: float, log_moment: "LogMoment", scale: float) -> float:
    """θ > 0 with log E[e^{θ(S-A)}] = 0: waits decay as e^{-θt}. `scale` is a first guess of 1/θ in seconds."""
    if drift >= 0:
        raise ValueError("the queue is unstable: work arrives at least as fast as it is done")
    high = 1 / scale
    while log_moment(high) <= 0:
        high *= 2
        if high * scale > 1e12:
            return math.inf
    low = high / 2
    while log_moment(low) > 0:
        low /= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if log_moment(middle) > 0 else (middle, high)
    return low


class LogMoment:
    """log E[e^{θ(S-A)}] of an Erlang(`phases`, `rate`) gap A and a service of `service_s`."""

    def __init__(self, phases: float, rate: float, service_s: float) -> None:
        self._phases, self._rate, self._service_s = phases, rate, service_s

    def __call__(self, theta: float) -> float:
        return theta * self._service_s - self._phases * math.log1p(theta / self._rate)
