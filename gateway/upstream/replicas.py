"""The servers of one tier: which one to ask, and whether to ask another before the first content byte."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from core.clock import Clock
from core.config.records import TierName
from core.errors import RequestError, Unavailable, UpstreamError
from gateway.envelope import EngineFault
from gateway.upstream.base import Broken, Call, ConnectFailed, ConnectTimeout, Reply, Upstream

Begun = TypeVar("Begun")
Health = Literal["unknown", "up", "down"]

# How long a server that could not be reached is left alone while others can be asked, in seconds.
COOL_OFF = 2.0
# Most servers that one request is tried on.
MAX_TRIES = 3
# Largest error body that is read from an engine.
MAX_ERROR_BODY = 256 * 1024


@dataclass(eq=False, slots=True)
class Replica:
    """One server address.

    `health` is the probe's verdict, `fault` its reason, `context` the context length in tokens that the server told it.
    `avoid_until` follows a failed call.
    """

    url: str
    outstanding: int = 0
    health: Health = "unknown"
    fault: str | None = None
    context: int | None = None
    avoid_until: float = 0.0


@dataclass(slots=True)
class Opened(Generic[Begun]):
    """A reply that is good so far, on the replica that gives it. `close` must be called, once."""

    reply: Reply
    begun: Begun
    replica: Replica
    retries: int

    def close(self) -> None:
        """Drop the connection unless the body was read to its end."""
        self.reply.close()
        self.replica.outstanding -= 1


class Replicas:
    """The servers of one tier.

    `on_error(kind)` is told every failed try, `on_retry()` every further try.
    """

    def __init__(
        self,
        tier: TierName,
        urls: Iterable[str],
        upstream: Upstream,
        clock: Clock,
        on_error: Callable[[str], None],
        on_retry: Callable[[], None],
    ) -> None:
        self.tier = tier
        self.all = tuple(Replica(url) for url in urls)
        self._upstream, self._clock = upstream, clock
        self._on_error, self._on_retry = on_error, on_retry
        self._turn = 0

    @property
    def context(self) -> int | None:
        """The context length in tokens that every server has room for; None where no server named one."""
        return min((replica.context for replica in self.all if replica.context is not None), default=None)

    @property
    def ready(self) -> bool:
        """Whether a server is known to answer."""
        return any(replica.health == "up" for replica in self.all)

    async def open(self, call: Call, begin: Callable[[Reply], Awaitable[Begun]]) -> Opened[Begun]:
        """The first good reply to `call`.

        `begin` reads a 2xx reply as far as it must to know that it is good, and raises a RequestError otherwise.
        Raises Unavailable where no server is up, else the last server's fault.
        """
        tried: list[Replica] = []
        while True:
            replica = self._pick(tried)
            if replica is None:
                raise Unavailable(
                    f"no replica of the {self.tier} tier is up", code="no_replica", reason="no_replica", retry_after=2.0
                )
            try:
                reply, begun = await self._try(replica, call, begin)
                return Opened(reply, begun, replica, len(tried))
            except RequestError as error:
                self._on_error(kind_of(error))
                tried.append(replica)
                if not error.retryable or not self._may_retry(error, tried):
                    raise
            self._on_retry()

    async def _try(
        self, replica: Replica, call: Call, begin: Callable[[Reply], Awaitable[Begun]]
    ) -> tuple[Reply, Begun]:
        replica.outstanding += 1
        reply: Reply | None = None
        good = False
        try:
            reply = await self._upstream.send(replica.url, call)
            replica.avoid_until = 0.0
            if reply.status >= 300:
                raise await fault(reply)
            begun = await begin(reply)
            good = True
        except (ConnectFailed, ConnectTimeout, Broken):
            replica.avoid_until = self._clock.monotonic() + COOL_OFF
            raise
        else:
            return reply, begun
        finally:
            if not good:
                replica.outstanding -= 1
                if reply is not None:
                    reply.close()

    def _may_retry(self, error: RequestError, tried: list[Replica]) -> bool:
        if len(tried) >= MAX_TRIES:
            return False
        if any(replica not in tried and replica.health != "down" for replica in self.all):
            return True
        # Alone, a connection that broke before an answer is tried once more: a server may close an idle one just then.
        return isinstance(error, Broken) and len(tried) == 1

    def _pick(self, tried: list[Replica]) -> Replica | None:
        """The replica with the fewest calls in flight; equals take turns."""
        if len(self.all) == 1:
            return self.all[0] if tried or self.all[0].health != "down" else None
        usable = [replica for replica in self.all if replica.health != "down" and replica not in tried]
        now = self._clock.monotonic()
        # The one that failed last is better than none: it alone shows when the tier is back.
        preferred = [replica for replica in usable if replica.avoid_until <= now] or usable
        if not preferred:
            return tried[-1] if tried else None
        self._turn += 1
        count, turn = len(self.all), self._turn
        order = {replica.url: (place - turn) % count for place, replica in enumerate(self.all)}
        return min(preferred, key=lambda replica: (replica.outstanding, order[replica.url]))


async def fault(reply: Reply) -> EngineFault:
    """The error that a reply with such a status carries; reads its body."""
    parts: list[bytes] = []
    size = 0
    while chunk := await reply.read():
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_ERROR_BODY:
            break
    after = next((value for name, value in reply.headers if name.lower() == b"retry-after"), b"")
    return EngineFault(reply.status, b"".join(parts), float(after) if after.isdigit() else None)


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
