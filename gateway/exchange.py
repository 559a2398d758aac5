"""One HTTP request and its response on their wire."""

import asyncio
import random
import re
from collections.abc import Awaitable

from core.errors import PayloadTooLarge, RequestError
from gateway.envelope import Headers
from gateway.interrupt import ClientGone, Interruptible, Trippable
from gateway.wire.asgi import AsgiWire, Receive, Scope, Send
from gateway.wire.base import Wire

# Kept as the client sent it: long enough for a UUID or a trace id, nothing that could break a log line or a header.
_SANE_ID = re.compile(rb"[A-Za-z0-9._:\-]{1,128}")
# A client that sends nothing of its body for so long has stalled, in seconds.
BODY_PATIENCE = 30.0
# Of a body that is refused, so much is read before the answer, in bytes and seconds.
DISCARD_BYTES = 64 * 1024**2
DISCARD_PATIENCE = 5.0


class BodyTimeout(RequestError):
    """The client did not send its body."""

    status = 408
    type = "invalid_request_error"
    code = "body_timeout"


class Exchange:
    """The wire of one request: its headers, its body once, and one response.

    `arrived`: monotonic seconds. `headers`: names in lower case. After `watch`, the client's leaving trips what was
    given last with ClientGone.
    """

    __slots__ = (
        "_body_read", "_wire", "arrived", "finished", "headers", "method", "path", "query", "raw_path", "request_id",
        "started", "status",
    )  # fmt: skip

    def __init__(self, wire: Wire, method: str, path: str, headers: dict[bytes, bytes], arrived: float) -> None:
        self._wire = wire
        self.arrived = arrived
        self.method, self.path, self.headers = method, path, headers
        self.raw_path, self.query = path, b""
        given = headers.get(b"x-request-id")
        self.request_id = f"{random.getrandbits(128):032x}" if given is None else request_id(given)
        self.status: int | None = None
        self.started = self.finished = self._body_read = False

    @classmethod
    def asgi(cls, scope: Scope, receive: Receive, send: Send, arrived: float) -> "Exchange":
        """The exchange of an ASGI request."""
        path: str = scope["path"]
        exchange = cls(AsgiWire(receive, send), scope["method"], path, dict(scope["headers"]), arrived)
        exchange.raw_path = (scope.get("raw_path") or path.encode()).decode("latin-1")
        exchange.query = scope.get("query_string", b"")
        return exchange

    @property
    def task(self) -> "asyncio.Task[None] | None":
        """The task that answers it; None where only the event loop knows."""
        return self._wire.task

    def header(self, name: bytes) -> str | None:
        """A request header as text; `name` in lower case."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    async def body(self, limit: int, block: Interruptible) -> bytes:
        """The whole request body.

        Raises PayloadTooLarge above `limit` bytes, ClientGone where the client leaves; trips `block` with BodyTimeout
        where it stalls.
        """
        whole = self._wire.arrived_whole()
        if whole is None:
            whole = await self._collected(limit, block)
        self._body_read = True
        if len(whole) > limit:
            raise PayloadTooLarge(f"the body is larger than {limit} bytes")
        return whole

    async def _collected(self, limit: int, block: Interruptible) -> bytes:
        length = self.headers.get(b"content-length", b"")
        declared = int(length) if length.isdigit() else 0
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            if max(size, declared) > limit:
                raise PayloadTooLarge(f"the body is larger than {limit} bytes")
            part, more = await self._next(block)
            parts.append(part)
            size += len(part)
        return b"".join(parts)

    async def discard(self) -> None:
        """Read what is left of the body for nothing, within limits.

        A client that is still sending when the connection closes sees a reset instead of the answer.
        """
        size = 0
        if self._body_read or self._wire.arrived_whole() is not None:
            return
        try:
            async with asyncio.timeout(DISCARD_PATIENCE):
                while not self._body_read and size < DISCARD_BYTES:
                    part, more = await self._wire.receive()
                    self._body_read = not more
                    size += len(part)
        except (TimeoutError, ClientGone):
            return

    async def _next(self, block: Interruptible) -> tuple[bytes, bool]:
        late = BodyTimeout(f"nothing of the body came for {BODY_PATIENCE:g} s")
        timer = asyncio.get_running_loop().call_later(BODY_PATIENCE, block.trip, late)
        try:
            part, more = await self._wire.receive()
        finally:
            timer.cancel()
        self._body_read = not more
        return part, more

    def watch(self, block: Trippable) -> None:
        """Trip `block`, and nothing else, with ClientGone when the client leaves before the response is complete."""
        self._wire.watch(block)

    def unwatch(self) -> None:
        """Stop watching."""
        self._wire.watch(None)

    def start(self, status: int, headers: Headers) -> Awaitable[None]:
        """Send status and headers."""
        self.started, self.status = True, status
        return self._wire.start(status, headers)

    def write(self, chunk: bytes) -> Awaitable[None]:
        """Send a part of the body; waits while the client does not read."""
        return self._wire.write(chunk, more=True)

    def put(self, chunk: bytes) -> bool:
        """Send a part of the body, where that can be done at once; whether it was."""
        return self._wire.put(chunk)

    def end(self, chunk: bytes = b"") -> Awaitable[None]:
        """Send the last part of the body."""
        self.finished = True
        return self._wire.write(chunk, more=False)

    def respond(self, status: int, headers: Headers, body: bytes) -> Awaitable[None]:
        """Send a whole response; its length is added."""
        headers.append((b"content-length", b"%d" % len(body)))
        self.started, self.status, self.finished = True, status, True
        return self._wire.whole(status, headers, body)


def request_id(given: bytes) -> str:
    """The client's id where it is a sane token, else one of ours."""
    if _SANE_ID.fullmatch(given):
        return given.decode("ascii")
    return f"{random.getrandbits(128):032x}"
