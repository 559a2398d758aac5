"""Stopping an engine when the client has left."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

# Seconds that a handler gets to end by itself once it was told that the client has left.
_LEAVE = 0.5


class EndOnCancel:
    """ASGI middleware that turns a cancelled request into a client that left.

    Serve cancels the task of a request whose client has gone. vLLM's handlers of requests that do not stream wait for
    a task of their own, which such a cancellation does not reach: it would generate to the end. They do listen for
    `http.disconnect`, so that is what they get, and a moment to act on it, before they are cancelled.
    """

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        left = asyncio.Event()

        async def receive_or_leave() -> Message:
            return await _first(receive, left)

        request = asyncio.ensure_future(self._app(scope, receive_or_leave, send))
        try:
            await asyncio.shield(request)
        except asyncio.CancelledError:
            left.set()
            await asyncio.wait([request], timeout=_LEAVE)
            request.cancel()
            raise


async def _first(receive: Receive, left: asyncio.Event) -> Message:
    """The next message, or `http.disconnect` as soon as `left` is set."""
    message = asyncio.ensure_future(receive())
    leaving = asyncio.ensure_future(left.wait())
    try:
        await asyncio.wait([message, leaving], return_when=asyncio.FIRST_COMPLETED)
        return {"type": "http.disconnect"} if left.is_set() else message.result()
    finally:
        message.cancel()
        leaving.cancel()
