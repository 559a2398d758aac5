"""One HTTP/1.1 connection to a server, parsed by httptools, and the answer that arrives over it."""

import asyncio
import zlib
from collections.abc import Callable
from typing import Any, cast

import httptools

from core.clock import Clock
from gateway.envelope import Headers
from gateway.upstream.base import Broken, Reply, Sink

# An answer that its client does not read is taken from the connection up to here, in bytes.
READ_BUFFER = 64 * 1024
# A head larger than this is not an engine's, in bytes.
MAX_HEAD = 64 * 1024

_WINDOW_BITS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
_NO_BODY = (204, 304)


class Http1Reply(Reply):
    """One answer while it arrives. Filled by its connection; see gateway.upstream.base.Reply."""

    __slots__ = (
        "_connection",
        "_decoder",
        "_loop",
        "_pieces",
        "_sink",
        "_size",
        "_thrown",
        "_waiter",
        "came",
        "complete",
        "fault",
        "headers",
        "paused",
        "reusable",
        "status",
        "until_close",
    )  # fmt: skip

    def __init__(self, connection: "Connection", loop: asyncio.AbstractEventLoop) -> None:
        self.status = 0
        self.headers: Headers = []
        self.came: float | None = None
        self.complete = self.reusable = self.until_close = False
        self.fault: str | None = None
        self._connection: Connection | None = connection
        self._loop = loop
        self._pieces: list[bytes] = []
        self._size = 0
        self.paused = False
        self._decoder: Any = None
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Sink | None = None
        self._thrown: Exception | None = None

    async def head(self) -> None:
        """Wait for the status and the headers. Raises Broken."""
        while not self.status:
            if self.fault is not None:
                raise Broken(f"the connection broke before an answer: {self.fault}")
            await self._wait()

    async def read(self) -> bytes:
        """The next piece of the body."""
        while not self._pieces:
            if self._over():
                return b""
            await self._wait()
        return self._held()

    async def pour(self, sink: Sink) -> bool:
        """Give each piece to `sink` in the turn of the event loop in which it comes."""
        if self._pieces and not sink(self._held()):
            return True
        while not self._over():
            self._sink = sink
            try:
                await self._wait()
            finally:
                stopped, self._sink = self._sink is None, None
            if self._thrown is not None:
                thrown, self._thrown = self._thrown, None
                raise thrown
            # Between the last piece that the sink took and this turn, more may have come.
            if stopped or (self._pieces and not sink(self._held())):
                return True
        return False

    def _over(self) -> bool:
        """Whether the body has ended. Raises Broken where it did before it was complete."""
        if self.fault is not None:
            raise Broken(f"the answer broke off: {self.fault}")
        return self.complete

    def _held(self) -> bytes:
        """Everything that has come."""
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._size = 0
        if self.paused and self._connection is not None:
            self.paused = False
            self._connection.resume()
        return data

    async def finish(self, limit: float) -> None:
        """Read the end of the body."""
        if self.complete or self.fault is not None:
            return
        try:
            async with asyncio.timeout(limit):
                while await self.read():
                    pass
        except (TimeoutError, Broken):
            return

    def close(self) -> None:
        """Give the connection back where the body is complete, else drop it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.done(self)

    def begin(self, status: int, *, until_close: bool, encoding: bytes) -> None:
        """The head is complete."""
        self.until_close = until_close
        if encoding and encoding != b"identity":
            bits = _WINDOW_BITS.get(encoding)
            if bits is None:
                self.fail(f"content-encoding {encoding.decode('latin-1')!r} was not asked for")
                return
            self._decoder = zlib.decompressobj(bits)
        self.status = status
        self._wake()

    def feed(self, piece: bytes) -> None:
        """A piece of the body."""
        if self._decoder is not None:
            piece = self._decoder.decompress(piece)
            if not piece:
                return
        if self._sink is not None:
            self._pass(piece, self._sink)
            return
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > READ_BUFFER and not self.paused and self._connection is not None:
            self.paused = True
            self._connection.pause()
        self._wake()

    def _pass(self, piece: bytes, sink: Sink) -> None:
        try:
            more = sink(piece)
        except Exception as error:  # noqa: BLE001  # the parser calls this: it is raised where the sink was given
            self._thrown, more = error, False
        if not more:
            self._sink = None
            self._wake()

    def end(self, *, reusable: bool) -> None:
        """The body is complete."""
        self.complete, self.reusable = True, reusable
        self._wake()

    def fail(self, fault: str) -> None:
        """Nothing more will come."""
        if not self.complete and self.fault is None:
            self.fault = fault
            self._wake()

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Connection(asyncio.Protocol):
    """One connection: at most one answer at a time. `ended` is told what became of it after each."""

    __slots__ = (
        "_encoding", "_ended", "_framed", "_head", "_interim", "_loop", "_now", "_parser", "_reply", "_transport",
        "idle_since", "lost",
    )  # fmt: skip

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, ended: "Callable[[Connection, bool], None]"
    ) -> None:
        self._loop, self._now, self._ended = loop, clock.monotonic, ended
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._reply: Http1Reply | None = None
        self._head = 0
        self._framed = self._interim = False
        self._encoding = b""
        self.idle_since = 0.0
        self.lost = False

    def ask(self, head: bytes, body: bytes) -> Http1Reply:
        """Send one request; its answer will arrive in the reply."""
        reply = self._reply = Http1Reply(self, self._loop)
        self._reset()
        transport = self._transport
        if transport is None or self.lost:
            reply.fail("closed by the server")
        elif len(body) <= READ_BUFFER:
            transport.write(head + body)
        else:
            transport.writelines((head, body))
        return reply

    def done(self, reply: Http1Reply) -> None:
        """The reply is not read any more."""
        if self._reply is not reply:
            return
        reusable = reply.complete and reply.reusable and reply.fault is None and not self.lost
        self._reply = None
        if not reusable:
            self.abort()
        elif reply.paused:
            self.resume()
        self._ended(self, reusable)

    def abort(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Take nothing more from the socket."""
        if self._transport is not None and not self.lost:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Go on after a pause."""
        if self._transport is not None and not self.lost:
            self._transport.resume_reading()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        reply = self._reply
        if reply is None or reply.complete:
            # Nothing was asked: what follows on this connection cannot be trusted.
            self._spoil("bytes that nobody asked for")
            return
        reply.came = self._now()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._spoil("it switched protocols")
        except httptools.HttpParserError as error:
            cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
            self._spoil(f"not HTTP: {cause or error}")

    def eof_received(self) -> bool:
        """The server sends nothing more."""
        self._closed("closed by the server")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self.lost = True
        self._closed("closed by the server" if exc is None else f"{type(exc).__name__}: {exc}")
        if self._reply is None:
            self._ended(self, False)

    # What the parser calls.

    def on_message_begin(self) -> None:
        """An answer begins; a second one that nobody asked for must not touch the first."""
        if self._reply is None or self._reply.complete:
            raise ValueError("an answer that nobody asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._head += len(name) + len(value)
        reply = self._reply
        if reply is None or self._head > MAX_HEAD:
            raise ValueError("the head is too large")
        if reply.status:
            return  # a trailer
        name = name.lower()
        reply.headers.append((name, value))
        if name in (b"content-length", b"transfer-encoding"):
            self._framed = True
        elif name == b"content-encoding":
            self._encoding = value.strip().lower()

    def on_headers_complete(self) -> None:
        """The head is complete."""
        status = self._parser.get_status_code()
        self._interim = 100 <= status < 200
        if self._reply is not None and not self._interim:
            until_close = not self._framed and status not in _NO_BODY
            self._reply.begin(status, until_close=until_close, encoding=self._encoding)

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        if self._reply is not None:
            self._reply.feed(piece)

    def on_message_complete(self) -> None:
        """The answer is complete, or was an interim one: 100 Continue, 103 Early Hints."""
        if self._reply is None:
            return
        if self._interim:
            self._reply.headers.clear()
            self._reset()
        else:
            self._reply.end(reusable=self._parser.should_keep_alive())

    def _reset(self) -> None:
        self._head, self._framed, self._interim, self._encoding = 0, False, False, b""

    def _spoil(self, fault: str) -> None:
        if self._reply is not None:
            self._reply.reusable = False
            self._reply.fail(fault)
        self.abort()

    def _closed(self, fault: str) -> None:
        reply = self._reply
        if reply is None or reply.complete:
            return
        if reply.status and reply.until_close:
            reply.end(reusable=False)
        else:
            reply.fail(fault)
