"""What tests of singleflight share: crowds of requests that are all there before the engine answers."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from bench.engine import Script, ScriptedEngine
from tests.integration.stack import RawClient, Stack, until
from tests.integration.wire import Answer, ask, parse, text_of

CHAT = "/v1/chat/completions"
ONE = "how do I reset my password"
USAGE = {"include_usage": True}
CROWD = 50
# More than the buffers of a connection hold whose reader has narrowed its own.
LONG = ("word" * 5000 + " ") * 400
SLOW = Script(tokens=40, ttft=0.15, itl=0.005)


async def post(stack: Stack, body: dict[str, Any], **headers: str) -> Answer:
    return await ask(stack.url, CHAT, body, **headers)


async def leader(stack: Stack, body: dict[str, Any], **headers: str) -> RawClient:
    """A client whose request leads a flight."""
    before = len(stack.process.services.flights)
    client = await RawClient.post(stack.url, CHAT, body, connection="close", **headers)
    await until(lambda: len(stack.process.services.flights) == before + 1)
    return client


async def answer_of(client: RawClient) -> Answer:
    try:
        return parse(await asyncio.wait_for(client.reader.read(), 20))
    finally:
        client.writer.close()


@asynccontextmanager
async def held(engine: ScriptedEngine) -> AsyncIterator[None]:
    """The engine answers nobody until the block ends."""
    engine.slots.limit = 1
    async with engine.slots.hold():
        yield
        engine.slots.limit = None


async def together(stack: Stack, engine: ScriptedEngine, *asks: Awaitable[Answer]) -> list[Answer]:
    """The answers to requests that are all there, at the engine or following, before the engine answers."""
    async with held(engine):
        answers = [asyncio.ensure_future(one) for one in asks]
        await until(lambda: engine.waiting + following(stack) == len(answers), within=20)
    return await asyncio.gather(*answers)


def following(stack: Stack) -> int:
    """Requests that follow a flight."""
    return sum(len(one._followers) for one in stack.process.services.flights._flights.values())


def stop_reading(client: RawClient) -> None:
    """A client that takes little more of its answer."""
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.writer.transport.pause_reading()


def said(answer: Answer) -> str:
    """The text of an answer, streamed or not."""
    assert answer.status == 200, answer.body
    if (answer.header("content-type") or "").startswith("text/event-stream"):
        assert answer.events[-1] == b"[DONE]"
        return text_of(answer.events)
    return str(answer.json["choices"][0]["message"]["content"])
