"""The upstream client that the gateway uses: its own transport for plain http, aiohttp for the rest."""

from collections.abc import Awaitable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from core.clock import Clock
from gateway.upstream.aiohttp_client import AiohttpUpstream
from gateway.upstream.base import Call, Reply, Server
from gateway.upstream.http1 import Http1Upstream


class UpstreamClient:
    """An async context manager; leaving it drops what is still open."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._plain, self._any = Http1Upstream(clock), AiohttpUpstream()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._plain)
        await self._stack.enter_async_context(self._any)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def send(self, server: Server, call: Call) -> Awaitable[Reply]:
        """One call; waits for the reply's head."""
        # The answer to a HEAD has the length of a body that does not come, which the parser cannot be told.
        if server.url.startswith("http://") and call.method != "HEAD":
            return self._plain.send(server, call)
        return self._any.send(server, call)
