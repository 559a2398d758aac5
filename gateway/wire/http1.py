"""The gateway's own routes on uvicorn's HTTP/1.1 connections, without ASGI in between.

ASGI costs a relay as much as everything else that a request does here: a task that waits for the client to leave, a
message for every step, head and body in two writes. The hot routes are answered on the connection itself. Everything
else about it is uvicorn's: parsing, pipelining, flow control, shutdown; and so is every other route.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Protocol

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.envelope import Headers
from gateway.interrupt import ClientGone, Trippable

logger = logging.getLogger("forebay.gateway")

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
FAILED = b"HTTP/1.1 500 Internal Server Error\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
# Writes a header of a response.
HEADER = b"%b: %b\r\n".__mod__
STATUS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class Opening:
    """The beginning of a response's head: its status line, and the headers that uvicorn puts on every response.

    Those change once a second, and come as a new list then.
    """

    def __init__(self) -> None:
        self._of: Sequence[tuple[bytes, bytes]] | None = None
        self._made: dict[int, bytes] = {}

    def __call__(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        """The lines, each with its end."""
        if headers is not self._of:
            self._of = headers
            self._made.clear()
        made = self._made.get(status)
        if made is None:
            line = STATUS.get(status) or b"HTTP/1.1 %d \r\n" % status
            made = self._made[status] = b"".join([line, *(b"%b: %b\r\n" % header for header in headers)])
        return made


class HotApplication(Protocol):
    """An application with routes that are answered without ASGI: `hot` are their paths, all of them for POST.

    `now` reads its monotonic clock.
    """

    hot: Mapping[bytes, str]
    now: Callable[[], float]

    def serve(self, wire: "HttpWire") -> Awaitable[None]: ...


class HttpWire:
    """One request of a hot route; see gateway.wire.base.Wire. Also what uvicorn's connection takes for its cycle.

    `path`: of the route. `head`: the request's headers, names in lower case; of repeated ones the last. `arrived`: when
    the end of its head had come, on the application's clock.
    """

    __slots__ = (
        "_body", "_connection", "_expects", "_flow", "_transport", "_waiter", "_watched", "arrived", "disconnected",
        "head", "keep_alive", "more_body", "path", "response_complete", "response_started", "task",
    )  # fmt: skip

    def __init__(self, connection: "Http1Connection", path: str, head: dict[bytes, bytes], *, keep_alive: bool) -> None:
        self._connection = connection
        self.arrived = connection.came
        self._transport = connection.transport
        self._flow = connection.flow
        self._expects = connection.expect_100_continue
        self._waiter: asyncio.Future[None] | None = None
        self._watched: Trippable | None = None
        self._body = b""
        self.path, self.head = path, head
        self.task: asyncio.Task[None] | None = None
        # What uvicorn's connection reads and sets.
        self.more_body = True
        self.disconnected = self.response_started = self.response_complete = False
        self.keep_alive = keep_alive

    @property
    def message_event(self) -> "HttpWire":
        """What uvicorn's connection sets when something has come, or the client has left."""
        return self

    def set(self) -> None:
        """Something has come, or the client has left."""
        if self.disconnected and self._watched is not None:
            watched, self._watched = self._watched, None
            watched.trip(ClientGone())
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def arrived_whole(self) -> bytes | None:
        """The body, where no more of it will come."""
        if self.more_body or self.disconnected:
            return None
        body, self._body = self._body, b""
        return body

    def feed(self, part: bytes) -> int:
        """A part of the body has come; the bytes that wait to be taken."""
        self._body = self._body + part if self._body else part
        if self._waiter is not None:
            self.set()
        return len(self._body)

    async def receive(self) -> tuple[bytes, bool]:
        """The next part of the body."""
        if self._expects and not self._transport.is_closing():
            self._transport.write(CONTINUE)
        self._expects = False
        self._flow.resume_reading()
        while self.more_body and not self._body and not self.disconnected:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self.disconnected:
            raise ClientGone
        body, self._body = self._body, b""
        return body, self.more_body

    def watch(self, block: Trippable | None) -> None:
        """Have `block` tripped when the client leaves."""
        self._watched = block
        if block is None:
            return
        if self.disconnected:
            self._watched = None
            block.trip(ClientGone())
        else:
            # That somebody has left is noticed only while the connection is read.
            self._flow.resume_reading()

    async def start(self, status: int, headers: Headers) -> None:
        """Status and headers; the body follows in chunks."""
        if self._flow.write_paused and not self.disconnected:
            await self._flow.drain()
        if not self.disconnected:
            self._transport.write(self._head(status, [*headers, (b"transfer-encoding", b"chunked")]))

    def put(self, chunk: bytes) -> bool:
        """A part of the body, where the client reads."""
        if self._flow.write_paused or self.disconnected:
            return False
        self._transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        return True

    async def write(self, chunk: bytes, *, more: bool) -> None:
        """A part of the body."""
        if self._flow.write_paused and not self.disconnected:
            await self._flow.drain()
        if self.disconnected:
            return
        if chunk:
            self._transport.write((b"%x\r\n%b\r\n" if more else b"%x\r\n%b\r\n0\r\n\r\n") % (len(chunk), chunk))
        elif not more:
            self._transport.write(b"0\r\n\r\n")
        if not more:
            self._end()

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole response in one write."""
        if self._flow.write_paused and not self.disconnected:
            await self._flow.drain()
        if not self.disconnected:
            self._transport.write(self._head(status, headers) + body)
            self._end()

    def _head(self, status: int, headers: Headers) -> bytes:
        """The head. Raises ValueError for a line break in a header."""
        lines = list(map(HEADER, headers))
        if (b"connection", b"close") in headers:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
            raise ValueError("a response header holds a line break")
        self.response_started, self._expects = True, False
        opening = _opening(status, self._connection.server_state.default_headers)
        return b"%b%b\r\n" % (opening, head)

    def _end(self) -> None:
        self.response_complete, self._watched = True, None
        if not self.keep_alive:
            self._transport.close()
        self._connection.on_response_complete()

    async def run_asgi(self, app: HotApplication) -> None:
        """Answer the request. It has the name by which uvicorn's connection calls its cycles."""
        try:
            await app.serve(self)
        except Exception:  # a boundary: nobody above logs it
            logger.exception("a request was not answered")
        finally:
            if self.task is not None:
                self._connection.tasks.discard(self.task)
            if not self.response_complete and not self.disconnected:
                if not self.response_started:
                    self._transport.write(FAILED)
                # Half an answer must not look like a whole one.
                self._transport.close()


_opening = Opening()


class Http1Connection(HttpToolsProtocol):
    """uvicorn's connection: requests of hot routes become wires, everything else stays ASGI."""

    app: HotApplication

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._answering: RequestResponseCycle | HttpWire | None = None
        self._idle_since = 0.0
        # When the last bytes came.
        self.came = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A connection on which nothing is asked is closed as one on which nothing more is."""
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn narrows it
        self._idle_since = self.loop.time()
        self._look_again(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left: tell the request that is being answered, which may not be the last one that came."""
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        answering = self._answering
        if answering is not None and answering is not self.cycle and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()

    def on_message_begin(self) -> None:
        """A request begins. Its ASGI scope is made when it turns out to need one."""
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def on_headers_complete(self) -> None:
        """The head of a request is complete."""
        path = self.app.hot.get(self.url)
        if path is None or self.parser.get_method() != b"POST" or self.parser.should_upgrade():
            url, headers, expects = self.url, self.headers, self.expect_100_continue
            super().on_message_begin()
            self.url, self.expect_100_continue = url, expects
            self.headers.extend(headers)
            super().on_headers_complete()
            return
        keep_alive = self.parser.should_keep_alive() and self.parser.get_http_version() != "1.0"
        before = self.cycle
        # It stands in for uvicorn's cycle: the same attributes under the same names.
        cycle: Any = HttpWire(self, path, dict(self.headers), keep_alive=keep_alive)
        self.cycle = cycle
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))  # type: ignore[arg-type]  # as above

    def on_body(self, body: bytes) -> None:
        """A part of a request's body."""
        wire: Any = self.cycle
        if not isinstance(wire, HttpWire):
            super().on_body(body)
        elif not wire.response_complete and wire.feed(body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        """A request has come whole."""
        wire: Any = self.cycle
        if not isinstance(wire, HttpWire):
            super().on_message_complete()
        elif not wire.response_complete:
            wire.more_body = False
            wire.set()

    def _start_asgi_task(self, cycle: "RequestResponseCycle | HttpWire", app: Any) -> None:
        self._answering = cycle
        if isinstance(cycle, HttpWire):
            # What the loop's own method does, without asking for a factory, a context and a name first.
            cycle.task = asyncio.Task(cycle.run_asgi(app), loop=self.loop, name=cycle.path)
            self.tasks.add(cycle.task)
        else:
            super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """The next request, where one has come already."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def _unset_keepalive_if_required(self) -> None:
        """Called for everything that comes: one timer that looks at the time is cheaper than one for every request."""
        self._idle_since = self.loop.time()
        self.came = self.app.now()

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection where nothing has come for too long and nothing is being answered."""
        self.timeout_keep_alive_task = None
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if self._answering is not None and not self._answering.response_complete:
            left = self.timeout_keep_alive
        if left > 0:
            self._look_again(left)
        elif not self.transport.is_closing():
            self.transport.close()

    def _look_again(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)
