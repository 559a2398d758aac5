"""A server that takes up to B waiting requests whenever it is idle (work-conserving bulk service), exact.

Poisson arrivals, service T(b) of a batch of b, one server, a waiting room of K (or no bound). The number waiting when a
batch ends is a Markov chain; a batch that leaves nobody waiting is followed by one of the next single arrival. Means
come from the chain and Little's law, percentiles from where in the batch under service a request arrives.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_banded
from scipy.special import gammainc, gammaln, pdtrc

from capacity.service import Numbers, ServiceTime

_NEGLIGIBLE = 1e-15
_MOST_STATES = 3_000_000


@dataclass(frozen=True)
class Bulk:
    """Batches of at most `limit`, Poisson arrivals at `arrival_rate`, at most `room` waiting (None: no bound)."""

    service: ServiceTime
    arrival_rate: float
    limit: int
    room: int | None = None

    @property
    def stable(self) -> bool:
        """Whether the queue settles without refusing anybody: full batches are faster than arrivals."""
        return self.service.utilization(self.arrival_rate, self.limit) < 1

    @cached_property
    def _shares(self) -> Numbers:
        """Stationary probability of n waiting when a batch ends, to where the rest has no weight."""
        if self.room is not None:
            return _stationary(*self._chain(self.room + 1), None)
        states, ratio = states_needed(self.service, self.arrival_rate, self.limit)
        found = _stationary(*self._chain(states), ratio)
        if ratio is None:
            return found
        # Far beyond the batch, numbers waiting fall off geometrically.
        tail = np.arange(1, min(int(-math.log(_NEGLIGIBLE) / -math.log(ratio)) + 1, _MOST_STATES))
        whole = np.concatenate([found, found[-1] * ratio**tail])
        shares: Numbers = whole / whole.sum()
        return shares

    def _chain(self, states: int) -> tuple[Numbers, Numbers]:
        """(left waiting when the next batch starts, mean arrivals during it) by number waiting when a batch ends."""
        numbers = np.arange(states)
        left = np.maximum(numbers - self.limit, 0).astype(float)
        batches = np.clip(numbers, 1, self.limit)
        return left, self.arrival_rate * (self.service.fixed_s + self.service.request_s * batches)

    @cached_property
    def _batches(self) -> Numbers:
        """Size of the batch that follows a state: nobody waiting is followed by a single."""
        return np.clip(np.arange(len(self._shares)), 1, self.limit).astype(float)

    @cached_property
    def _means(self) -> tuple[float, float, float, float]:
        """(refused share, mean wait, mean service of a request, mean batch)."""
        shares, batches = self._shares, self._batches
        left = np.maximum(np.arange(len(shares)) - self.limit, 0).astype(float)
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
    """P(response > t). A request waits for the rest of the service it arrives in and for the full batches ahead of it,
    and is served in a batch whose size depends on who came behind it.

    Where all who wait at the end of the service fit into the next batch, its size does not depend on when in it the
    request came, and the rest of the service is uniform. The others are cut into slices of the service.
    """

    SLICES = 64

    def __init__(self, queue: Bulk) -> None:
        self._service, self._rate, self._limit = queue.service, queue.arrival_rate, queue.limit
        self._whole = queue.service.seconds(queue.limit)
        # Uniform rests: (probability, length of the service, own service).
        self._uniform: list[tuple[Numbers, Numbers, Numbers]] = []
        # Sliced: (probability, rest), served in the next batch, a full one; (probability, rest, number ahead), later.
        self._filling: list[tuple[Numbers, Numbers]] = []
        self._behind: list[tuple[Numbers, Numbers, Numbers]] = []
        shares = queue._shares  # noqa: SLF001  # one noun in two classes
        seconds = self._service.fixed_s + self._service.request_s * queue._batches  # noqa: SLF001  # as above
        cycle = float(shares @ seconds) + float(shares[0]) / self._rate
        self._idle = float(shares[0]) / self._rate / cycle
        # State 0 is followed by a single, as state 1 is.
        padded = np.concatenate([shares, np.zeros(max(0, self._limit + 1 - len(shares)))])
        padded[1] += padded[0]
        padded[0] = 0.0
        for size in _groups(padded, self._limit):
            length = float(self._service.seconds(float(size @ padded[size] / padded[size].sum())))
            self._add(float(padded[size].sum()) * length / cycle, length, np.array([1.0]))
        full = padded[self._limit :]
        if full.sum() > 1e-13:
            self._add(float(full.sum()) * self._whole / cycle, self._whole, full / full.sum())
        self._together = tuple(np.concatenate([part[place] for part in self._uniform]) for place in range(3))

    def _add(self, weight: float, length: float, left: Numbers) -> None:
        """Arrivals during services of `length` that leave 0, 1, 2 … waiting with the probabilities `left`."""
        total = np.convolve(left, _poisson_shares(np.array([self._rate * length]))[0])
        fits = total[: self._limit]
        own = self._service.fixed_s + self._service.request_s * np.arange(1.0, len(fits) + 1)
        heavy = weight * fits > 1e-13
        self._uniform.append((weight * fits[heavy], np.full(int(heavy.sum()), length), own[heavy]))
        if weight * total[self._limit :].sum() < 1e-9:
            return
        part = (np.arange(self.SLICES) + 0.5) / self.SLICES
        rest = length * (1 - part)
        ahead = _poisson_shares(self._rate * length * part)
        if len(left) > 1:
            size = len(left) + ahead.shape[1]
            ahead = np.fft.irfft(np.fft.rfft(ahead, size, axis=1) * np.fft.rfft(left, size), size, axis=1)
        places = np.arange(min(self._limit, ahead.shape[1]))
        # Those ahead fit, those behind fill the batch.
        fill = pdtrc(self._limit - places - 1, self._rate * rest[:, None])
        self._filling.append((weight / self.SLICES * (ahead[:, : self._limit] * fill).sum(axis=1), rest))
        mass = ahead[:, self._limit :] * weight / self.SLICES
        slices, beyond = np.nonzero(mass > 1e-12)
        self._behind.append((mass[slices, beyond], rest[slices], (beyond + self._limit).astype(float)))

    def above(self, time: float) -> float:
        """P(response > time)."""
        late = self._idle if self._service.seconds(1) > time else 0.0
        mass, length, own = self._together
        late += float(mass @ np.clip((length - time + own) / length, 0.0, 1.0))
        for mass, rest in self._filling:
            # A slice is as long as its neighbours are apart.
            width = float(rest[0] - rest[1])
            late += float(mass @ np.clip((rest + width / 2 - (time - self._whole)) / width, 0.0, 1.0))
        for mass, rest, ahead in self._behind:
            late += float(mass @ self._late_behind(time, rest, ahead))
        return late

    def _late_behind(self, time: float, rest: Numbers, ahead: Numbers) -> Numbers:
        """P(response > time) behind full batches: the own batch holds who came behind by the time it starts."""
        full, place = np.divmod(ahead, self._limit)
        before = rest + full * self._whole
        left = time - before
        if self._service.request_s > 0:
            size = np.floor((left - self._service.fixed_s) / self._service.request_s + 1e-9)
        else:
            size = np.where(left >= self._service.fixed_s, np.inf, -1.0)
        late = (size < place + 1).astype(float)
        unsure = (size >= place + 1) & (size < self._limit)
        late[unsure] = gammainc(size[unsure] - place[unsure], self._rate * before[unsure])
        return late


def _groups(shares: Numbers, limit: int) -> list[NDArray[np.int64]]:
    """Batch sizes below `limit` that matter, neighbours together where there are many."""
    sizes = np.flatnonzero(shares[:limit] > 1e-10)
    sizes = sizes[sizes > 0]
    return [group for group in np.array_split(sizes, min(len(sizes), 48)) if len(group)] if len(sizes) else []


def states_needed(service: ServiceTime, arrival_rate: float, limit: int) -> tuple[int, float | None]:
    """How many waiting must be told apart, and the ratio at which more become rarer (None: more have no weight)."""
    natural = arrival_rate * service.fixed_s / max(1 - arrival_rate * service.request_s, 1e-9)
    if natural < limit:
        # Batches rarely fill: a batch's arrivals are Poisson around the natural batch, spread by the feedback on size.
        spread = math.sqrt(max(natural, 1) / max(1 - (arrival_rate * service.request_s) ** 2, 1e-9))
        unbounded = int(natural + 14 * spread + 40)
        if unbounded <= limit:
            return unbounded, None
    mean = arrival_rate * service.seconds(limit)
    if mean >= limit:
        raise ValueError("the queue is unstable: it has no stationary distribution")
    return int(2 * limit + 12 * math.sqrt(mean) + 12 * math.sqrt(limit) + 60), math.exp(-_decay(mean, limit))


def _decay(mean: float, limit: int) -> float:
    """log z > 0 with z^limit = e^{mean·(z-1)}: numbers waiting beyond the batch fall off as z^{-n}."""
    low, high = 0.0, 1.0
    while mean * math.expm1(high) < limit * high:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if mean * math.expm1(middle) < limit * middle else (low, middle)
    return max(low, 1e-12)


def _poisson_shares(means: Numbers) -> Numbers:
    """Poisson probabilities of 0, 1, 2 … until they have no weight, a row for each mean."""
    most = float(means.max())
    counts = np.arange(int(most + 9 * math.sqrt(most) + 20))
    found: Numbers = np.exp(counts * np.log(means)[:, None] - means[:, None] - gammaln(counts + 1))
    return found


def _stationary(left: Numbers, means: Numbers, ratio: float | None) -> Numbers:
    """Stationary distribution of n -> left[n] + Poisson(means[n]).

    The last state takes what lies beyond it; with a `ratio`, states beyond it have its probability times its powers,
    and the result is not normalized to 1.
    """
    states = len(left)
    whole = left.astype(int)
    jump = min(states, int(means.max() + 11 * math.sqrt(means.max()) + 40))
    drop = int((np.arange(states) - whole).max())
    below, above = min(states - 1, jump), min(states - 1, max(drop, 1))
    columns = np.broadcast_to(np.arange(states), (jump + 1, states))
    counts = np.arange(jump + 1)
    pmf = np.exp(counts[:, None] * np.log(means) - means - gammaln(counts + 1)[:, None])
    rows = whole[None, :] + counts[:, None]
    # Row j of (I - transposed P) is stored in band[above + j - n, n].
    band = np.zeros((below + above + 1, states))
    use = (rows < states - (ratio is None)) & (rows - columns <= below)
    if ratio is not None:
        use[:, -1] = False
    band[(above + rows - columns)[use], columns[use]] -= pmf[use]
    if ratio is None:
        last = pdtrc(states - 2 - whole, means) if states > 1 else np.ones(1)
        near = (states - 1 - np.arange(states)) <= below
        band[(above + states - 1 - np.arange(states))[near], np.arange(states)[near]] -= last[near]
    else:
        beyond = np.convolve(pmf[: drop + 1, -1], ratio ** np.arange(drop + 1))[: drop + 1]
        band[above - drop + np.arange(drop + 1), states - 1] -= beyond
    band[above] += 1
    anchor = _anchor(left, means)
    for column in range(max(0, anchor - below), min(states, anchor + above + 1)):
        if 0 <= above + anchor - column < len(band):
            band[above + anchor - column, column] = 0
    band[above, anchor] = 1
    right = np.zeros(states)
    right[anchor] = 1
    found = np.maximum(_solve(band, (below, above), right), 0.0)
    shares: Numbers = found / found.sum()
    return shares


def _solve(band: Numbers, widths: tuple[int, int], right: Numbers) -> Numbers:
    """Banded equations; small ones as a whole matrix, for which there is less to set up."""
    states = len(right)
    if states > 300:
        found: Numbers = solve_banded(widths, band, right)
        return found
    rows, columns = np.indices((states, states))
    place = widths[1] + rows - columns
    inside = (place >= 0) & (place < len(band))
    dense = np.where(inside, band[np.clip(place, 0, len(band) - 1), columns], 0.0)
    return np.linalg.solve(dense, right)


def _anchor(left: Numbers, means: Numbers) -> int:
    """A state that is often visited: the first from which the chain does not drift up."""
    settled = left + means <= np.arange(len(left))
    return int(np.argmax(settled)) if settled.any() else len(left) - 1
