"""The generator's loop: sends what is due, reads what comes, on one thread without asyncio.

An event loop rounds its timers to a millisecond and hands out readable sockets before it looks at the clock again. Here
the clock comes first: what is due is sent before anything is read, and `select` on the epoll descriptor waits to the
microsecond. Requests are made ready while nothing is due.
"""

import gc
import heapq
import select
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.load.exchange import Exchange
from bench.load.line import Closed, Line
from bench.load.prompts import Message, Prompts
from bench.load.target import Target

# Connections kept open beyond those in use, so that a request that is due finds one.
SPARE = 4
# Requests made ready beforehand.
AHEAD = 64
# Seconds: the longest sleep, and the time before the next due one in which nothing else is begun.
NAP, CALM = 0.25, 0.001
# From here on a wait may be cut to whole milliseconds.
COARSE = 0.003


@dataclass(frozen=True)
class Users:
    """A closed loop: `users` that each wait for their answer and then `think_s`.

    No request is begun after `until_s` (None: no such end); user k begins after `k * stagger_s`.
    """

    users: int
    think_s: float = 0.0
    until_s: float | None = None
    stagger_s: float = 0.0


@dataclass(frozen=True)
class Job:
    """What one process sends. `due`: ascending seconds after the start of the requests `index` (open loop).

    With `closed`, `index` are the requests in order and `due` is empty. `in_flight` bounds an open loop: who is due
    beyond it waits, and the wait is part of what is measured.
    """

    target: Target
    prompts: Prompts
    index: NDArray[np.int64]
    due: NDArray[np.float64]
    closed: Users | None = None
    in_flight: int | None = None
    timeout_s: float = 600.0


@dataclass(order=True)
class _Due:
    """A request to be sent: the next one of the schedule, or a further turn of a conversation."""

    at: float
    index: int
    turn: int
    user: int
    history: "tuple[Message, ...]"


class Loop:
    """Runs one job. `seen` are the requests in the order of their end; `area` request-seconds in flight, counted."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.seen: list[Exchange] = []
        self.area = 0.0
        self._address, self._tls, self._head = job.target.resolve(), job.target.tls(), job.target.head()
        self._poll = select.epoll()
        self._lines: dict[int, Line] = {}
        self._idle: list[Line] = []
        self._making = 0
        self._due: list[_Due] = []
        self._next = 0
        self._ready: dict[tuple[int, int], bytes] = {}
        self._made = 0
        self._busy: dict[Line, bytes] = {}
        self._histories: dict[tuple[int, int], tuple[Message, ...]] = {}
        self._counted_at = 0.0
        self._start = 0.0

    def open(self) -> None:
        """Connects and makes the first requests ready, before the start."""
        wanted = self.job.closed.users if self.job.closed is not None else SPARE
        for _ in range(min(wanted, 512)):
            self._connect()
        until = time.monotonic() + 5.0
        while self._making and time.monotonic() < until:
            self._turn(0.05)
        self._prepare(AHEAD)

    def run(self, start: float, tell: Callable[[int], None] | None = None) -> None:
        """Sends everything, from `start` (monotonic) on, and waits for the answers. `tell` hears how many there are."""
        # A collection of garbage would stop the clock for milliseconds; nothing here is cyclic.
        gc.collect()
        gc.disable()
        try:
            self._start = self._counted_at = start
            self._begin()
            checked = start
            while self._due or self._next < self._scheduled or self._busy:
                self._send_due()
                self._turn(self._pause())
                now = time.monotonic()
                if now - checked > NAP:
                    checked = now
                    self._expire(now)
                    if tell is not None:
                        tell(len(self.seen))
        finally:
            gc.enable()
            for line in list(self._lines.values()):
                self._drop(line)
            self._poll.close()

    @property
    def _scheduled(self) -> int:
        """Requests of the schedule; of a closed loop, they follow from the answers."""
        return 0 if self.job.closed is not None else len(self.job.index)

    def _begin(self) -> None:
        closed = self.job.closed
        if closed is None:
            return
        for user in range(min(closed.users, len(self.job.index))):
            self._follow(self._start + user * closed.stagger_s, user)

    def _follow(self, at: float, user: int) -> None:
        """The next request of a closed loop's user."""
        closed = self.job.closed
        if closed is None or self._next >= len(self.job.index):
            return
        if closed.until_s is not None and at >= self._start + closed.until_s:
            return
        heapq.heappush(self._due, _Due(at, int(self.job.index[self._next]), 0, user, ()))
        self._next += 1

    def _upcoming(self) -> float | None:
        """When the next request is due; None where that depends on answers."""
        soonest = self._due[0].at if self._due else None
        if self._next < self._scheduled:
            scheduled = self._start + float(self.job.due[self._next])
            return scheduled if soonest is None else min(soonest, scheduled)
        return soonest

    def _send_due(self) -> None:
        while True:
            if self.job.in_flight is not None and len(self._busy) >= self.job.in_flight:
                return
            now = time.monotonic()
            if self._next < self._scheduled:
                scheduled = self._start + float(self.job.due[self._next])
                if not self._due or scheduled <= self._due[0].at:
                    if scheduled > now:
                        return
                    self._ask(_Due(scheduled, int(self.job.index[self._next]), 0, -1, ()))
                    self._next += 1
                    continue
            if not self._due or self._due[0].at > now:
                return
            self._ask(heapq.heappop(self._due))

    def _ask(self, due: _Due) -> None:
        prompts = self.job.prompts
        keep = prompts.turns > 1
        exchange = Exchange(due.index, due.turn, due.at, keep_text=keep, user=due.user, begun=time.monotonic())
        request = self._ready.pop((due.index, due.turn), None) or self._request(due.index, due.turn, due.history)
        if keep:
            self._histories[due.index, due.turn] = due.history
        self._count()
        self._put(exchange, request)

    def _put(self, exchange: Exchange, request: bytes) -> None:
        line = self._idle.pop() if self._idle else self._connect()
        self._busy[line] = request
        try:
            line.ask(exchange, request)
        except Closed:
            self._lost(line)
        else:
            self._watch(line)

    def _request(self, index: int, turn: int, history: tuple[Message, ...]) -> bytes:
        body = self.job.prompts.body(index, turn, history)
        return self._head + str(len(body)).encode() + b"\r\n\r\n" + body

    def _turn(self, timeout: float) -> bool:
        """Handles what is readable or writable within `timeout`; whether anything was."""
        if timeout > COARSE:
            # epoll rounds up to a millisecond: so much less is asked for, and the rest is waited for below.
            events = self._poll.poll(int(timeout * 1000 - 1) / 1000)
        elif timeout > 0:
            select.select([self._poll], [], [], timeout)
            events = self._poll.poll(0)
        else:
            events = self._poll.poll(0)
        for fd, mask in events:
            line = self._lines.get(fd)
            if line is not None:
                self._handle(line, mask)
            # What became due while others were read goes first.
            upcoming = self._upcoming() if self._start else None
            if upcoming is not None and upcoming <= time.monotonic():
                self._send_due()
        return bool(events)

    def _handle(self, line: Line, mask: int) -> None:
        try:
            if mask & select.EPOLLOUT or not line.connected:
                was = line.ready
                line.flush()
                self._made_ready(line, was)
            if mask & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                was = line.ready
                line.receive()
                self._made_ready(line, was)
        except Closed:
            self._lost(line)
            return
        if line.done:
            self._answered(line, alive=line.keeps_alive)
        else:
            self._watch(line)

    def _made_ready(self, line: Line, was: bool) -> None:
        """A connection that nobody waits for has become usable."""
        if line.ready and not was:
            self._making -= 1
            if line not in self._busy:
                self._idle.append(line)

    def _watch(self, line: Line) -> None:
        wanted = select.EPOLLIN | (select.EPOLLOUT if line.waits_to_write else 0)
        if wanted != line.watched:
            self._poll.modify(line, wanted)
            line.watched = wanted

    def _answered(self, line: Line, *, alive: bool) -> None:
        exchange = line.exchange
        assert exchange is not None  # noqa: S101 - `done` belongs to an exchange
        line.exchange, line.done = None, False
        line.served += 1
        self._count()
        del self._busy[line]
        if alive:
            self._idle.append(line)
            self._watch(line)
        else:
            self._drop(line)
        self._over(exchange)

    def _lost(self, line: Line) -> None:
        """The connection is gone, with or without a request on it."""
        if not line.ready:
            self._making -= 1
        exchange, request = line.exchange, self._busy.get(line)
        if exchange is not None and request is not None:
            if line.done:
                self._answered(line, alive=False)
                return
            if line.served and exchange.byte < 0 and not exchange.status and not exchange.resent:
                # The server closed an idle connection just as this went out: HTTP clients send again.
                self._count()
                del self._busy[line]
                self._drop(line)
                exchange.resent = True
                self._put(exchange, request)
                return
            exchange.fail("reset" if line.ready else "connect", time.monotonic())
            self._count()
            del self._busy[line]
            self._drop(line)
            self._over(exchange)
            return
        self._drop(line)

    def _over(self, exchange: Exchange) -> None:
        """A request has ended: the next turn, or the user's next request."""
        self.seen.append(exchange)
        prompts, job = self.job.prompts, self.job
        now = time.monotonic()
        if prompts.turns > 1:
            history = self._histories.pop((exchange.index, exchange.turn), ())
            if not exchange.error and exchange.turn + 1 < prompts.turns:
                history = prompts.continued(exchange.index, exchange.turn, history, "".join(exchange.text))
                turn = exchange.turn + 1
                heapq.heappush(self._due, _Due(now + prompts.think_s, exchange.index, turn, exchange.user, history))
                return
        if job.closed is not None:
            self._follow(now + job.closed.think_s, exchange.user)

    def _count(self) -> None:
        """Before the number in flight changes."""
        now = time.monotonic()
        self.area += len(self._busy) * (now - self._counted_at)
        self._counted_at = now

    def _pause(self) -> float:
        """How long nothing is due; makes requests and connections ready first where there is time."""
        full = self.job.in_flight is not None and len(self._busy) >= self.job.in_flight
        upcoming = None if full else self._upcoming()
        now = time.monotonic()
        if upcoming is None or upcoming - now > CALM:
            if len(self._idle) + self._making < SPARE and self.job.closed is None and self._next < self._scheduled:
                self._connect()
            if self._prepare(1):
                return 0.0
        if upcoming is None:
            return NAP
        return min(max(upcoming - time.monotonic(), 0.0), NAP)

    def _prepare(self, most: int) -> bool:
        """Makes up to `most` of the next requests ready; whether there was one to make."""
        made = False
        while most > 0 and self._made < min(self._next + AHEAD, len(self.job.index)):
            if self._made >= self._next:
                index = int(self.job.index[self._made])
                self._ready[index, 0] = self._request(index, 0, ())
                made, most = True, most - 1
            self._made += 1
        return made

    def _connect(self) -> Line:
        line = Line(self.job.target, self._address, self._tls)
        line.watched = select.EPOLLIN | select.EPOLLOUT
        self._lines[line.fileno()] = line
        self._making += 1
        self._poll.register(line, line.watched)
        return line

    def _drop(self, line: Line) -> None:
        if self._lines.pop(line.fileno(), None) is not None:
            self._poll.unregister(line)
        if line in self._idle:
            self._idle.remove(line)
        line.close()

    def _expire(self, now: float) -> None:
        late = [line for line in self._busy if line.exchange and now - line.exchange.due > self.job.timeout_s]
        for line in late:
            exchange = line.exchange
            assert exchange is not None  # noqa: S101 - filtered above
            if not line.ready:
                self._making -= 1
            exchange.fail("timeout", now)
            self._count()
            del self._busy[line]
            self._drop(line)
            self._over(exchange)
