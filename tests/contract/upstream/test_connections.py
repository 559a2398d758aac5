"""What every upstream client does with its connections, asked of each over real sockets."""

import asyncio
import socket

import pytest

from gateway.upstream.base import Broken, Call, ConnectFailed, ConnectTimeout, Server
from gateway.upstream.client import UpstreamClient
from gateway.upstream.http1 import Http1Upstream
from tests.clock import HandClock
from tests.contract.upstream.server import (
    OK,
    STREAM,
    Clients,
    Visit,
    answering,
    ask,
    call,
    each,
    serving,
)


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
async def test_connection_close_is_honoured(client: Clients) -> None:
    sent = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"
    async with serving(answering(sent)) as server, client() as upstream:
        for _ in range(2):
            assert await ask(upstream, server.url) == (200, b"{}")
    assert server.connections == 2


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


@pytest.mark.parametrize("client", [Http1Upstream, UpstreamClient])
async def test_a_reply_tells_when_its_bytes_came_and_not_when_they_were_read(
    client: type[Http1Upstream] | type[UpstreamClient],
) -> None:
    clock, go_on = HandClock(1.0), asyncio.Event()

    async def script(visit: Visit) -> None:
        await visit.send(STREAM + b"3\r\none\r\n")
        await go_on.wait()
        await visit.send(b"3\r\ntwo\r\n0\r\n\r\n")

    async with serving(script) as server, client(clock) as upstream:
        reply = await upstream.send(Server(server.url), call())
        clock.now = 2.0
        assert await reply.read() == b"one"
        assert reply.came == 1.0
        clock.now = 3.0
        go_on.set()
        assert await reply.read() == b"two"
        assert reply.came == 3.0
        reply.close()


async def test_idle_connections_do_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.upstream.http1.KEEP_ALIVE", 0.05)
    async with serving(answering(OK)) as server, Http1Upstream() as upstream:
        assert await ask(upstream, server.url) == (200, b"{}")
        async with asyncio.timeout(5):
            await server.gone.wait()
        assert await ask(upstream, server.url) == (200, b"{}")
    assert server.connections == 2
