"""Admission to one tier: so many inside, so many waiting, each for so long; everyone else is refused at once."""

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from core.clock import Clock
from core.config.records import Queue, TierName
from core.errors import Refused
from gateway.auth import Priority

# The drain rate is measured over the departures of this many seconds.
RATE_WINDOW = 30.0
# Nobody is sent away for longer than this, in seconds.
MAX_RETRY_AFTER = 60.0


@dataclass(eq=False, slots=True)
class Ticket:
    """One request before a tier.

    `deadline`: monotonic second by which its first byte is due, None where the client set none. `waited`: seconds in
    the queue.
    """

    tenant: str
    priority: Priority
    deadline: float | None = None
    waited: float = 0.0
    turn: asyncio.Future[None] | None = field(default=None, repr=False)


class Line(Protocol):
    """The order of the queue. Holds each ticket at most once; `pop` raises LookupError when empty.

    `add` and `pop` cost O(1) or O(log n); `remove` of a ticket that is not there does nothing.
    """

    def add(self, ticket: Ticket) -> None: ...

    def pop(self) -> Ticket: ...

    def remove(self, ticket: Ticket) -> None: ...

    def __len__(self) -> int: ...


class FirstInFirstOut:
    """The order of arrival."""

    def __init__(self) -> None:
        self._tickets: OrderedDict[int, Ticket] = OrderedDict()

    def add(self, ticket: Ticket) -> None:
        """To the end."""
        self._tickets[id(ticket)] = ticket

    def pop(self) -> Ticket:
        """From the front."""
        if not self._tickets:
            raise LookupError
        return self._tickets.popitem(last=False)[1]

    def remove(self, ticket: Ticket) -> None:
        """From wherever it stands."""
        self._tickets.pop(id(ticket), None)

    def __len__(self) -> int:
        return len(self._tickets)


class DrainRate:
    """How fast a tier finishes requests, from its recent departures."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._departures: deque[float] = deque(maxlen=512)

    def departed(self) -> None:
        """Count one departure."""
        self._departures.append(self._clock.monotonic())

    def per_second(self) -> float | None:
        """Departures per second; None before two were seen within the window."""
        horizon = self._clock.monotonic() - RATE_WINDOW
        departures = self._departures
        while departures and departures[0] < horizon:
            departures.popleft()
        if len(departures) < 2:
            return None
        # n departures span n - 1 gaps; the time since the last one counts when it is longer than a gap.
        span = max(self._clock.monotonic() - departures[0], 1e-3)
        return (len(departures) - 1) / span


class Admission:
    """The door of one tier. `enter` gives a slot as a context manager, or raises Refused."""

    def __init__(self, tier: TierName, limits: Queue, clock: Clock, line: Line | None = None) -> None:
        self.tier = tier
        self._limits, self._clock = limits, clock
        self._line: Line = line if line is not None else FirstInFirstOut()
        self._rate = DrainRate(clock)
        self.inflight = 0

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._line)

    def expected_wait(self) -> float:
        """Seconds until a request that joins the queue is let in, from the measured drain rate; 0 with a free slot."""
        if self.inflight < self._limits.max_inflight:
            return 0.0
        rate = self._rate.per_second()
        return 0.0 if rate is None else (len(self._line) + 1) / rate

    def enter(self, ticket: Ticket) -> "Slot":
        """A slot for the ticket, taken on entering the context and given back on leaving it."""
        return Slot(self, ticket)

    async def admit(self, ticket: Ticket) -> None:
        """Wait for a place. Raises Refused; a cancelled waiter leaves no trace."""
        if ticket.deadline is not None:
            left = ticket.deadline - self._clock.monotonic()
            if left <= 0 or self.expected_wait() > left:
                raise self._refused("the deadline cannot be met", "deadline")
        if self.inflight < self._limits.max_inflight:
            self.inflight += 1
            return
        if len(self._line) >= self._limits.max_waiting:
            raise self._refused("the queue is full", "queue_full")
        await self._wait(ticket)

    async def _wait(self, ticket: Ticket) -> None:
        since = self._clock.monotonic()
        limit, reason = self._limits.max_wait, "queue_timeout"
        if ticket.deadline is not None and ticket.deadline - since < limit:
            limit, reason = ticket.deadline - since, "deadline"
        turn = ticket.turn = asyncio.get_running_loop().create_future()
        self._line.add(ticket)
        try:
            async with asyncio.timeout(limit):
                await turn
        except BaseException as error:
            self._line.remove(ticket)
            if turn.done() and not turn.cancelled():
                # The slot was handed over in the same turn of the loop; pass it on.
                self.leave(counted=False)
            if isinstance(error, TimeoutError):
                raise self._refused(f"no free slot within {limit:.3g} s", reason) from None
            raise
        finally:
            ticket.waited = self._clock.monotonic() - since
            ticket.turn = None

    def leave(self, *, counted: bool = True) -> None:
        """Give a slot back: to the next in line, else to the tier. `counted`: it was used, and tells the drain rate."""
        if counted:
            self._rate.departed()
        while len(self._line):
            turn = self._line.pop().turn
            if turn is not None and not turn.done():
                turn.set_result(None)
                return
        self.inflight -= 1

    def _refused(self, message: str, reason: str) -> Refused:
        rate = self._rate.per_second()
        # One more place than those in front: the caller's own.
        after = 1.0 if rate is None else (len(self._line) + 1) / rate
        return Refused(
            f"the {self.tier} tier is busy: {message}",
            code=reason,
            reason=reason,
            retry_after=min(max(after, 1.0), MAX_RETRY_AFTER),
        )


class Slot:
    """A place in a tier, held while the context is open."""

    __slots__ = ("_admission", "_ticket")

    def __init__(self, admission: Admission, ticket: Ticket) -> None:
        self._admission, self._ticket = admission, ticket

    async def __aenter__(self) -> Self:
        await self._admission.admit(self._ticket)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admission.leave()
