"""A server that answers by a script, and the clients that are held to the contract."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from gateway.upstream.aiohttp_client import AiohttpUpstream
from gateway.upstream.base import Call, Reply, Server, Upstream
from gateway.upstream.client import UpstreamClient
from gateway.upstream.http1 import Http1Upstream

Clients = type[AiohttpUpstream] | type[Http1Upstream] | type[UpstreamClient]
Script = Callable[["Visit"], Awaitable[None]]
ALL: list[Clients] = [AiohttpUpstream, Http1Upstream, UpstreamClient]
each = pytest.mark.parametrize("client", ALL)
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Visit:
    """One request as the server saw it, and the way to answer."""

    head: bytes
    body: bytes
    connection: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, *pieces: bytes) -> None:
        """Each piece in a packet of its own."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    async def left(self) -> None:
        """Wait until the client closes its side."""
        while await self.reader.read(1024):
            pass


@dataclass
class Scripted:
    """Answers by a script and keeps what it saw."""

    url: str = ""
    visits: list[Visit] = field(default_factory=list)
    connections: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[Scripted]:
    server = Scripted()
    tasks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(task := asyncio.current_task())  # type: ignore[arg-type]
        server.connections += 1
        number = server.connections
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(length[0].split(b":")[1])) if length else b""
                visit = Visit(head, body, number, reader, writer)
                server.visits.append(visit)
                await script(visit)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            server.gone.set()
            writer.transport.abort()
            tasks.discard(task)  # type: ignore[arg-type]

    listening = await asyncio.start_server(talk, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def call(body: bytes = b"{}", method: str = "POST", path: str = "/v1/chat/completions", **headers: str) -> Call:
    return Call(method=method, path=path, headers=headers, body=body, connect=2.0)


async def everything(reply: Reply) -> bytes:
    parts = []
    while piece := await reply.read():
        parts.append(piece)
    return b"".join(parts)


async def ask(upstream: Upstream, url: str, what: Call | None = None) -> tuple[int, bytes]:
    """Status and body of one call that is read to its end."""
    reply = await upstream.send(Server(url), what or call())
    try:
        return reply.status, await everything(reply)
    finally:
        reply.close()


def answering(*pieces: bytes) -> Script:
    async def script(visit: Visit) -> None:
        await visit.send(*pieces)

    return script


def closing(*pieces: bytes) -> Script:
    async def script(visit: Visit) -> None:
        await visit.send(*pieces)
        visit.writer.close()

    return script
