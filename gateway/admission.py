"""Admission to one tier: so many inside, so many waiting, each for so long; everyone else is refused at once."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from core.clock import Clock
from core.config.records import Queue, TierName
from core.errors import Refused, RequestError, Unavailable
from gateway.drain import DrainRate
from gateway.line import FairLine
from gateway.ticket import Ticket

# Nobody is sent away for longer than this, in seconds.
MAX_RETRY_AFTER = 60.0


def always() -> bool:
    """A tier that is always there."""
    return True


class Admission:
    """The door of one tier. `enter` gives a slot as a context manager, or raises Refused or Unavailable.

    `available`: whether the tier has a server. Where it has none, `patient` decides whether requests wait for one, as
    in front of a tier that scales from zero, or are sent away.
    """

    def __init__(
        self,
        tier: TierName,
        limits: Queue,
        clock: Clock,
        available: Callable[[], bool] = always,
        *,
        patient: bool = False,
    ) -> None:
        self.tier = tier
        self._limits, self._clock = limits, clock
        self._available, self._patient = available, patient
        self._line = FairLine()
        self._rate = DrainRate(clock, limits.max_inflight)
        self.inflight = 0

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._line)

    def renew(self, limits: Queue, *, patient: bool) -> None:
        """Go on with other limits; who is inside or waits stays there."""
        self._limits, self._patient = limits, patient
        self._rate.renew(limits.max_inflight)
        if self.inflight >= limits.max_inflight:
            self._rate.filled()
        else:
            self._rate.freed()
            self.wake()

    def expected_wait(self, ticket: Ticket | None = None) -> float:
        """Seconds until a request that joins the queue is let in, from the measured drain rate; 0 with a free slot.

        Without a ticket: one that goes to the very end.
        """
        return 0.0 if self.inflight < self._limits.max_inflight else self._time_of(ticket)

    def enter(self, ticket: Ticket) -> "Slot":
        """A slot for the ticket, taken on entering the context and given back on leaving it."""
        return Slot(self, ticket, self._clock)

    async def admit(self, ticket: Ticket) -> None:
        """Wait for a place. Raises Refused or Unavailable; a cancelled waiter leaves no trace."""
        there = self._available()
        if not there and not self._patient:
            raise self._nobody()
        now = self._clock.monotonic()
        if ticket.deadline is not None and now + self.expected_wait(ticket) >= ticket.deadline:
            raise self._refused(ticket, "the deadline cannot be met", "deadline")
        if there and self.inflight < self._limits.max_inflight:
            self._line.charge(ticket)
            self._take()
            return
        if len(self._line) >= self._limits.max_waiting:
            loser = self._line.displace(ticket)
            if loser is None or loser.turn is None:
                raise self._refused(ticket, "the queue is full", "queue_full")
            loser.turn.set_exception(self._refused(loser, "the queue is full", "queue_full"))
        await self._wait(ticket, now)

    async def _wait(self, ticket: Ticket, since: float) -> None:
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
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                # The slot was handed over in the same turn of the loop; pass it on.
                self._line.correct(ticket, 0.0)
                self._hand_over()
            if isinstance(error, TimeoutError):
                raise self._late(ticket, limit, reason) from None
            raise
        finally:
            ticket.waited = self._clock.monotonic() - since
            ticket.turn = None

    def leave(self, ticket: Ticket, inside: float = 0.0) -> None:
        """Give the ticket's slot back after so many seconds inside: to the next in line, else to the tier."""
        if ticket.served is not None:
            self._line.correct(ticket, ticket.served)
        self._rate.departed(ticket.priority, inside, ticket.cost if ticket.served is None else ticket.served)
        self._hand_over()

    def wake(self) -> None:
        """A server has come up: let those in who waited for one."""
        while self.inflight < self._limits.max_inflight and len(self._line) and self._available():
            self._take()
            self._hand_over()

    def _take(self) -> None:
        self.inflight += 1
        if self.inflight >= self._limits.max_inflight:
            self._rate.filled()

    def _hand_over(self) -> None:
        """Give a slot that is taken to the next in line, else free it."""
        if len(self._line) and (self._available() or not self._patient):
            while (ticket := self._line.pop()) is not None:
                turn = ticket.turn
                if turn is None or turn.done():
                    self._line.correct(ticket, 0.0)
                elif ticket.deadline is not None and ticket.deadline <= self._clock.monotonic():
                    self._line.correct(ticket, 0.0)
                    turn.set_exception(self._refused(ticket, "the deadline has passed", "deadline"))
                else:
                    turn.set_result(None)
                    return
        self.inflight -= 1
        self._rate.freed()

    def _time_of(self, ticket: Ticket | None) -> float:
        """Seconds until a further ticket would be let in, as far as that is known; else 0."""
        rate = self._rate.per_second("low" if ticket is None else ticket.priority)
        if rate is None:
            return 0.0
        if ticket is None:
            return (self._line.work() + self._rate.each) / rate
        room = self._limits.max_waiting
        return self._line.ahead(ticket, room if len(self._line) >= room else None) / rate

    def _late(self, ticket: Ticket, limit: float, reason: str) -> RequestError:
        if not self._available():
            return self._nobody()
        return self._refused(ticket, f"no free slot within {limit:.3g} s", reason)

    def _nobody(self) -> Unavailable:
        message = f"no replica of the {self.tier} tier is up"
        return Unavailable(message, code="no_replica", reason="no_replica", retry_after=2.0)

    def _refused(self, ticket: Ticket, message: str, reason: str) -> Refused:
        return Refused(
            f"the {self.tier} tier is busy: {message}",
            code=reason,
            reason=reason,
            retry_after=min(max(self._time_of(ticket), 1.0), MAX_RETRY_AFTER),
        )


class Slot:
    """A place in a tier, held while the context is open."""

    __slots__ = ("_admission", "_clock", "_since", "_ticket")

    def __init__(self, admission: Admission, ticket: Ticket, clock: Clock) -> None:
        self._admission, self._ticket, self._clock = admission, ticket, clock
        self._since = 0.0

    async def __aenter__(self) -> Self:
        await self._admission.admit(self._ticket)
        self._since = self._clock.monotonic()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admission.leave(self._ticket, self._clock.monotonic() - self._since)
