"""What every wire promises, over real sockets: uvicorn's ASGI side and the gateway's own connection."""

import asyncio

import pytest

from core.errors import PayloadTooLarge
from gateway.exchange import Exchange
from gateway.interrupt import ClientGone, Interruptible
from gateway.wire.http1 import Opening
from tests.contract.wire.server import connected, post, serving

each = pytest.mark.parametrize("native", [False, True], ids=["asgi", "http1"])
MEGABYTE = 1024**2


async def echo(exchange: Exchange) -> None:
    async with Interruptible(exchange.task) as block:
        body = await exchange.body(4 * MEGABYTE, block)
    await exchange.respond(200, [(b"x-one", b"1")], body)


@each
@pytest.mark.parametrize("size", [0, 1, 65_536, 3 * MEGABYTE])
async def test_a_body_of_any_size_comes_whole_and_a_response_in_one_piece(size: int, native: bool) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    async with serving(echo, native=native) as (_, port), connected(port) as client:
        await client.send(post(body))
        status, headers, answer = await client.answer()
        assert (status, headers["x-one"], answer) == (200, "1", body)
        assert headers["date"] == "today"


@each
async def test_a_body_in_chunks_and_in_single_bytes(native: bool) -> None:
    request = (
        b"POST /hot HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
    )
    async with serving(echo, native=native) as (_, port), connected(port) as client:
        for place in range(len(request)):
            await client.send(request[place : place + 1])
        assert (await client.answer())[2] == b"abcdefg"


@each
async def test_headers_are_known_in_lower_case_and_the_last_of_two_counts(native: bool) -> None:
    async with serving(echo, native=native) as (application, port), connected(port) as client:
        await client.send(post(b"", b"X-Request-ID: mine", b"x-Twice: 1", b"X-TWICE: 2"))
        await client.answer()
        assert application.seen[0].request_id == "mine"
        assert application.seen[0].headers[b"x-twice"] == b"2"


@each
async def test_a_connection_is_used_again_and_requests_in_a_row_are_answered_in_order(native: bool) -> None:
    async with serving(echo, native=native) as (application, port), connected(port) as client:
        await client.send(post(b"one") + post(b"two") + post(b"three"))
        assert [(await client.answer())[2] for _ in range(3)] == [b"one", b"two", b"three"]
        await client.send(b"GET /other HTTP/1.1\r\nhost: here\r\n\r\n" + post(b"four"))
        assert [(await client.answer())[2] for _ in range(2)] == [b"asgi", b"four"]
        assert len(application.seen) == 4


@each
@pytest.mark.parametrize("way", [b"POST /hot HTTP/1.0\r\nhost: here\r\ncontent-length: 2\r\n\r\nhi", b""])
async def test_a_client_that_wants_no_more_is_closed_after_its_answer(way: bytes, native: bool) -> None:
    async with serving(echo, native=native) as (_, port), connected(port) as client:
        await client.send(way or post(b"hi", b"connection: close"))
        status, headers, body = await client.answer()
        assert (status, headers["connection"], body) == (200, "close", b"hi")
        assert await client.reader.read() == b""


@each
async def test_a_client_that_asks_first_is_told_to_go_on(native: bool) -> None:
    async with serving(echo, native=native) as (_, port), connected(port) as client:
        await client.send(post(b"hi", b"expect: 100-continue")[:-2])
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"hi")
        assert (await client.answer())[2] == b"hi"


@each
async def test_a_stream_comes_in_the_pieces_that_were_written(native: bool) -> None:
    go_on = asyncio.Event()

    async def answer(exchange: Exchange) -> None:
        await exchange.start(200, [(b"content-type", b"text/event-stream")])
        await exchange.write(b"first")
        await go_on.wait()
        await exchange.write(b"")
        await exchange.end(b"last")

    async with serving(answer, native=native) as (_, port), connected(port) as client:
        await client.send(post())
        assert b"transfer-encoding: chunked" in await client.reader.readuntil(b"\r\n\r\n")
        assert await client.reader.readexactly(10) == b"5\r\nfirst\r\n"
        go_on.set()
        assert await client.reader.readexactly(14) == b"4\r\nlast\r\n0\r\n\r\n"
        await client.send(post())
        assert (await client.answer())[2] == b"firstlast"


@each
@pytest.mark.parametrize("when", ["body", "waiting", "streaming"])
async def test_a_client_that_leaves_is_noticed_where_the_request_waits(when: str, native: bool) -> None:
    waiting, gone = asyncio.Event(), asyncio.Event()

    async def answer(exchange: Exchange) -> None:
        try:
            async with Interruptible(exchange.task) as block:
                if when != "body":
                    await exchange.body(MEGABYTE, block)
                    exchange.watch(block)
                if when == "streaming":
                    await exchange.start(200, [])
                waiting.set()
                if when == "body":
                    await exchange.body(MEGABYTE, block)
                await asyncio.Event().wait()
        except ClientGone:
            gone.set()

    async with asyncio.timeout(5), serving(answer, native=native) as (_, port):
        async with connected(port) as client:
            await client.send(post(b"hi")[:-1] if when == "body" else post(b"hi"))
            await waiting.wait()
        await gone.wait()


async def test_a_request_that_waits_behind_another_ends_with_the_connection() -> None:
    waiting, gone = asyncio.Event(), asyncio.Event()

    async def answer(exchange: Exchange) -> None:
        try:
            async with Interruptible(exchange.task) as block:
                await exchange.body(MEGABYTE, block)
                exchange.watch(block)
                waiting.set()
                await asyncio.Event().wait()
        except ClientGone:
            gone.set()

    # uvicorn's own connection tells only the request that came last.
    async with asyncio.timeout(5), serving(answer, native=True) as (application, port):
        async with connected(port) as client:
            await client.send(post(b"one") + post(b"two"))
            await waiting.wait()
        await gone.wait()
        assert len(application.seen) == 1


@each
async def test_nothing_is_tripped_after_the_answer_is_complete(native: bool) -> None:
    async def answer(exchange: Exchange) -> None:
        async with Interruptible(exchange.task) as block:
            await exchange.body(MEGABYTE, block)
            exchange.watch(block)
            await exchange.respond(200, [], b"done")
            left.set()
            await asyncio.sleep(0.05)
        ended.set()

    left, ended = asyncio.Event(), asyncio.Event()
    async with asyncio.timeout(5), serving(answer, native=native) as (_, port):
        async with connected(port) as client:
            await client.send(post())
            await client.answer()
            await left.wait()
        await ended.wait()


@each
async def test_a_client_that_does_not_read_holds_the_writer_up(native: bool) -> None:
    written, full = 0, asyncio.Event()

    async def answer(exchange: Exchange) -> None:
        nonlocal written
        await exchange.start(200, [])
        for _ in range(64):
            task = asyncio.ensure_future(exchange.write(b"x" * MEGABYTE))
            if not (await asyncio.wait({task}, timeout=0.2))[0]:
                full.set()
            await task
            written += 1
        await exchange.end()

    async with asyncio.timeout(20), serving(answer, native=native) as (_, port), connected(port) as client:
        await client.send(post())
        await full.wait()
        assert written < 64
        assert len((await client.answer())[2]) == 64 * MEGABYTE


@each
async def test_half_an_answer_does_not_look_like_a_whole_one(native: bool) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.start(200, [])
        await exchange.write(b"half")

    async with serving(answer, native=native) as (_, port), connected(port) as client:
        await client.send(post())
        with pytest.raises(asyncio.IncompleteReadError):
            await client.answer()


@each
async def test_a_header_with_a_line_break_is_never_sent(native: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.respond(200, [(b"x-name", b"a\r\nx-other: b")], b"body")

    async with serving(answer, native=native) as (_, port), connected(port) as client:
        await client.send(post())
        sent = await client.reader.read()
        assert b"x-other" not in sent
        assert sent == b"" or sent.startswith(b"HTTP/1.1 500")
    assert caplog.records


@each
async def test_a_body_over_the_limit_is_refused_and_the_rest_of_it_read(native: bool) -> None:
    async def answer(exchange: Exchange) -> None:
        try:
            async with Interruptible(exchange.task) as block:
                await exchange.body(10, block)
        except PayloadTooLarge:
            await exchange.discard()
            await exchange.respond(413, [], b"")

    async with serving(answer, native=native) as (_, port), connected(port) as client:
        await client.send(post(b"x" * 11) + post(b"x" * MEGABYTE))
        assert [(await client.answer())[0] for _ in range(2)] == [413, 413]


@each
async def test_a_connection_without_a_request_is_closed_after_a_while(native: bool) -> None:
    server = serving(echo, native=native, keep_alive=1)
    async with asyncio.timeout(10), server as (_, port), connected(port) as client:
        await client.send(post(b"hi"))
        await client.answer()
        assert await client.reader.read() == b""


async def test_a_connection_on_which_nothing_is_asked_is_closed() -> None:
    async with asyncio.timeout(10), serving(echo, native=True, keep_alive=1) as (_, port), connected(port) as client:
        assert await client.reader.read() == b""


async def test_a_long_answer_is_not_taken_for_an_idle_connection() -> None:
    async def answer(exchange: Exchange) -> None:
        await asyncio.sleep(1.5)
        await exchange.respond(200, [], b"late")

    async with asyncio.timeout(10), serving(answer, native=True, keep_alive=1) as (_, port), connected(port) as client:
        await client.send(post())
        assert (await client.answer())[2] == b"late"


@each
async def test_what_is_not_http_gets_a_400(native: bool) -> None:
    async with serving(echo, native=native) as (application, port), connected(port) as client:
        await client.send(b"not http\r\n\r\n")
        assert (await client.answer())[0] == 400
        assert application.seen == []


def test_the_headers_of_every_response_are_those_of_this_second() -> None:
    opening = Opening()
    first, second = [(b"date", b"Mon")], [(b"date", b"Tue"), (b"server", b"s")]
    assert opening(200, first) == opening(200, first) == b"HTTP/1.1 200 OK\r\ndate: Mon\r\n"
    assert opening(404, first) == b"HTTP/1.1 404 Not Found\r\ndate: Mon\r\n"
    assert opening(200, second) == b"HTTP/1.1 200 OK\r\ndate: Tue\r\nserver: s\r\n"
    assert opening(299, second) == b"HTTP/1.1 299 \r\ndate: Tue\r\nserver: s\r\n"
