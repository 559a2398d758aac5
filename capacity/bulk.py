"""A server that takes up to B waiting requests whenever it is idle (work-conserving bulk service), exact.

Poisson arrivals, service T(b) of a batch of b, one server, a waiting room of K (or no bound). The number waiting when a
batch ends is a Markov chain; a batch that leaves nobody waiting is followed by one of the next single arrival. Means come
from the chain and Little's law, percentiles from where in the batch under service a request arrives.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import solve_banded
from scipy.special import gammainc, gammaln, pdtrc

from capacity.service import Numbers, ServiceTime

_NEGLIGIBLE = 1e-15
_MOST_STATES = 400_000


@dataclass(frozen=True)
class Bulk:
    """Batches of at most `limit` of `service`, Poisson arrivals at `arrival_rate`, at most `room` waiting (None: no bound)."""

    service: ServiceTime
    arrival_rate: float
    limit: int
    room: int | None = None

    @property
    def stable(self) -> bool:
        """Whether the queue settles without refusing anybody: full batches are faster than arrivals."""
        return self.service.utilization(self.arrival_rate, self.limit) < 1

    @cached_property
    def _states(self) -> int:
        """Numbers waiting that matter: to `room`, or until what lies beyond has no weight."""
        if self.room is not None:
            return self.room + 1
        return min(_MOST_STATES, states_needed(self.service, self.arrival_rate, self.limit))

    @cached_property
    def _batches(self) -> Numbers:
        """Size of the batch that follows a state: nobody waiting is followed by a single."""
        return np.clip(np.arange(self._states), 1, self.limit).astype(float)

    @cached_property
    def _shares(self) -> Numbers:
        """Stationary probability of n waiting when a batch ends."""
        batches, states = self._batches, self._states
        means = self.arrival_rate * (self.service.fixed_s + self.service.request_s * batches)
        return _stationary(np.maximum(np.arange(states) - self.limit, 0), means)

    @cached_property
    def _means(self) -> tuple[float, float, float, float]:
        """(refused share, mean wait, mean service of a request, mean batch)."""
        shares, batches = self._shares, self._batches
        left = np.maximum(np.arange(self._states) - self.limit, 0).astype(float)
        seconds = self.service.fixed_s + self.service.request_s * batches
        cycle = float(shares @ seconds) + float(shares[0]) / self.arrival_rate
        served = float(shares @ batches)
        waiting = self._waiting(left, seconds)
        queue = float(shares @ waiting) / cycle
        rate = served / cycle
        loss = 1 - rate / self.arrival_rate if self.room is not None else 0.0
        service = float(shares @ (batches * seconds)) / served
        return max(loss, 0.0), queue / rate, service, served

    def _waiting(self, left: Numbers, seconds: Numbers) -> Numbers:
        """Integral of the number waiting over one service, by state."""
        if self.room is None:
            return left * seconds + self.arrival_rate * seconds**2 / 2
        found = left * seconds
        for state, (already, length) in enumerate(zip(left.astype(int), seconds, strict=True)):
            free = np.arange(1, self.room - already + 1)
            # ∫ P(N(t) ≥ j) dt over the service.
            mean = self.arrival_rate * length
            found[state] += float((length * pdtrc(free - 1, mean) - free / self.arrival_rate * pdtrc(free, mean)).sum())
        return found

    @property
    def loss(self) -> float:
        """Share of arrivals that find the waiting room full."""
        return self._means[0]

    @property
    def wait_s(self) -> float:
        """Mean wait until service starts, of those accepted; `inf` where unstable without a bound."""
        return self._means[1] if self._settles else math.inf

    @property
    def service_s(self) -> float:
        """Mean service time that a request sees: larger batches hold more of them."""
        return self._means[2] if self._settles else self.service.seconds(self.limit)

    @property
    def mean_batch(self) -> float:
        """Mean batch."""
        return self._means[3] if self._settles else float(self.limit)

    @property
    def response_s(self) -> float:
        """Mean time from arrival to the end of service, of those accepted."""
        return self.wait_s + self.service_s

    @property
    def busy(self) -> float:
        """Share of time that the server is busy: near 1 long before it is overloaded, so it says nothing about room."""
        idle = float(self._shares[0]) / self.arrival_rate
        seconds = float(self._shares @ (self.service.fixed_s + self.service.request_s * self._batches))
        return seconds / (seconds + idle)

    @property
    def _settles(self) -> bool:
        return self.room is not None or self.stable

    def response_quantile(self, share: float) -> float:
        """The response time that a `share` of requests does not exceed; `inf` where unstable. Needs no waiting room."""
        if self.room is not None:
            raise ValueError("percentiles are for a queue without a bound; simulate a bounded one")
        if not self.stable:
            return math.inf
        tail = _Tail(self)
        low, high = 0.0, 2 * self.service.seconds(self.limit)
        while tail.above(high) > 1 - share:
            low, high = high, 2 * high
        while high - low > 1e-5 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if tail.above(middle) > 1 - share else (low, middle)
        return (low + high) / 2


class _Tail:
    """P(response > t). A request that arrives `u` into a service of b waits for its rest, for the full batches ahead of it,
    and is served in a batch whose size depends on who came behind it."""

    SLICES = 96

    def __init__(self, queue: Bulk) -> None:
        self._queue, self._rate, self._limit = queue, queue.arrival_rate, queue.limit
        shares, batches = queue._shares, queue._batches  # noqa: SLF001  # one noun in two classes
        seconds = queue.service.fixed_s + queue.service.request_s * batches
        cycle = float(shares @ seconds) + float(shares[0]) / self._rate
        self._idle = float(shares[0]) / self._rate / cycle
        middle = (np.arange(self.SLICES) + 0.5) / self.SLICES
        rows: list[tuple[Numbers, Numbers, Numbers]] = []
        limit = min(self._limit, len(shares))
        # Services that leave nobody waiting, by their size; state 0 is followed by a single.
        weights = shares[:limit].copy()
        if limit > 1:
            weights[1] += weights[0]
            weights[0] = 0
        for size in range(1, limit):
            weight = weights[size] * seconds[size] / cycle
            if weight > 1e-9:
                rows += self._slices(weight, seconds[size], np.array([1.0]), middle)
        if limit == 1:
            # Every service is a single; state 0 and state 1 leave nobody.
            full = np.concatenate([[shares[0]], np.zeros(0)]) + (shares[1] if len(shares) > 1 else 0)
            full = np.concatenate([full, shares[2:]])
        else:
            full = shares[self._limit :]
        if full.sum() > 1e-12:
            whole = queue.service.seconds(self._limit)
            rows += self._slices(float(full.sum()) * whole / cycle, whole, full / full.sum(), middle)
        self._mass = np.concatenate([row[0] for row in rows])
        self._rest = np.concatenate([row[1] for row in rows])
        self._ahead = np.concatenate([row[2] for row in rows])
        lump = self._mass > 1e-12
        self._mass, self._rest, self._ahead = self._mass[lump], self._rest[lump], self._ahead[lump]

    def _slices(
        self, weight: float, seconds: float, left: Numbers, middle: Numbers
    ) -> list[tuple[Numbers, Numbers, Numbers]]:
        """(probability, rest of the service, waiting ahead) for arrivals in each slice of a service."""
        found = []
        for part in middle:
            ahead = np.convolve(left, _poisson_shares(self._rate * seconds * part))
            mass = ahead * (weight / self.SLICES)
            kept = np.flatnonzero(mass > 1e-13)
            found.append((mass[kept], np.full(len(kept), seconds * (1 - part)), kept.astype(float)))
        return found

    def above(self, time: float) -> float:
        """P(response > time)."""
        service = self._queue.service
        whole = service.seconds(self._limit)
        full, place = np.divmod(self._ahead, self._limit)
        before = self._rest + full * whole
        # Own service is longer than what is left of `time` where more than `size` are in the batch.
        left = time - before
        size = np.full(len(left), np.inf)
        if service.request_s > 0:
            size = np.floor((left - service.fixed_s) / service.request_s + 1e-9)
        else:
            size = np.where(left >= service.fixed_s, np.inf, -1.0)
        late = np.zeros(len(left))
        late[size < place + 1] = 1.0
        open_ = (size >= place + 1) & (size < self._limit)
        needed = size[open_] - place[open_]
        # More than `size` in the batch: at least size − place of those behind.
        late[open_] = gammainc(needed, self._rate * before[open_])
        alone = 1.0 if service.seconds(1) > time else 0.0
        return float(self._mass @ late) + self._idle * alone


def states_needed(service: ServiceTime, arrival_rate: float, limit: int) -> int:
    """How many waiting must be told apart so that all others together have no weight."""
    natural = arrival_rate * service.fixed_s / max(1 - arrival_rate * service.request_s, 1e-9)
    if natural < limit:
        # Batches rarely fill: a batch's arrivals are Poisson around the natural batch, spread by the feedback on size.
        spread = math.sqrt(max(natural, 1) / max(1 - (arrival_rate * service.request_s) ** 2, 1e-9))
        unbounded = int(natural + 14 * spread + 40)
        if unbounded <= limit:
            return unbounded
    mean = arrival_rate * service.seconds(limit)
    if mean >= limit:
        return int(limit + mean + 12 * math.sqrt(mean) + 40)
    decay = _decay(mean, limit)
    return int(limit + mean + 8 * math.sqrt(mean) + 36 / decay + 40)


def _decay(mean: float, limit: int) -> float:
    """log z > 0 with z^limit = e^{mean·(z−1)}: numbers waiting beyond the batch fall off as z^{−n}."""
    low, high = 0.0, 1.0
    while mean * math.expm1(high) < limit * high:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if mean * math.expm1(middle) < limit * middle else (low, middle)
    return max(low, 1e-9)


def _poisson_shares(mean: float) -> Numbers:
    """Poisson probabilities of 0, 1, 2 … until they have no weight."""
    counts = np.arange(int(mean + 9 * math.sqrt(mean) + 20))
    if mean <= 0:
        return np.array([1.0])
    found: Numbers = np.exp(counts * math.log(mean) - mean - gammaln(counts + 1))
    return found


def _stationary(left: Numbers, means: Numbers) -> Numbers:
    """Stationary distribution of n → min(left[n] + Poisson(means[n]), last)."""
    states = len(left)
    jump = min(states, int(means.max() + 11 * math.sqrt(means.max()) + 40))
    drop = int((np.arange(states) - left).max())
    below, above = min(states - 1, jump), min(states - 1, max(drop, 1))
    columns = np.arange(states)
    pmf = np.exp(np.arange(jump + 1)[:, None] * np.log(means) - means - gammaln(np.arange(jump + 1) + 1)[:, None])
    rows = left[None, :] + np.arange(jump + 1)[:, None]
    inside = rows < states - 1
    # Row j of (I − Pᵀ) π = 0, banded; the last state takes what would lie beyond it.
    band = np.zeros((below + above + 1, states))
    wide = np.broadcast_to(columns, rows.shape)
    use = inside & (rows - wide <= below)
    band[(above + rows - wide)[use], wide[use]] -= pmf[use]
    last = pdtrc(states - 2 - left, means) if states > 1 else np.ones(1)
    near = (states - 1 - columns) <= below
    band[(above + states - 1 - columns)[near], columns[near]] -= last[near]
    band[above, columns] += 1
    anchor = _anchor(left, means)
    for column in range(max(0, anchor - below), min(states, anchor + above + 1)):
        if 0 <= above + anchor - column < len(band):
            band[above + anchor - column, column] = 0
    band[above, anchor] = 1
    right = np.zeros(states)
    right[anchor] = 1
    found = np.maximum(solve_banded((below, above), band, right), 0.0)
    shares: Numbers = found / found.sum()
    return shares


def _anchor(left: Numbers, means: Numbers) -> int:
    """A state that is often visited: where the drift of the chain changes sign."""
    drift = left + means - np.arange(len(left))
    return int(np.argmin(np.where(drift > 0, np.inf, -drift))) if (drift <= 0).any() else len(left) - 1
