"""Singleflight: identical requests of one tenant that are there at the same time share one call to the tier.

The first one leads: its request makes the call, in its own task, exactly as if it were alone. Those that come before
its answer is complete follow. The call belongs to all of them: it ends early only when nobody waits any more.

Nothing is kept for those who may still come: the leader collects its answer for the cache anyway, and what a late
follower has missed is that collection, sent as one chunk.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self

from cache.answer import Hit
from cache.response_cache import SemanticLookup
from core.clock import Clock
from core.config import TierName
from core.errors import RequestError, Unavailable, UpstreamError
from gateway.interrupt import Interruptible

# Tenant, fingerprint, priority: the tenant also where the operator lets all tenants share one cache.
Key = tuple[str, str, str]
Phase = Literal["queued", "called", "streaming", "landed"]
# What one reader may be behind the flight before it is cut off, in bytes: thousands of tokens of a stream.
LIMIT = 1024**2
# What the fastest reader may be behind before the engine has to wait, in bytes.
ROOM = 64 * 1024
SoFar = Callable[[], bytes | None]
Outcome = Hit | SemanticLookup | RequestError


class TooSlow(RequestError):
    """A client reads a shared stream so slowly that what it has not taken yet would have to be kept for it alone."""

    status = 408
    type = "invalid_request_error"
    code = "client_too_slow"

    def __init__(self) -> None:
        super().__init__("this answer is shared with faster readers, and too much of it was not read in time")


class Failed(RequestError):
    """The gateway failed on the request that led."""

    code = "internal_error"

    def __init__(self) -> None:
        super().__init__("the gateway failed on this request")


class Unshareable(UpstreamError):
    """What the tier answered is nothing that can be given to several clients."""

    code = "upstream_unshareable"


class Backlog:
    """What was relayed and not yet taken by one reader, in order."""

    __slots__ = ("_chunks", "_closed", "_freed", "_news", "size")

    def __init__(self, freed: Callable[[], None]) -> None:
        self._chunks: list[bytes] = []
        self._closed = False
        self._freed = freed
        self._news = asyncio.Event()
        self.size = 0

    def push(self, chunk: bytes) -> bool:
        """Add what was relayed; whether the reader is still near enough."""
        if self.size > LIMIT:
            return False
        self._chunks.append(chunk)
        self.size += len(chunk)
        self._news.set()
        return True

    def finish(self, chunk: bytes) -> None:
        """The last part, however far behind the reader is: cutting it off just before the end would help nobody."""
        self._chunks.append(chunk)
        self.close()

    def close(self) -> None:
        """Nothing more will come."""
        self._closed = True
        self._news.set()

    def poke(self) -> None:
        """Something else has changed."""
        self._news.set()

    async def changed(self) -> None:
        """Wait for news of any kind."""
        await self._news.wait()
        self._news.clear()

    @property
    def done(self) -> bool:
        """Whether everything was taken and nothing more will come."""
        return self._closed and not self._chunks

    async def take(self) -> bytes:
        """Everything that is there, once there is something or the end; the last part leaves the backlog `done`."""
        while not self._chunks and not self._closed:
            await self.changed()
        taken = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self.size = 0
        self._freed()
        return taken


class Follower(Backlog):
    """One who shares a flight. `stream`, `usage`: as its client asked. `leave` must be called, once."""

    __slots__ = ("_block", "flight", "stream", "usage")

    def __init__(self, flight: "Flight", block: Interruptible, *, stream: bool, usage: bool) -> None:
        super().__init__(flight.freed)
        self.flight, self.stream, self.usage = flight, stream, usage
        self._block = block

    @property
    def served(self) -> bool:
        """Whether there is something for this client: the answer, its end, or its chunks where it streams."""
        return self.flight.phase == "landed" or (self.stream and self.flight.phase == "streaming")

    def cut(self) -> None:
        """End this request: it has fallen too far behind."""
        self._block.trip(TooSlow())

    def leave(self) -> None:
        """Wait no longer."""
        self.flight.left_by(self)


class Flight:
    """One call and who waits for it. `tier`: where it goes, once that is known.

    `outcome`, when it has landed: the answer (where somebody follows), what the semantic layer found instead of a call,
    or the error. `left`:
    why the leader's own client gets nothing more, while the flight goes on for the others. `shared`: somebody follows,
    or has followed. `began`: a part of the answer was passed on.
    """

    def __init__(self, key: Key, flights: "Flights", block: Interruptible) -> None:
        self.key = key
        self.phase: Phase = "queued"
        self.tier: TierName | None = None
        self.outcome: Outcome | None = None
        self.left: BaseException | None = None
        self.left_at: float | None = None
        # The leader waits for its own client to read: who came now would wait for that client as well.
        self.blocked = False
        self.shared = self.began = False
        self._flights, self._block = flights, block
        self._followers: set[Follower] = set()
        self._leader: Backlog | None = None
        self._so_far: SoFar | None = None
        # Made when there is somebody to wait for.
        self._room: asyncio.Event | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.phase != "landed":
            self.land(Failed() if error is None else _for_others(error, self._block.cause))

    def join(self, block: Interruptible, *, stream: bool, usage: bool) -> Follower | None:
        """Follow from here on; None where that cannot be."""
        if self.blocked or self.phase == "landed":
            return None
        follower = Follower(self, block, stream=stream, usage=usage)
        if self._so_far is not None:
            missed = self._so_far()
            if missed is None:
                return None
            if stream and missed:
                follower.push(missed)
        self.shared = True
        self._followers.add(follower)
        # It may be faster than all that the engine waits for.
        self.freed()
        return follower

    # The leader's side

    def trip(self, cause: BaseException) -> None:
        """The leader's client has left: the flight ends with it, unless somebody follows."""
        if self._followers:
            self.left, self.left_at = cause, self._flights.clock.monotonic()
            if self._leader is not None:
                self._leader.close()
            self.freed()
        else:
            self._flights.forget(self)
            self._block.trip(cause)

    def dispatched(self, tier: TierName) -> None:
        """The call is being made, to this tier."""
        self.phase, self.tier = "called", tier
        if self._followers:
            self._poke()

    def begin(self, so_far: SoFar) -> None:
        """The answer comes as a stream, and nothing was passed on yet.

        `so_far` makes one chunk of all that has come up to the moment of its call: b"" where that is nothing, None
        where it cannot.
        """
        self.phase, self._so_far, self.began = "streaming", so_far, True
        self._poke()

    def push(self, chunk: bytes) -> None:
        """Pass on a part of the stream."""
        for follower in [one for one in self._followers if one.stream and not one.push(chunk)]:
            self.left_by(follower)
            follower.cut()

    def detach(self) -> Backlog:
        """The leader reads at its own pace from here on."""
        self._leader = Backlog(self.freed)
        return self._leader

    async def room(self) -> None:
        """Wait until somebody has taken most of what there is: the slower ones hold up nobody."""
        while self._nearest() > ROOM:
            if self._room is None:
                self._room = asyncio.Event()
            self._room.clear()
            await self._room.wait()

    def land(self, outcome: Outcome | Callable[[], Outcome], *, usage: bytes = b"", last: bytes = b"") -> None:
        """Everything has come; `outcome`, or what makes it where somebody follows.

        `usage`, `last`: the events that end a stream, the first for those who asked for it.
        """
        if self.phase == "landed":
            return
        streamed, self.phase = self.phase == "streaming", "landed"
        self._flights.forget(self)
        if not callable(outcome):
            self.outcome = outcome
        elif self._followers:
            self.outcome = outcome()
        for follower in self._followers:
            if streamed and follower.stream and (end := usage + last if follower.usage else last):
                follower.finish(end)
            follower.close()

    def _nearest(self) -> int:
        readers: list[Backlog] = [one for one in self._followers if one.stream]
        if len(readers) < len(self._followers):
            # Who waits for the whole answer is always ready for more.
            return 0
        if self._leader is not None and self.left is None:
            readers.append(self._leader)
        return min((reader.size for reader in readers), default=0)

    # The followers' side

    def left_by(self, follower: Follower) -> None:
        """One follower less; where it was the last that waited, the call ends."""
        if follower not in self._followers:
            return
        self._followers.remove(follower)
        self.freed()
        if not self._followers and self.left is not None and self.phase != "landed":
            self._flights.forget(self)
            self._block.trip(self.left)

    def freed(self) -> None:
        """Somebody has taken something, or left."""
        if self._room is not None:
            self._room.set()

    def _poke(self) -> None:
        for follower in self._followers:
            follower.poke()


class Flights:
    """The flights of this process, each under its tenant and question."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._flights: dict[Key, Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, key: Key) -> bool:
        return key in self._flights

    def join(self, key: Key, block: Interruptible, *, stream: bool, usage: bool) -> Follower | None:
        """Follow the flight with this key; None where there is none, or none that can be followed."""
        flight = self._flights.get(key)
        return None if flight is None else flight.join(block, stream=stream, usage=usage)

    def lead(self, key: Key, block: Interruptible) -> Flight:
        """A flight, led by what runs in its context. `block` is the leader's, and ends the call when tripped.

        An error that leaves the context ends it for all.
        """
        flight = self._flights[key] = Flight(key, self, block)
        return flight

    def forget(self, flight: Flight) -> None:
        """Let nobody join any more."""
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]


def _for_others(error: BaseException, cause: BaseException | None) -> RequestError:
    """What followers are told of an error in the leader's task; `cause`: why that was interrupted, where it was."""
    told = cause or error
    if isinstance(told, RequestError):
        return told
    if isinstance(told, asyncio.CancelledError):
        return Unavailable("the gateway is stopping", code="draining", reason="draining", retry_after=1.0)
    return Failed()
