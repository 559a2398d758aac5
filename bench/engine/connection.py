"""One HTTP/1.1 connection of the scripted engine, with every byte under control."""

import asyncio
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal, cast

import httptools

from bench.load.line import SO_TIMESTAMPNS, lag_of

# Bytes that are read at once.
_SIZE = 1 << 16
Framing = Literal["chunked", "length", "close"]


class CutOff(Exception):
    """The reply was broken off as scripted: no error, a way out."""


@dataclass
class Incoming:
    """A request as it came: header names in lower case, the last of equal names kept, the body complete.

    `began`: when its first byte came, monotonic seconds.
    """

    method: str = ""
    target: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    keep_alive: bool = True
    began: float = 0.0

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]


Handler = Callable[[Incoming, "Reply"], Awaitable[None]]


class Reply:
    """The answer to one request. `start` once, `send` any number of times, then `end` or `cut`.

    `send` waits while the peer does not read, as an engine's server does.
    """

    def __init__(self, transport: asyncio.Transport, writable: asyncio.Event, keep_alive: bool) -> None:
        self._transport, self._writable, self._keep_alive = transport, writable, keep_alive
        self._descriptor: int = transport.get_extra_info("socket").fileno()
        self._framing: Framing = "length"

    async def start(self, status: int, headers: Mapping[str, str], framing: Framing, length: int = 0) -> None:
        """Sends the head. `length` is the body's size where it is framed by length."""
        self._framing = framing
        lines = [f"HTTP/1.1 {status} {_phrase(status)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        match framing:
            case "chunked":
                lines.append("transfer-encoding: chunked")
            case "length":
                lines.append(f"content-length: {length}")
            case "close":
                self._keep_alive = False
        if not self._keep_alive:
            lines.append("connection: close")
        await self._write("\r\n".join([*lines, "", ""]).encode("latin-1"))

    async def send(self, data: bytes, announced: int | None = None) -> None:
        """Sends one piece of the body. `announced` is the chunk size to claim where it differs from the real one."""
        if not data:
            return
        if self._framing != "chunked":
            await self._write(data)
        elif announced is None or announced == len(data):
            await self._write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            await self._write(b"%x\r\n%b" % (announced, data))

    async def end(self) -> None:
        """Ends the body."""
        if self._framing == "chunked":
            await self._write(b"0\r\n\r\n")
        if not self._keep_alive:
            self._transport.close()

    async def cut(self, how: Literal["close", "reset", "shut", "stall"]) -> None:
        """Breaks the connection off. Raises CutOff, after the peer has left where the connection is kept."""
        match how:
            case "close":
                self._transport.close()
            case "reset":
                # Lingering for zero seconds turns the close into an RST.
                peer = cast("socket.socket", self._transport.get_extra_info("socket"))
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self._transport.abort()
            case "shut" | "stall":
                if how == "shut":
                    self._transport.write_eof()
                await asyncio.get_running_loop().create_future()
        raise CutOff

    async def _write(self, data: bytes) -> None:
        # The event loop's transport sends at the end of its turn: what is sent, and written down, would be known late.
        if not (self._transport.is_closing() or self._transport.get_write_buffer_size()):
            data = data[_sent(self._descriptor, data) :]
        if data:
            self._transport.write(data)
        await self._writable.wait()


class Connection(asyncio.Protocol):
    """Parses requests and hands each to `handler`, one after the other.

    The handler's task is cancelled when the peer closes or resets the connection. `peers` holds the open connections;
    `changed` is called after it did,
    and when a peer stops reading. `stamped`: a request has come when the system got it, not when it was read.
    """

    def __init__(
        self, handler: Handler, peers: "set[Connection]", changed: Callable[[], None], *, stamped: bool = False
    ) -> None:
        self._handler, self._peers, self._changed = handler, peers, changed
        self._parser: Any = httptools.HttpRequestParser(self)
        self._writable = asyncio.Event()
        self._writable.set()
        self._pending: deque[Incoming] = deque()
        self._incoming = Incoming()
        self._parts: list[bytes] = []
        self.task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._stamped = stamped
        self._own: socket.socket | None = None
        self._lag = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer connected."""
        self._transport = cast("asyncio.Transport", transport)
        if self._stamped:
            # The transport would take the bytes and leave their stamps: they are read beside it.
            self._transport.pause_reading()
            own = self._own = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
            own.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            asyncio.get_running_loop().add_reader(own, self._read)
        self._peers.add(self)
        self._changed()

    def _read(self) -> None:
        transport, own = self._transport, self._own
        if transport is None or own is None:
            return
        try:
            data, extra, _, _ = own.recvmsg(_SIZE, 64)
        except BlockingIOError:
            return
        except OSError:
            transport.abort()
            return
        self._lag = lag_of(extra)
        if data:
            self.data_received(data)
        else:
            asyncio.get_running_loop().remove_reader(own)
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Bytes from the peer."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if self._transport is not None:
                self._transport.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, whoever ended it."""
        del exc
        if self._own is not None:
            asyncio.get_running_loop().remove_reader(self._own)
            self._own.close()
            self._own = None
        self._peers.discard(self)
        self._changed()
        self._writable.set()
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        """The peer does not read."""
        self._writable.clear()
        self._changed()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._writable.set()

    @property
    def blocked(self) -> bool:
        """Whether the peer does not read what was sent."""
        return not self._writable.is_set()

    def abort(self) -> None:
        """Drops the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # The parser calls these.

    def on_message_begin(self) -> None:
        """A request begins."""
        self._incoming, self._parts = Incoming(began=time.monotonic() - self._lag), []

    def on_url(self, url: bytes) -> None:
        """A piece of the request target."""
        self._incoming.target += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._incoming.headers[name.decode("latin-1").lower()] = value.decode("utf-8", "surrogateescape")

    def on_headers_complete(self) -> None:
        """The head is complete."""
        if self._incoming.headers.get("expect", "").lower() == "100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._parts.append(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        request = self._incoming
        request.method = self._parser.get_method().decode("ascii")
        request.body = b"".join(self._parts)
        request.keep_alive = bool(self._parser.should_keep_alive())
        self._pending.append(request)
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._serve(), name="scripted engine")

    async def _serve(self) -> None:
        while self._pending and self._transport is not None:
            request = self._pending.popleft()
            try:
                await self._handler(request, Reply(self._transport, self._writable, request.keep_alive))
            except CutOff:
                return


def _sent(descriptor: int, data: bytes) -> int:
    """Bytes that the system takes at once; a broken connection is the transport's to find."""
    try:
        return os.write(descriptor, data)
    except OSError:
        return 0


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
