"""Where a streamed answer goes: to the one client that asked, and to those who share its flight.

As long as nobody shares, the leader's client is written to directly, and the engine waits for it as without a flight.
From the first follower on it is written to by a task of its own, so that nobody waits for anybody.
"""

import asyncio
from typing import Protocol

from gateway.envelope import Headers
from gateway.exchange import Exchange
from gateway.flight import Backlog, Flight, TooSlow

# How long a client may take what has come before a stream broke, in seconds.
LAST_CHUNKS = 1.0


class Outlet(Protocol):
    """The sending side of one streamed answer: `start` once, `write` any number of times, `end` once.

    `put` sends a part where nobody has to be waited for, and returns whether it did. `close` comes last, whatever
    happened; it ends what still writes. Cancelling any of them loses the rest.
    """

    async def start(self, status: int, headers: Headers) -> None: ...

    def put(self, chunk: bytes) -> bool: ...

    async def write(self, chunk: bytes) -> None: ...

    async def end(self, last: bytes, *, usage: bytes) -> None: ...

    async def close(self) -> None: ...


class Direct:
    """The client alone."""

    def __init__(self, exchange: Exchange, *, show_usage: bool) -> None:
        self._exchange, self._show_usage = exchange, show_usage

    async def start(self, status: int, headers: Headers) -> None:
        """Status and headers."""
        await self._exchange.start(status, headers)

    def put(self, chunk: bytes) -> bool:
        """A part of the body, where the client reads."""
        return self._exchange.put(chunk)

    async def write(self, chunk: bytes) -> None:
        """A part of the body; waits while the client does not read."""
        await self._exchange.write(chunk)

    async def end(self, last: bytes, *, usage: bytes) -> None:
        """The last events; `usage` where the client asked for it."""
        await self._exchange.end(usage + last if self._show_usage else last)

    async def close(self) -> None:
        """Nothing is left running."""


class Shared:
    """The leader's client, and through the flight those who follow."""

    def __init__(self, exchange: Exchange, flight: Flight, *, show_usage: bool) -> None:
        self._exchange, self._flight, self._show_usage = exchange, flight, show_usage
        self._head: tuple[int, Headers] | None = None
        self._backlog: Backlog | None = None
        self._writer: asyncio.Task[None] | None = None
        self._complete = False

    async def start(self, status: int, headers: Headers) -> None:
        """Status and headers, as soon as there is a first part to send with them."""
        self._head = (status, headers)

    def put(self, chunk: bytes) -> bool:
        """A part of the body, where nobody shares and the client reads."""
        return self._head is None and not self._flight.shared and self._exchange.put(chunk)

    async def write(self, chunk: bytes) -> None:
        """A part of the body, to everybody; waits while nobody reads."""
        flight = self._flight
        if not flight.shared:
            flight.blocked = True
            try:
                if self._head is not None:
                    await self._send_head()
                await self._exchange.write(chunk)
            finally:
                flight.blocked = False
            return
        flight.push(chunk)
        if self._backlog is None:
            self._backlog = flight.detach()
            self._writer = asyncio.create_task(self._write_out(self._backlog), name="leader of a flight")
        if flight.left is None and not self._backlog.push(chunk):
            flight.trip(TooSlow())
        await flight.room()

    async def end(self, last: bytes, *, usage: bytes) -> None:
        """The last events to the leader's client; its followers have them from the flight's landing."""
        end = usage + last if self._show_usage else last
        if self._backlog is None or self._writer is None:
            await self._send_head()
            await self._exchange.end(end)
        elif self._flight.left is None:
            self._complete = True
            self._backlog.finish(end)
            await asyncio.wait({self._writer})
            self._writer.result()

    async def close(self) -> None:
        """End the writing; what came before a stream broke still goes out, where the client takes it soon."""
        if self._backlog is None or self._writer is None:
            return
        self._backlog.close()
        try:
            if self._flight.left is None:
                await asyncio.wait({self._writer}, timeout=LAST_CHUNKS)
        finally:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)

    async def _send_head(self) -> None:
        if self._head is not None:
            status, headers = self._head
            self._head = None
            await self._exchange.start(status, headers)

    async def _write_out(self, backlog: Backlog) -> None:
        await self._send_head()
        chunk = await backlog.take()
        while not backlog.done:
            await self._exchange.write(chunk)
            chunk = await backlog.take()
        if self._complete:
            await self._exchange.end(chunk)
        elif chunk:
            await self._exchange.write(chunk)
