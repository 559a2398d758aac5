"""A server whose every request is answered by a function of its exchange, over either wire."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.exchange import Exchange
from gateway.wire.http1 import Http1Connection, HttpWire

PATH = "/hot"
Answer = Callable[[Exchange], Awaitable[None]]


class Application:
    """Answers requests for PATH by `answer`; `seen` are the exchanges so far. Everything else is ASGI and says so."""

    now = staticmethod(time.monotonic)

    def __init__(self, answer: Answer, *, native: bool) -> None:
        self.hot = {PATH.encode(): PATH} if native else {}
        self.answer = answer
        self.seen: list[Exchange] = []

    async def serve(self, wire: HttpWire) -> None:
        await self._run(Exchange(wire, "POST", wire.path, wire.head, 0.0))

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        exchange = Exchange.asgi(scope, receive, send, 0.0)
        if scope["path"] == PATH and scope["method"] == "POST":
            await self._run(exchange)
        else:
            await exchange.respond(200, [], b"asgi")

    async def _run(self, exchange: Exchange) -> None:
        self.seen.append(exchange)
        try:
            await self.answer(exchange)
        finally:
            exchange.unwatch()


@asynccontextmanager
async def serving(answer: Answer, *, native: bool, keep_alive: int = 5) -> AsyncIterator[tuple[Application, int]]:
    """The application on a free port of loopback."""
    application = Application(answer, native=native)
    kind: type[HttpToolsProtocol] = Http1Connection if native else HttpToolsProtocol
    config = uvicorn.Config(
        application, host="127.0.0.1", port=0, http=kind, ws="none", lifespan="off", log_config=None, access_log=False,
        proxy_headers=False, server_header=False, timeout_keep_alive=keep_alive, timeout_graceful_shutdown=1,
    )  # fmt: skip
    config.load()
    loop, connections = asyncio.get_running_loop(), uvicorn.server.ServerState()
    connections.default_headers = [(b"date", b"today")]
    listening = await loop.create_server(lambda: kind(config, connections, {}), "127.0.0.1", 0)
    try:
        yield application, listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for connection in tuple(connections.connections):
            connection.transport.abort()
        for task in tuple(connections.tasks):
            task.cancel()
        await asyncio.gather(*connections.tasks, return_exceptions=True)


class Client:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next response; raises IncompleteReadError where it breaks off."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        if headers.get("transfer-encoding") != "chunked":
            return int(head[0].split()[1]), headers, await self.reader.readexactly(int(headers["content-length"]))
        body = b""
        while size := int((await self.reader.readuntil(b"\r\n")), 16):
            body += await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)
        return int(head[0].split()[1]), headers, body


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Client]:
    """A connection to the server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


def post(body: bytes = b"", *headers: bytes) -> bytes:
    """A request for PATH."""
    lines = [b"POST /hot HTTP/1.1", b"host: here", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
