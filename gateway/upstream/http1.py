"""The upstream client for plain-http servers: keep-alive connections per server.

A relay's cost is mostly its HTTP client (docs/adr/0001). This one does what an engine's answer needs and no more: one
request at a time per connection, no redirects, no proxies, no cookies, no TLS.
"""

import asyncio
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from core.clock import Clock, SystemClock
from core.memo import Memo
from gateway.upstream.base import Call, ConnectFailed, ConnectTimeout, Server
from gateway.upstream.connection import Connection, Http1Reply

# vLLM's server closes idle connections after 5 s: ours go first.
KEEP_ALIVE = 4.0
# Addresses of replicas that came and went are forgotten together above so many.
MAX_PLACES = 10_000
# Writes a header of a request.
HEADER = "%s: %s\r\n".__mod__


class Http1Upstream:
    """Calls to plain-http servers. An async context manager; leaving it drops what is still open.

    `clock`: what tells when bytes of an answer come.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._idle: dict[tuple[str, int], list[Connection]] = {}
        self._servers: dict[Connection, tuple[str, int]] = {}
        self._places: Memo[str, tuple[tuple[str, int], str, str]] = Memo(MAX_PLACES)
        self._sweeper: asyncio.TimerHandle | None = None
        self._open = False
        self._loop: asyncio.AbstractEventLoop

    async def __aenter__(self) -> Self:
        # Kept: asking for the running one is a system call.
        self._loop = asyncio.get_running_loop()
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in tuple(self._servers):
            connection.abort()
        # The loop closes their sockets in its next turn.
        await asyncio.sleep(0)

    async def send(self, server: Server, call: Call) -> Http1Reply:
        """One call; waits for the reply's head."""
        if not self._open:
            raise ConnectFailed("the upstream client is closed")
        address, host, base = self._place(server.url)
        head = request_head(call, f"{base}{call.path}", server.host or host)
        connection = self._kept(address)
        if connection is None:
            connection = await self._connect(address, call.connect)
        reply = connection.ask(head, call.body)
        try:
            await reply.head()
        except BaseException:
            reply.close()
            raise
        return reply

    def _place(self, url: str) -> tuple[tuple[str, int], str, str]:
        """Address, Host header and path prefix of a server."""
        found = self._places.get(url)
        if found is None:
            parts = urlsplit(url)
            if parts.scheme != "http" or parts.hostname is None:
                raise ValueError(f"not a plain-http address: {url!r}")
            address = (parts.hostname, parts.port or 80)
            found = self._places.keep(url, (address, parts.netloc.rpartition("@")[2], parts.path.rstrip("/")))
        return found

    def _kept(self, address: tuple[str, int]) -> Connection | None:
        """The connection that was idle for the shortest time, where one is fresh enough."""
        idle = self._idle.get(address)
        if not idle:
            return None
        connection = idle.pop()
        if connection.lost or self._loop.time() - connection.idle_since > KEEP_ALIVE:
            connection.abort()
            return None
        return connection

    async def _connect(self, address: tuple[str, int], limit: float) -> Connection:
        loop = self._loop
        try:
            async with asyncio.timeout(limit):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop, self._clock, self._ended), *address
                )
        except TimeoutError as error:
            raise ConnectTimeout(f"no connection within {limit:g} s") from error
        except OSError as error:
            raise ConnectFailed(f"cannot connect: {type(error).__name__}: {error}") from error
        self._servers[connection] = address
        return connection

    def _ended(self, connection: Connection, reusable: bool) -> None:
        """An answer was read, or an idle connection was closed by its server."""
        address = self._servers.get(connection)
        if address is None:
            return
        idle = self._idle.setdefault(address, [])
        if reusable and self._open:
            connection.idle_since = self._loop.time()
            idle.append(connection)
            if self._sweeper is None:
                self._sweeper = self._loop.call_later(KEEP_ALIVE, self._sweep)
            return
        if connection.lost:
            del self._servers[connection]
        if connection in idle:
            idle.remove(connection)
        if not idle:
            del self._idle[address]

    def _sweep(self) -> None:
        """Close what has been idle for too long."""
        self._sweeper = None
        oldest = self._loop.time() - KEEP_ALIVE
        for idle in tuple(self._idle.values()):
            # In order of age: the one used last is at the end, and is taken first.
            for connection in [kept for kept in idle if kept.idle_since <= oldest]:
                connection.abort()
        if self._idle:
            self._sweeper = self._loop.call_later(KEEP_ALIVE, self._sweep)


def request_head(call: Call, target: str, host: str) -> bytes:
    """Request line and headers. Raises ValueError for a line break in any of them."""
    given = "".join(map(HEADER, call.headers.items()))
    length = ""
    if call.body or call.method not in ("GET", "HEAD", "DELETE", "OPTIONS"):
        length = f"content-length: {len(call.body)}\r\n"
    text = f"{call.method} {target} HTTP/1.1\r\nhost: {host}\r\n{given}{length}\r\n"
    # Of our own: after the request line, the host, each header, the length, and at the end.
    breaks = len(call.headers) + (4 if length else 3)
    if text.count("\n") != breaks or text.count("\r") != breaks or "\0" in text:
        raise ValueError("a request line or header holds a line break")
    return text.encode("latin-1")
