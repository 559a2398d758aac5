"""Gateways that share a store, and servers for them to share."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from bench.engine import ScriptedEngine
from bench.servers import KINDS, Server, binary
from tests.integration.stack import Document, Stack, chat, gateway, tiers

CHAT = "/v1/chat/completions"
# The machine that runs the tests may be busy; where a budget is not what a test is about, it is ample.
AMPLE = "5s"
# Bags of words in another order are alike; whether they mean the same is not what these tests are about.
UNGUARDED: Document = {"semantic": {"threshold": 0.95, "guard": False, "deadline": AMPLE}}


def serve(kind: str, folder: Path) -> Iterator[Server]:
    """A running server of this kind; the test is skipped where it is not installed."""
    if binary(kind) is None:
        pytest.skip(f"no {kind} server is installed")
    with Server(kind, folder) as running:
        yield running


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A real server, once each kind."""
    yield from serve(request.param, tmp_path)


def sharing(
    url: str, engine: ScriptedEngine, *, auth: Document | None = None, **cache: Any
) -> AbstractAsyncContextManager[Stack]:
    """A gateway over the store at `url`."""
    semantic = {"threshold": 0.9, "deadline": AMPLE}
    document = {**tiers(engine), "cache": {"store": url, "timeout": AMPLE, "semantic": semantic, **cache}}
    if auth is not None:
        document["auth"] = auth
    return gateway(document, semantic=True)


async def answered(stack: Stack, text: str, **headers: str) -> tuple[str, str]:
    """What the cache said to a question, and the answer."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await stack.client.post(CHAT, json=chat(text), headers=given)
    assert answer.status_code == 200
    return answer.headers["x-forebay-cache"], answer.json()["choices"][0]["message"]["content"]


async def ask(stack: Stack, text: str, **headers: str) -> str:
    """What the cache said to a question."""
    return (await answered(stack, text, **headers))[0]


async def degraded(stack: Stack) -> list[str]:
    """What does not work, as /ready says it."""
    found: list[str] = (await stack.client.get("/ready")).json()["degraded"]
    return found


async def healthy(stack: Stack) -> bool:
    """Whether everything works as configured."""
    return not await degraded(stack)


async def says(stack: Stack, words: str) -> bool:
    """Whether /ready says these words about what does not work."""
    return any(words in part for part in await degraded(stack))


async def finds(stack: Stack, text: str) -> bool:
    """Whether the semantic layer would answer this question; leaves no trace."""
    explained = (await stack.client.post("/v1/explain", json=chat(text))).json()
    return bool(explained["cache"]["semantic"]["verdict"] == "hit")


async def eventually(check: Any, *arguments: Any, within: float = 30.0) -> None:
    """Wait until an asynchronous check holds. Raises TimeoutError."""
    async with asyncio.timeout(within):
        while not await check(*arguments):  # noqa: ASYNC110  # the condition is another process's
            await asyncio.sleep(0.01)
