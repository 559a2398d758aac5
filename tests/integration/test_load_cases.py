"""Admission and stopping under load, over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bench.engine import Script, ScriptedEngine
from tests.integration.stack import SMALL, Stack, chat, gateway, tiers, until
from tests.integration.wire import Answer, ask

CHAT = "/v1/chat/completions"


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(SMALL) as running:
        yield running


async def post(stack: Stack, body: dict[str, Any], **headers: str) -> Answer:
    return await ask(stack.url, CHAT, body, **headers)


async def test_overload_is_refused_with_a_reason_and_a_time(engine: ScriptedEngine) -> None:
    """A full queue and a wait that is too long are 429 with Retry-After; whoever is inside is served."""
    queue = {"max_inflight": 2, "max_waiting": 2, "max_wait": "150ms"}
    engine.defaults = Script(ttft=0.6)
    async with gateway(tiers(engine, queue=queue)) as stack:
        answers = await asyncio.gather(*(post(stack, chat(f"q {number}")) for number in range(8)))
        refused = [answer for answer in answers if answer.status == 429]
        assert sorted(answer.status for answer in answers) == [200] * 2 + [429] * 6
        reasons = sorted(answer.header("x-forebay-reason") or "" for answer in refused)
        assert reasons == ["queue_full"] * 4 + ["queue_timeout"] * 2
        assert all(int(answer.header("retry-after") or 0) >= 1 for answer in refused)
        assert await stack.metric("forebay_shed_total", tier="small", reason="queue_full") == 4
        await stack.idle()


async def test_a_stop_under_load_breaks_no_stream(engine: ScriptedEngine) -> None:
    """What SIGTERM does first: unready at once, refused at the door, finished inside, and then the end."""
    engine.defaults = Script(tokens=8, itl=0.1)
    async with gateway(tiers(engine)) as stack:
        running = [asyncio.create_task(post(stack, chat(f"q {number}", stream=True))) for number in range(20)]
        await engine.until(lambda: engine.running == 20)
        stack.process.stop()
        assert (await stack.client.get("/ready")).status_code == 503
        late = await post(stack, chat("late"))
        assert (late.status, late.header("x-forebay-reason")) == (503, "draining")
        assert int(late.header("retry-after") or 0) >= 1
        answers = await asyncio.gather(*running)
        assert all(answer.whole and answer.events[-1] == b"[DONE]" for answer in answers)
        await until(lambda: stack.process.server.should_exit)
