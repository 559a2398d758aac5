"""The servers of one tier: which one to ask, and whether to ask another before the first content byte."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from core.clock import Clock
from core.config.records import TierName
from core.errors import RequestError, Unavailable, UpstreamError, UpstreamTimeout
from gateway.envelope import EngineFault
from gateway.upstream.base import Broken, Call, ConnectFailed, ConnectTimeout, Reply, Server, Upstream
from gateway.upstream.breaker import Breaker
from gateway.upstream.budget import RetryBudget

Begun = TypeVar("Begun")
Health = Literal["unknown", "up", "down"]
Cause = Callable[[], BaseException | None]

# Most calls that one request may cost.
MAX_TRIES = 3
# Largest error body that is read from an engine.
MAX_ERROR_BODY = 256 * 1024
# A full server is believed for so long when it says when to come back, in seconds; and a request of which every server
# is full waits for one of them once, if that takes no longer than MAX_PAUSE.
MAX_RETRY_AFTER = 30.0
MAX_PAUSE = 1.0


class Replica:
    """One server.

    `health` is the probe's verdict, `fault` its reason, `context` the context length in tokens that the server told it.
    `busy_until`: the second until which it asked to be left alone.
    """

    __slots__ = ("breaker", "busy_until", "context", "fault", "health", "outstanding", "server")

    def __init__(self, server: Server, clock: Clock) -> None:
        self.server = server
        self.breaker = Breaker(clock)
        self.outstanding = 0
        self.health: Health = "unknown"
        self.fault: str | None = None
        self.context: int | None = None
        self.busy_until = 0.0

    @property
    def url(self) -> str:
        """Its address, without /v1."""
        return self.server.url

    def settle(self, began: float, error: BaseException | None) -> None:
        """A call that began then has ended: None where it was good."""
        if error is None or (isinstance(error, RequestError) and not is_fault(error)):
            self.breaker.succeeded(began)
        elif isinstance(error, RequestError):
            self.breaker.failed(began, gone=isinstance(error, ConnectFailed | ConnectTimeout))
        else:
            self.breaker.unknown(began)


@dataclass(slots=True)
class Opened(Generic[Begun]):
    """A reply that is good so far, on the replica that gives it. `close` must be called, once."""

    reply: Reply
    begun: Begun
    replica: Replica
    retries: int
    began: float

    def failed(self, error: BaseException) -> None:
        """It turned bad afterwards; errors that are no fault of the server are not counted."""
        if isinstance(error, RequestError) and is_fault(error):
            self.replica.settle(self.began, error)

    def close(self) -> None:
        """Drop the connection unless the body was read to its end."""
        self.reply.close()
        self.replica.outstanding -= 1


class Replicas:
    """The servers of one tier, as they are at this moment.

    `on_error(kind)` is told every failed try, `on_retry()` every further try. Whoever follows `listeners` is called
    with a replica and whether it joins (or leaves). `unresolved` holds what is wrong with the names of servers.
    """

    def __init__(
        self,
        tier: TierName,
        upstream: Upstream,
        clock: Clock,
        on_error: Callable[[str], None],
        on_retry: Callable[[], None],
    ) -> None:
        self.tier = tier
        self.all: tuple[Replica, ...] = ()
        self.unresolved: dict[str, str] = {}
        self.listeners: list[Callable[[Replica, bool], None]] = []
        self._upstream, self._clock = upstream, clock
        self._on_error, self._on_retry = on_error, on_retry
        self._budget = RetryBudget(clock)
        self._turn = 0

    @property
    def context(self) -> int | None:
        """The context length in tokens that every server has room for; None where no server named one."""
        return min((replica.context for replica in self.all if replica.context is not None), default=None)

    @property
    def ready(self) -> bool:
        """Whether a server is known to answer."""
        return any(replica.health == "up" for replica in self.all)

    @property
    def usable(self) -> bool:
        """Whether there is a server that may be asked."""
        for replica in self.all:  # noqa: SIM110  # every request asks twice, and a generator costs thrice as much
            if replica.health != "down":
                return True
        return False

    def follow(self, servers: Iterable[Server]) -> None:
        """These are the servers. Known ones stay as they are; calls to those that are gone run on."""
        known = {replica.server: replica for replica in self.all}
        wanted = dict.fromkeys(servers)
        self.all = tuple(known.get(server) or Replica(server, self._clock) for server in wanted)
        changes = [(known[server], False) for server in known.keys() - wanted.keys()]
        changes += [(replica, True) for replica in self.all if replica.server not in known]
        for replica, joins in changes:
            for listener in self.listeners:
                listener(replica, joins)

    async def open(
        self, call: Call, begin: Callable[[Reply], Awaitable[Begun]], cause: Cause | None = None
    ) -> Opened[Begun]:
        """The first good reply to `call`.

        `begin` reads a 2xx reply as far as it must to know that it is good, and raises a RequestError otherwise.
        `cause` says why the call was cancelled. Raises Unavailable where no server is up, else the last server's fault.
        """
        self._budget.asked()
        tried: list[Replica] = []
        replica = self._pick(tried)
        if replica is None:
            message = f"no replica of the {self.tier} tier is up"
            raise Unavailable(message, code="no_replica", reason="no_replica", retry_after=2.0)
        while True:
            replica.outstanding += 1
            reply: Reply | None = None
            began = replica.breaker.begin()
            try:
                reply = await self._upstream.send(replica.server, call)
                if reply.status >= 300:
                    await _refused(reply)
                begun = await begin(reply)
                replica.breaker.succeeded(began)
                return Opened(reply, begun, replica, len(tried), began)
            except BaseException as error:
                ended = cause() if cause is not None else None
                self._failed(replica, began, reply, error, ended)
                if not isinstance(error, RequestError):
                    raise
                self._on_error(kind_of(error))
                tried.append(replica)
                following = self._following(error, tried) if error.retryable else None
                if following is None:
                    raise
            replica, pause = following
            self._on_retry()
            if pause > 0:
                await asyncio.sleep(pause)

    def _failed(
        self, replica: Replica, began: float, reply: Reply | None, error: BaseException, cause: BaseException | None
    ) -> None:
        """A call that began then has failed, by itself or for a cause from outside."""
        replica.settle(began, cause or error)
        if is_saturation(error):
            asked = error.retry_after if isinstance(error, RequestError) else None
            replica.busy_until = self._clock.monotonic() + min(asked or 0.0, MAX_RETRY_AFTER)
        replica.outstanding -= 1
        if reply is not None:
            reply.close()

    def _following(self, error: RequestError, tried: list[Replica]) -> tuple[Replica, float] | None:
        """Whom to ask after this error, and in how many seconds; None for nobody."""
        if len(tried) >= MAX_TRIES:
            return None
        # Nothing was sent to a server that is not there, so asking another one adds no load.
        free = isinstance(error, ConnectFailed | ConnectTimeout)
        other = self._pick(tried)
        if other is not None:
            return (other, 0.0) if free or self._budget.spend() else None
        if len(tried) == 1 and isinstance(error, Broken):
            # A connection that broke before an answer is tried once more: a server may close an idle one just then.
            return (tried[0], 0.0) if self._budget.spend() else None
        if is_saturation(error) and error.retry_after is not None and len(set(tried)) == len(tried):
            first = min(tried, key=lambda replica: replica.busy_until)
            pause = first.busy_until - self._clock.monotonic()
            if pause <= MAX_PAUSE and self._budget.spend():
                return first, max(pause, 0.0)
        return None

    def _pick(self, tried: list[Replica]) -> Replica | None:
        """The replica with the fewest calls in flight; equals take turns.

        One that is known to answer comes before one that has not been asked yet, one that is not full before a full
        one; and one whose breaker is open is better than none: a tier is never without its last replica.
        """
        if len(self.all) == 1:
            only = self.all[0]
            return only if not tried and only.health != "down" else None
        now = self._clock.monotonic()
        self._turn += 1
        count, turn = len(self.all), self._turn
        best: Replica | None = None
        least: tuple[int, int, int] | None = None
        for place, replica in enumerate(self.all):
            if replica.health == "down" or replica in tried:
                continue
            rank = 3
            if replica.breaker.permits:
                rank = 2 if replica.health == "unknown" else 1 if replica.busy_until > now else 0
            order = (rank, replica.outstanding, (place - turn) % count)
            if least is None or order < least:
                best, least = replica, order
        return best


async def _refused(reply: Reply) -> None:
    raise await fault(reply)


async def fault(reply: Reply) -> EngineFault:
    """The error that a reply with such a status carries; reads its body."""
    parts: list[bytes] = []
    size = 0
    while chunk := await reply.read():
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_ERROR_BODY:
            break
    after = next((value for name, value in reply.headers if name == b"retry-after"), b"")
    return EngineFault(reply.status, b"".join(parts), float(after) if after.isdigit() else None)


def is_saturation(error: BaseException) -> bool:
    """Whether the server is well but full."""
    if not isinstance(error, EngineFault):
        return False
    return error.engine_status == 429 or (error.engine_status == 503 and error.retry_after is not None)


def is_fault(error: RequestError) -> bool:
    """Whether the server is to blame: not for what the client asked wrong, and not for being full."""
    if isinstance(error, EngineFault):
        return error.engine_status >= 500 and not is_saturation(error)
    return isinstance(error, UpstreamError | UpstreamTimeout)


def kind_of(error: RequestError) -> str:
    """The bounded name of a fault, for metrics and the log line."""
    if isinstance(error, EngineFault):
        return f"status_{error.engine_status}" if error.engine_status in (429, 500, 502, 503, 504) else "status"
    kinds: tuple[tuple[type[RequestError], str], ...] = (
        (ConnectFailed, "connect"),
        (ConnectTimeout, "connect_timeout"),
        (Broken, "broken"),
        (UpstreamError, "error"),
    )
    return next((kind for known, kind in kinds if isinstance(error, known)), "timeout")
