"""What every upstream client makes of an answer, asked of each over real sockets."""

import asyncio
import gzip
import zlib

import pytest

from gateway.upstream.base import Broken, Server
from tests.contract.upstream.server import (
    OK,
    STREAM,
    Clients,
    Visit,
    answering,
    ask,
    call,
    closing,
    each,
    everything,
    serving,
)


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
        assert [pair for pair in reply.headers if pair[0].startswith(b"x-")] == [
            (b"x-name", b"Value"),
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
async def test_the_host_header_may_be_another_than_the_address(client: Clients) -> None:
    async with serving(answering(OK)) as server, client() as upstream:
        reply = await upstream.send(Server(server.url, host="engine.example:80"), call())
        await everything(reply)
        reply.close()
    assert [line for line in server.visits[0].head.lower().split(b"\r\n") if line.startswith(b"host:")] == [
        b"host: engine.example:80"
    ]


@each
async def test_a_sink_gets_the_pieces_until_it_wants_no_more(client: Clients) -> None:
    async def script(visit: Visit) -> None:
        await visit.send(STREAM, b"3\r\none\r\n")
        await first.wait()
        await visit.send(b"3\r\ntwo\r\n")
        await second.wait()
        await visit.send(b"5\r\nthree\r\n0\r\n\r\n")

    first, second = asyncio.Event(), asyncio.Event()
    poured = bytearray()

    def sink(piece: bytes) -> bool:
        poured.extend(piece)
        first.set()
        return bytes(poured) != b"onetwo"

    async with serving(script) as server, client() as upstream:
        reply = await upstream.send(Server(server.url), call())
        assert await reply.pour(sink)
        assert bytes(poured) == b"onetwo"
        second.set()
        assert not await reply.pour(sink)
        assert bytes(poured) == b"onetwothree"
        reply.close()
        assert (await ask(upstream, server.url))[0] == 200


@each
async def test_what_a_sink_raises_comes_out_where_it_was_given(client: Clients) -> None:
    class Full(Exception):
        pass

    def sink(piece: bytes) -> bool:
        raise Full(piece)

    async with serving(answering(STREAM, b"3\r\none\r\n", b"0\r\n\r\n")) as server, client() as upstream:
        reply = await upstream.send(Server(server.url), call())
        with pytest.raises(Full):
            await reply.pour(sink)
        reply.close()


@each
async def test_a_body_that_breaks_off_while_it_is_poured_says_so(client: Clients) -> None:
    poured: list[bytes] = []
    async with serving(closing(STREAM, b"3\r\none\r\n")) as server, client() as upstream:
        reply = await upstream.send(Server(server.url), call())
        with pytest.raises(Broken):
            await reply.pour(lambda piece: poured.append(piece) is None)
        assert b"".join(poured) == b"one"
        reply.close()


@each
async def test_pouring_that_is_cancelled_loses_nothing(client: Clients) -> None:
    async def script(visit: Visit) -> None:
        await visit.send(STREAM, b"3\r\none\r\n")
        await cancelled.wait()
        await visit.send(b"3\r\ntwo\r\n0\r\n\r\n")

    cancelled, come = asyncio.Event(), asyncio.Event()
    poured: list[bytes] = []

    def sink(piece: bytes) -> bool:
        poured.append(piece)
        come.set()
        return True

    async with serving(script) as server, client() as upstream:
        reply = await upstream.send(Server(server.url), call())
        pouring = asyncio.create_task(reply.pour(sink))
        await come.wait()
        pouring.cancel()
        await asyncio.wait({pouring})
        assert pouring.cancelled()
        cancelled.set()
        assert await everything(reply) == b"two"
        assert poured == [b"one"]
        reply.close()
