"""Queues in closed form: M/M/c, M/M/c/K, M/D/c, M/G/c, and Little's law.

Sources: Erlang (M/M/c and M/M/c/K), Crommelin 1932 (M/D/c), Cosmetatos 1976 with Kimura 1994 and Allen-Cunneen
(M/G/c, both approximations: 1 to 10 % in the usual range, worse for few servers and high variability).
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammainc

from capacity.service import Numbers

_TERMS = 4096
_NODES = np.polynomial.legendre.leggauss(16)


def erlang_b(servers: int, load: float) -> float:
    """Blocking probability of M/M/c/c at offered load λ/μ = `load` Erlang."""
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = load * blocked / (count + load * blocked)
    return blocked


def erlang_c(servers: int, load: float) -> float:
    """Probability that an arrival to M/M/c waits; 1 where the queue is unstable."""
    if load >= servers:
        return 1.0
    blocked = erlang_b(servers, load)
    return servers * blocked / (servers - load * (1 - blocked))


@dataclass(frozen=True)
class Markovian:
    """M/M/c: waiting time before service, in seconds."""

    wait_probability: float
    wait_s: float
    drain_rate: float
    """cμ - λ: the wait, given that there is one, is exponential with this rate."""

    def wait_quantile(self, share: float) -> float:
        """The wait that a `share` of all arrivals does not exceed."""
        if self.wait_s == math.inf:
            return math.inf
        return max(0.0, math.log(self.wait_probability / (1 - share)) / self.drain_rate)


def mmc(arrival_rate: float, service_s: float, servers: int) -> Markovian:
    """M/M/c. The wait is `inf` where λ·s ≥ c."""
    waits = erlang_c(servers, arrival_rate * service_s)
    drain = servers / service_s - arrival_rate
    return Markovian(waits, waits / drain if drain > 0 else math.inf, max(drain, 0.0))


@dataclass(frozen=True)
class Bounded:
    """M/M/c/K with room for K in the system, those in service included."""

    loss: float
    in_system: float
    response_s: float
    """Of those that were accepted."""
    utilization: float


def mmck(arrival_rate: float, service_s: float, servers: int, room: int) -> Bounded:
    """M/M/c/K: arrivals that find K in the system are refused."""
    if room < servers:
        raise ValueError("the room counts those in service, so it is at least the number of servers")
    counts = np.arange(1, room + 1)
    steps = np.log(arrival_rate * service_s / np.minimum(counts, servers))
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    weights = np.exp(logs - logs.max())
    shares = weights / weights.sum()
    states = np.arange(room + 1)
    accepted = arrival_rate * (1 - float(shares[-1]))
    inside = float(states @ shares)
    return Bounded(float(shares[-1]), inside, inside / accepted, accepted * service_s / servers)


def mdc_wait(arrival_rate: float, service_s: float, servers: int) -> float:
    """Mean wait of M/D/c, exact: Crommelin's sum; `inf` where unstable.

    The same number is the mean wait of a batch in E_c/D/1 (batches of c that arrive full) and, with c·B for c, of
    E_B/D/c: with constant service, servers take customers in turn.
    """
    load = arrival_rate * service_s
    if load >= servers:
        return math.inf
    first = np.arange(1, _TERMS + 1, dtype=float)
    total = math.fsum(_crommelin(first, load, servers))
    # The terms are a smooth function of their number: what is left is an integral, on steps that grow.
    low = _TERMS + 0.5
    points, weights = _NODES
    while True:
        high = 2 * low
        places = (high + low) / 2 + points * (high - low) / 2
        part = float(weights @ _crommelin(places, load, servers)) * (high - low) / 2
        total += part
        if part <= 1e-14 * total or low > 1e15:
            return service_s * total
        low = high


def _crommelin(number: Numbers, load: float, servers: int) -> Numbers:
    """The terms P(Pois(i·a) ≥ i·c) - (c/a) · P(Pois(i·a) ≥ i·c + 1)."""
    shape = number * servers
    found: Numbers = gammainc(shape, number * load) - servers / load * gammainc(shape + 1, number * load)
    return np.maximum(found, 0.0)


def mgc_wait(arrival_rate: float, service_s: float, servers: int, variability: float) -> float:
    """Mean wait of M/G/c, approximately (Kimura), between M/M/c and M/D/c.

    `variability` is the squared coefficient of variation of the service time.

    M/D/c inside it is Cosmetatos' approximation, as Kimura has it.
    """
    markov = mmc(arrival_rate, service_s, servers).wait_s
    if math.isinf(markov):
        return math.inf
    load = arrival_rate * service_s / servers
    growth = (1 - load) * (servers - 1) * (math.sqrt(4 + 5 * servers) - 2) / (16 * servers * load)
    constant = markov / 2 * (1 + growth)
    return (1 + variability) / (2 * variability / markov + (1 - variability) / constant)


def allen_cunneen_wait(arrival_rate: float, service_s: float, servers: int, variability: float) -> float:
    """Mean wait of M/G/c, approximately (Allen-Cunneen): M/M/c times (1 + cv²) / 2."""
    return mmc(arrival_rate, service_s, servers).wait_s * (1 + variability) / 2


def pollaczek_khinchine(arrival_rate: float, mean_s: float, second_moment: float) -> float:
    """Mean wait of M/G/1: λ·E[S²] / (2·(1 - load)); `inf` where unstable."""
    load = arrival_rate * mean_s
    return arrival_rate * second_moment / (2 * (1 - load)) if load < 1 else math.inf


def in_system(arrival_rate: float, response_s: float) -> float:
    """Little's law: L = λ · T. True of any stable system, so it never proves that T is right."""
    return arrival_rate * response_s


def littles_law_ratio(arrival_rate: float, mean_in_system: float, response_s: float) -> float:
    """L / (λ · T) of three numbers measured apart: 1 in any stable system whose measurements agree."""
    return mean_in_system / (arrival_rate * response_s)
