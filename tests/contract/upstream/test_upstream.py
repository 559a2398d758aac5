"""What every upstream client promises, asked of each over real sockets."""

import asyncio
import gzip
import socket
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from gateway.upstream.aiohttp_client import AiohttpUpstream
from gateway.upstream.base import Broken, Call, ConnectFailed, ConnectTimeout, Reply, Server, Upstream
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


@each
async def test_a_request_arrives_as_it_was_given(client: Clients) -> None:
    async with serving(answering(OK)) as server, client() as upstream:
        await ask(upstream, server.url + "/base", call(b'{"a":1}', path="/v1/x?q=%20y", **{"x-request-id": "r1"}))
    visit = server.visits[0]
    lines = visit.head.decode().lower().split("\r\n")
    assert lines[0] == "post /base/v1/x?q=%20y http/1.1"
    assert "x-request-id: r1" in lines
    assert "content-length: 7" in lines
    assert f"host: {server.url.removeprefix('http://')}" in lines
    assert visit.body == b'{"a":1}'


@each
async def test_a_get_has_no_body(client: Clients) -> None:
    async with serving(answering(OK)) as server, client() as upstream:
        assert await ask(upstream, server.url, call(b"", "GET", "/v1/models")) == (200, b"{}")
    assert server.visits[0].head.startswith(b"GET /v1/models HTTP/1.1\r\n")
    assert server.visits[0].body == b""


@each
async def test_head_and_body_come_whatever_the_packets(client: Clients) -> None:
    head = b"HTTP/1.1 418 Teapot\r\nX-Name: Value\r\nx-twice: 1\r\nx-twice: 2\r\ncontent-length: 4\r\n\r\n"
    whole = head + b"abcd"
    async with serving(answering(*(whole[i : i + 1] for i in range(len(whole))))) as server, client() as upstream:
        reply = await upstream.send(Server(server.url), call())
        assert reply.status == 418
        assert [pair for pair in reply.headers if pair[0].lower().startswith(b"x-")] == [
            (b"X-Name", b"Value"),
            (b"x-twice", b"1"),
            (b"x-twice", b"2"),
        ]
        assert await everything(reply) == b"abcd"
        reply.close()


@each
async def test_chunked_pieces_come_when_they_arrive(client: Clients) -> None:
    async def script(visit: Visit) -> None:
        await visit.send(STREAM, b"5\r\ndata:\r\n")
        # The rest is sent only once the client has shown that it got the first piece.
        await seen.wait()
        await visit.send(b"2\r\n x\r\n", b"0\r\n\r\n")

    seen = asyncio.Event()
    async with serving(script) as server, client() as upstream:
        reply = await upstream.send(Server(server.url), call())
        assert await reply.read() == b"data:"
        seen.set()
        assert await everything(reply) == b" x"
        reply.close()
        assert (await ask(upstream, server.url))[0] == 200


@each
async def test_a_read_connection_is_used_again(client: Clients) -> None:
    async with serving(answering(OK)) as server, client() as upstream:
        for _ in range(3):
            assert await ask(upstream, server.url) == (200, b"{}")
    assert server.connections == 1


@each
async def test_finish_makes_the_connection_usable(client: Clients) -> None:
    async with serving(answering(STREAM, b"1\r\nx\r\n0\r\n\r\n")) as server, client() as upstream:
        for _ in range(2):
            reply = await upstream.send(Server(server.url), call())
            assert await reply.read() == b"x"
            await reply.finish(5.0)
            reply.close()
    assert server.connections == 1


@each
async def test_an_unread_answer_drops_its_connection(client: Clients) -> None:
    async def script(visit: Visit) -> None:
        await visit.send(STREAM, b"1\r\nx\r\n")
        await visit.left()

    async with serving(script) as server, client() as upstream:
        reply = await upstream.send(Server(server.url), call())
        reply.close()
        reply.close()
        async with asyncio.timeout(5):
            await server.gone.wait()


@each
async def test_cancelling_a_call_drops_its_connection(client: Clients) -> None:
    async def script(visit: Visit) -> None:
        arrived.set()
        await visit.left()

    arrived = asyncio.Event()
    async with serving(script) as server, client() as upstream:
        task = asyncio.create_task(upstream.send(Server(server.url), call()))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(5):
            await server.gone.wait()


@each
async def test_cancelling_a_read_loses_nothing(client: Clients) -> None:
    async def script(visit: Visit) -> None:
        await visit.send(STREAM)
        await go.wait()
        await visit.send(b"2\r\nab\r\n", b"0\r\n\r\n")

    go = asyncio.Event()
    async with serving(script) as server, client() as upstream:
        reply = await upstream.send(Server(server.url), call())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await reply.read()
        go.set()
        assert await everything(reply) == b"ab"
        reply.close()


@each
@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort",
        STREAM + b"5\r\nab",
        STREAM + b"2\r\nab\r\n",
    ],
    ids=["length", "in a chunk", "between chunks"],
)
async def test_a_body_that_is_cut_is_broken(client: Clients, sent: bytes) -> None:
    async with serving(closing(sent)) as server, client() as upstream:
        reply = await upstream.send(Server(server.url), call())
        with pytest.raises(Broken):
            await everything(reply)
        reply.close()


@each
@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\ncontent-", b"SSH-2.0-x\r\n\r\n"], ids=["-", "head", "ssh"])
async def test_no_head_is_broken(client: Clients, sent: bytes) -> None:
    async with serving(closing(sent)) as server, client() as upstream:
        with pytest.raises(Broken):
            await upstream.send(Server(server.url), call())


@each
async def test_a_body_without_a_length_ends_with_the_connection(client: Clients) -> None:
    sent = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n", b"all of it"
    async with serving(closing(*sent)) as server, client() as upstream:
        assert await ask(upstream, server.url) == (200, b"all of it")
        assert await ask(upstream, server.url) == (200, b"all of it")
    assert server.connections == 2


@each
async def test_connection_close_is_honoured(client: Clients) -> None:
    sent = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"
    async with serving(answering(sent)) as server, client() as upstream:
        for _ in range(2):
            assert await ask(upstream, server.url) == (200, b"{}")
    assert server.connections == 2


@each
async def test_interim_answers_are_passed_over(client: Clients) -> None:
    sent = b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n", OK
    async with serving(answering(*sent)) as server, client() as upstream:
        reply = await upstream.send(Server(server.url), call())
        assert reply.status == 200
        assert b"link" not in [name.lower() for name, _ in reply.headers]
        assert await everything(reply) == b"{}"
        reply.close()


@each
@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_ends_at_once(client: Clients, status: int) -> None:
    async with serving(answering(b"HTTP/1.1 %d x\r\n\r\n" % status)) as server, client() as upstream:
        assert await ask(upstream, server.url) == (status, b"")
        assert await ask(upstream, server.url) == (status, b"")
    assert server.connections == 1


@each
async def test_redirects_are_not_followed(client: Clients) -> None:
    sent = b"HTTP/1.1 307 x\r\nlocation: http://192.0.2.1/\r\ncontent-length: 0\r\n\r\n"
    async with serving(answering(sent)) as server, client() as upstream:
        assert await ask(upstream, server.url) == (307, b"")


@each
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_compressed_body_is_unpacked(client: Clients, encoding: str) -> None:
    packed = gzip.compress(b"plain" * 100) if encoding == "gzip" else zlib.compress(b"plain" * 100)
    head = f"HTTP/1.1 200 OK\r\ncontent-encoding: {encoding}\r\ncontent-length: {len(packed)}\r\n\r\n".encode()
    async with serving(answering(head, packed)) as server, client() as upstream:
        assert await ask(upstream, server.url) == (200, b"plain" * 100)


@each
async def test_a_large_body_goes_and_comes(client: Clients) -> None:
    async def script(visit: Visit) -> None:
        await visit.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(visit.body), visit.body)

    body = bytes(range(256)) * 3_500
    async with serving(script) as server, client() as upstream:
        assert await ask(upstream, server.url, call(body)) == (200, body)
        assert await ask(upstream, server.url, call(b"{}")) == (200, b"{}")
    assert server.connections == 1


@each
async def test_what_is_not_read_stays_with_the_server(client: Clients) -> None:
    """64 MiB are offered; without reading, only what fits in buffers is taken."""

    async def script(visit: Visit) -> None:
        visit.writer.write(STREAM)
        for _ in range(1024):
            visit.writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            await visit.writer.drain()
            taken.append(65536)
        await visit.send(b"0\r\n\r\n")

    taken: list[int] = []
    async with serving(script) as server, client() as upstream:
        reply = await upstream.send(Server(server.url), call())
        await reply.read()
        before = -1
        while len(taken) != before:
            before = len(taken)
            await asyncio.sleep(0.05)
        assert before < 512
        assert len(await everything(reply)) + 65536 >= 1024 * 65536 - 65536 * 4
        reply.close()


@each
async def test_nobody_listening_is_connect_failed(client: Clients) -> None:
    async with serving(answering(OK)) as server:
        url = server.url
    async with client() as upstream:
        with pytest.raises(ConnectFailed):
            await upstream.send(Server(url), call())


@each
async def test_a_name_that_does_not_exist_is_connect_failed(client: Clients) -> None:
    async with client() as upstream:
        with pytest.raises(ConnectFailed):
            await upstream.send(Server("http://nowhere.invalid"), call())


@each
async def test_a_connection_that_does_not_come_is_connect_timeout(client: Clients) -> None:
    # A backlog of zero that is full: the kernel answers no further SYN.
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        address = listening.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        try:
            async with client() as upstream:
                with pytest.raises(ConnectTimeout):
                    await upstream.send(Server(f"http://127.0.0.1:{address[1]}"), Call("POST", "/v1/x", {}, b"{}", 0.2))
        finally:
            for filler in fillers:
                filler.close()


@each
async def test_a_closed_client_calls_nobody(client: Clients) -> None:
    upstream = client()
    async with upstream:
        pass
    with pytest.raises(ConnectFailed):
        await upstream.send(Server("http://127.0.0.1:9"), call())


@each
async def test_a_kept_connection_that_the_server_closed_is_not_used(client: Clients) -> None:
    async def script(visit: Visit) -> None:
        await visit.send(OK)
        visit.writer.close()

    async with serving(script) as server, client() as upstream:
        for number in range(1, 4):
            assert await ask(upstream, server.url) == (200, b"{}")
            async with asyncio.timeout(5):
                await server.gone.wait()
            server.gone.clear()
            await asyncio.sleep(0.01)
            assert server.connections == number


@each
async def test_an_answer_that_nobody_asked_for_is_never_given_to_the_next(client: Clients) -> None:
    sent = OK + b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison"
    async with serving(answering(sent)) as server, client() as upstream:
        bodies = [(await ask(upstream, server.url))[1] for _ in range(3)]
    assert b"poison" not in b"".join(bodies)


@pytest.mark.parametrize("client", [Http1Upstream, UpstreamClient])
async def test_line_breaks_in_headers_are_refused(client: Clients) -> None:
    async with serving(answering(OK)) as server, client() as upstream:
        for what in (call(**{"x-request-id": "a\r\nx-evil: 1"}), call(path="/v1/x HTTP/1.1\r\nx-evil: 1")):
            with pytest.raises(ValueError, match="line break"):
                await upstream.send(Server(server.url), what)
    assert server.visits == []


async def test_an_endless_head_is_broken() -> None:
    async def script(visit: Visit) -> None:
        await visit.send(b"HTTP/1.1 200 OK\r\n")
        while True:
            await visit.send(b"x-more: " + b"y" * 1000 + b"\r\n")

    async with serving(script) as server, Http1Upstream() as upstream:
        with pytest.raises(Broken, match="head is too large"):
            await upstream.send(Server(server.url), call())


async def test_idle_connections_do_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.upstream.http1.KEEP_ALIVE", 0.05)
    async with serving(answering(OK)) as server, Http1Upstream() as upstream:
        assert await ask(upstream, server.url) == (200, b"{}")
        async with asyncio.timeout(5):
            await server.gone.wait()
        assert await ask(upstream, server.url) == (200, b"{}")
    assert server.connections == 2


@each
async def test_the_host_header_may_be_another_than_the_address(client: Clients) -> None:
    async with serving(answering(OK)) as server, client() as upstream:
        reply = await upstream.send(Server(server.url, host="engine.example:80"), call())
        await everything(reply)
        reply.close()
    assert [line for line in server.visits[0].head.lower().split(b"\r\n") if line.startswith(b"host:")] == [
        b"host: engine.example:80"
    ]
