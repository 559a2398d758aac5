"""The link to a store: its budget, its breaker, who pays and who tries, on a server that answers when it is told to."""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Self

import pytest_asyncio

from core.clock import SystemClock
from core.config.addresses import RedisAddress
from core.errors import DependencyFault
from core.redis_link import RedisLink, Script

ANY = Script("return 1")


class Scripted:
    """A server that answers every command after the first ones of a connection with `answer`; None never answers."""

    def __init__(self) -> None:
        self.answer: str | None = ":1\r\n"
        self.asked = 0
        self.port = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            words = []
            for _ in range(int(line[1:])):
                size = int((await reader.readline())[1:])
                words.append((await reader.readexactly(size + 2))[:-2])
            if words[0] in (b"EVALSHA", b"EVAL"):
                self.asked += 1
                if self.answer is None:
                    continue
                writer.write(self.answer.encode())
            else:
                writer.write(b"+OK\r\n")
        writer.close()


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Scripted]:
    async with Scripted() as running:
        yield running


@pytest_asyncio.fixture
async def link(server: Scripted) -> AsyncIterator[RedisLink]:
    async with RedisLink(RedisAddress("127.0.0.1", server.port), SystemClock(), 0.25, "store") as opened:
        yield opened


async def request(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs as a request does: in a context of its own."""
    return await asyncio.get_running_loop().create_task(work, context=contextvars.copy_context())


async def kind(link: RedisLink, times: int = 1) -> list[str]:
    """How so many operations of one request end."""
    found = []
    for _ in range(times):
        try:
            await link.run(ANY, ["k"])
        except DependencyFault as fault:
            found.append(fault.kind)
        else:
            found.append("ok")
    return found


async def test_a_request_pays_the_budget_once(server: Scripted, link: RedisLink) -> None:
    assert await request(kind(link, 2)) == ["ok", "ok"]
    server.answer = None
    assert await request(kind(link, 3)) == ["timeout", "open", "open"]
    assert await request(kind(link)) == ["timeout"], "another request has not waited yet"
    assert link.breaker.state == "closed"


async def test_it_is_left_alone_after_five_and_only_the_background_tries(server: Scripted, link: RedisLink) -> None:
    server.answer = None
    for _ in range(5):
        assert await request(kind(link)) == ["timeout"]
    asked = server.asked
    assert await request(kind(link)) == ["open"]
    assert server.asked == asked
    server.answer = ":1\r\n"
    async with asyncio.timeout(5):
        while link.breaker.state != "closed":
            assert await request(kind(link)) == ["open"], "no request makes the trial"
            try:
                await link.run(ANY, ["k"], background=True)
            except DependencyFault:
                await asyncio.sleep(0.01)
    assert await request(kind(link)) == ["ok"]


async def test_a_server_that_says_no_is_there(server: Scripted, link: RedisLink) -> None:
    server.answer = "-OOM command not allowed\r\n"
    for _ in range(10):
        assert await request(kind(link)) == ["error"]
    assert (link.breaker.state, link.breaker.reason) == ("closed", None)


async def test_a_late_answer_is_not_taken_for_the_next_one(server: Scripted, link: RedisLink) -> None:
    server.answer = None
    assert await request(kind(link)) == ["timeout"]
    server.answer = ":7\r\n"
    assert await request(link.run(ANY, ["k"])) == 7


async def test_nobody_there_is_an_error_at_once() -> None:
    async with RedisLink(RedisAddress("127.0.0.1", 1), SystemClock(), 5.0) as link:
        for _ in range(5):
            assert await request(kind(link)) == ["error"]
        assert link.breaker.state == "open"
