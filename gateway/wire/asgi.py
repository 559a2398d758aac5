"""The wire of a request that came through an ASGI server."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gateway.envelope import Headers
from gateway.interrupt import ClientGone, Trippable

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class AsgiWire:
    """Works with any ASGI server; see gateway.wire.base.Wire. After the whole body, `watch` costs a task."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.task: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._watched: Trippable | None = None
        self._complete = False

    def arrived_whole(self) -> bytes | None:
        """Only the server knows."""
        return None

    async def receive(self) -> tuple[bytes, bool]:
        """The next part of the body."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        return message.get("body", b""), message.get("more_body", False)

    def watch(self, block: Trippable | None) -> None:
        """Have `block` tripped when the client leaves."""
        self._watched = block
        if block is not None and self._watcher is None:
            self._watcher = asyncio.create_task(self._watch(), name="client")
        elif block is None and self._watcher is not None:
            # It waits on nothing but the server's message event: the cancellation ends it in the next turn.
            self._watcher.cancel()
            self._watcher = None

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._complete and self._watched is not None:
            self._watched.trip(ClientGone())

    async def start(self, status: int, headers: Headers) -> None:
        """Status and headers."""
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    def put(self, chunk: bytes) -> bool:
        """Never at once: the server's `send` has to be awaited."""
        del chunk
        return False

    async def write(self, chunk: bytes, *, more: bool) -> None:
        """A part of the body."""
        self._complete = not more
        await self._send({"type": "http.response.body", "body": chunk, "more_body": more})

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole response."""
        await self.start(status, headers)
        await self.write(body, more=False)
