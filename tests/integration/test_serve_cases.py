"""`forebay serve` as a process: what it says, what it logs, and how it ends."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.engine import Script, ScriptedEngine
from tests.integration.served import serving
from tests.integration.stack import SMALL, chat, tiers
from tests.integration.wire import ask

CHAT = "/v1/chat/completions"


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(SMALL) as running:
        yield running


async def test_sigterm_lets_streams_finish_and_every_request_has_one_line(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    """R1's kind: nothing is lost on the way down, and nothing secret is in the log."""
    document = {
        **tiers(engine, api_key="${TIER_SECRET}"),
        "auth": {"keys": [{"name": "k", "tenant": "t", "env": "CLIENT_SECRET"}]},
    }
    engine.defaults = Script(text="the-answer " * 20, itl=0.05)
    bearer = {"authorization": "Bearer client-secret"}
    async with serving(tmp_path, document, TIER_SECRET="tier-secret", CLIENT_SECRET="client-secret") as served:
        streams = [
            asyncio.create_task(ask(served.url, CHAT, chat(f"the-prompt {n}", stream=True), **bearer))
            for n in range(20)
        ]
        await engine.until(lambda: engine.running == 20, within=20)
        served.process.send_signal(signal.SIGTERM)
        answers = await asyncio.gather(*streams)
        assert all(answer.events[-1] == b"[DONE]" for answer in answers)
        assert await served.rest() == 0
        assert [line["status"] for line in served.requests] == [200] * 20
        assert {line["key"] for line in served.requests} == {"k"}
        text = "".join(served.lines)
        assert not [word for word in ("secret", "the-prompt", "the-answer", "Traceback") if word in text]


async def test_a_second_signal_ends_it_at_once(engine: ScriptedEngine, tmp_path: Path) -> None:
    engine.defaults = Script(tokens=10_000, itl=0.05)
    async with serving(tmp_path, tiers(engine)) as served:
        stream = asyncio.create_task(ask(served.url, CHAT, chat("x", stream=True)))
        await engine.until(lambda: engine.running == 1, within=20)
        served.process.send_signal(signal.SIGINT)
        served.process.send_signal(signal.SIGTERM)
        await served.rest()
        await asyncio.gather(stream, return_exceptions=True)
        await engine.until(lambda: engine.running == 0)
        assert "Traceback" not in "".join(served.lines)
