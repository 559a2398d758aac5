"""One HTTP request and its response on the ASGI wire."""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from core.errors import PayloadTooLarge, RequestError
from gateway.envelope import Headers
from gateway.interrupt import ClientGone, Interruptible, Trippable

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

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

    `arrived`: monotonic seconds. After `watch`, the client's leaving trips what was given last with ClientGone.
    """

    __slots__ = (
        "_body_read", "_receive", "_send", "_watched", "_watcher", "arrived", "finished", "headers", "method", "path",
        "query", "raw_path", "request_id", "started", "status",
    )  # fmt: skip

    def __init__(self, scope: Scope, receive: Receive, send: Send, arrived: float) -> None:
        self._receive, self._send = receive, send
        self._watcher: asyncio.Task[None] | None = None
        self._watched: Trippable | None = None
        self.arrived = arrived
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.raw_path: str = (scope.get("raw_path") or self.path.encode()).decode("latin-1")
        self.query: bytes = scope.get("query_string", b"")
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.request_id = request_id(self.headers.get(b"x-request-id"))
        self.status: int | None = None
        self.started = self.finished = self._body_read = False

    def header(self, name: bytes) -> str | None:
        """A request header as text; `name` in lower case."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    async def body(self, limit: int, block: Interruptible) -> bytes:
        """The whole request body.

        Raises PayloadTooLarge above `limit` bytes, ClientGone where the client leaves; trips `block` with BodyTimeout
        where it stalls.
        """
        length = self.headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > limit:
            raise PayloadTooLarge(f"the body is larger than {limit} bytes")
        message = await self._next(block)
        if not message.get("more_body", False):
            whole: bytes = message.get("body", b"")
            if len(whole) > limit:
                raise PayloadTooLarge(f"the body is larger than {limit} bytes")
            return whole
        parts, size = [message.get("body", b"")], len(message.get("body", b""))
        while message.get("more_body", False):
            if size > limit:
                raise PayloadTooLarge(f"the body is larger than {limit} bytes")
            message = await self._next(block)
            parts.append(message.get("body", b""))
            size += len(parts[-1])
        if size > limit:
            raise PayloadTooLarge(f"the body is larger than {limit} bytes")
        return b"".join(parts)

    async def discard(self) -> None:
        """Read what is left of the body for nothing, within limits.

        A client that is still sending when the connection closes sees a reset instead of the answer.
        """
        size = 0
        try:
            async with asyncio.timeout(DISCARD_PATIENCE):
                while not self._body_read and size < DISCARD_BYTES:
                    message = await self._receive()
                    self._body_read = not message.get("more_body", False)
                    size += len(message.get("body", b""))
        except TimeoutError:
            return

    async def _next(self, block: Interruptible) -> Message:
        late = BodyTimeout(f"nothing of the body came for {BODY_PATIENCE:g} s")
        timer = asyncio.get_running_loop().call_later(BODY_PATIENCE, block.trip, late)
        try:
            message = await self._receive()
        finally:
            timer.cancel()
        if message["type"] == "http.disconnect":
            raise ClientGone
        self._body_read = not message.get("more_body", False)
        return message

    def watch(self, block: Trippable) -> None:
        """Trip `block`, and nothing else, with ClientGone when the client leaves before the response is complete."""
        self._watched = block
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch())

    def unwatch(self) -> None:
        """Stop watching."""
        if self._watcher is not None:
            # It waits on nothing but the server's message event: the cancellation ends it in the next turn.
            self._watcher.cancel()
            self._watcher = None

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.finished and self._watched is not None:
            self._watched.trip(ClientGone())

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers."""
        self.started, self.status = True, status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, chunk: bytes) -> None:
        """Send a part of the body; waits while the client does not read."""
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def end(self, chunk: bytes = b"") -> None:
        """Send the last part of the body."""
        self.finished = True
        await self._send({"type": "http.response.body", "body": chunk, "more_body": False})

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response; its length is added."""
        headers.append((b"content-length", b"%d" % len(body)))
        await self.start(status, headers)
        await self.end(body)


def request_id(given: bytes | None) -> str:
    """The client's id where it is a sane token, else one of ours."""
    if given is not None and _SANE_ID.fullmatch(given):
        return given.decode("ascii")
    return f"{random.getrandbits(128):032x}"
