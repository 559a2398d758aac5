"""Shadow mode: a share of the semantic hits is compared with a fresh answer, out of the clients' way."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bench.engine import Script, ScriptedEngine
from tests.integration.stack import SMALL, RawClient, Stack, chat, gateway, tiers, until
from tests.integration.wire import ask

CHAT = "/v1/chat/completions"
ONE, OTHER = "how do I reset my password", "my password how do I reset"
PARIS = "The capital of France is the city of Paris, and has been for a long time."


@asynccontextmanager
async def shadowed(engine: ScriptedEngine, rate: float = 1.0, **settings: Any) -> AsyncIterator[Stack]:
    semantic = {"enabled": True, "threshold": 0.9, "guard": False, "deadline": "5s", "shadow_rate": rate}
    async with gateway({**tiers(engine, **settings), "cache": {"semantic": semantic}}, semantic=True) as stack:
        yield stack


async def hit(stack: Stack, text: str = OTHER, **fields: Any) -> str:
    """Ask another wording of what is stored; the entry that answered."""
    answer = await ask(stack.url, CHAT, chat(text, **fields), x_request_id="the-hit")
    assert answer.header("x-forebay-cache") == "hit-semantic"
    return answer.header("x-forebay-cache-id") or ""


async def settled(stack: Stack) -> None:
    await until(lambda: stack.process.services.shadow.running == 0)


@pytest.mark.parametrize(
    ("fresh", "agreement"),
    [
        (PARIS, "same"),
        ("the capital of france is the city of Paris - and has been for a long time", "same"),
        ("Paris", "same"),
        ("Cheese is best kept in a cool cellar, wrapped in wax paper against drying.", "different"),
    ],
    ids=["equal", "equal but for punctuation", "the fact alone", "something else"],
)
@pytest.mark.parametrize("stream", [True, False], ids=["SSE", "JSON"])
async def test_a_hit_is_compared_and_an_entry_that_disagrees_is_dropped(
    fresh: str, agreement: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedEngine(SMALL) as engine, shadowed(engine) as stack:
        engine.next.extend([Script(text=PARIS), Script(text=fresh)])
        fields = {"temperature": 0.7, "stream": stream, "n": 1}
        await ask(stack.url, CHAT, chat(ONE, **fields))
        with caplog.at_level(logging.INFO, "forebay.shadow"):
            entry = await hit(stack, **fields)
            await settled(stack)
        assert await stack.metric("forebay_cache_shadow_total", agreement=agreement) == 1
        sent = engine.requests[-1].json
        assert (sent["messages"], sent["model"], sent["temperature"]) == (chat(OTHER)["messages"], SMALL, 0)
        assert "stream" not in sent
        kept = await ask(stack.url, CHAT, chat(ONE, **fields))
        assert (kept.header("x-forebay-cache") == "hit-exact") == (agreement == "same")
        lines = [record.getMessage() for record in caplog.records if record.name == "forebay.shadow"]
        assert len(lines) == 1
        assert entry in lines[0]
        assert "the-hit" in lines[0]
        assert ("dropped" in lines[0]) == (agreement == "different")
        assert not any(word in lines[0] for word in ("password", "Paris", "Cheese"))


async def test_nothing_is_compared_by_default() -> None:
    async with ScriptedEngine(SMALL) as engine, shadowed(engine, rate=0.0) as stack:
        await ask(stack.url, CHAT, chat(ONE))
        await hit(stack)
        assert stack.process.services.shadow.running == 0
        assert len(engine.requests) == 1


async def test_a_busy_tier_is_left_alone() -> None:
    async with ScriptedEngine(SMALL) as engine, shadowed(engine, queue={"max_inflight": 2}) as stack:
        await ask(stack.url, CHAT, chat(ONE))
        engine.next.append(Script(hang=True))
        busy = await RawClient.post(stack.url, CHAT, chat("something else entirely"))
        await engine.until(lambda: len(engine.requests) == 2)
        await hit(stack)
        assert await stack.metric("forebay_cache_shadow_skipped_total", reason="busy") == 1
        assert len(engine.requests) == 2
        await busy.leave()
        await stack.idle()


async def test_a_client_that_needs_the_place_gets_it_at_once() -> None:
    async with ScriptedEngine(SMALL) as engine, shadowed(engine, queue={"max_inflight": 1}) as stack:
        await ask(stack.url, CHAT, chat(ONE))
        engine.next.append(Script(hang=True))
        await hit(stack)
        await engine.until(lambda: len(engine.requests) == 2)
        answer = await ask(stack.url, CHAT, chat("something else entirely"))
        assert answer.status == 200
        assert engine.requests[1].state == "aborted"
        assert await stack.metric("forebay_cache_shadow_skipped_total", reason="busy") == 1
        await settled(stack)
        await stack.idle()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (Script(status=500), "error"),
        (Script(body=b"not json"), "error"),
        (Script(text=PARIS, finish_reason="length"), "incomparable"),
    ],
    ids=["status", "garbage", "cut"],
)
async def test_what_cannot_be_compared_is_counted_and_the_entry_stays(script: Script, reason: str) -> None:
    async with ScriptedEngine(SMALL) as engine, shadowed(engine) as stack:
        await ask(stack.url, CHAT, chat(ONE))
        engine.next.append(script)
        await hit(stack)
        await settled(stack)
        assert await stack.metric("forebay_cache_shadow_skipped_total", reason=reason) == 1
        assert (await ask(stack.url, CHAT, chat(ONE))).header("x-forebay-cache") == "hit-exact"
        await stack.idle()


async def test_a_share_is_drawn_and_no_entry_is_compared_twice_at_a_time() -> None:
    async with ScriptedEngine(SMALL) as engine, shadowed(engine, rate=0.5) as stack:
        draws = iter([0.6, 0.4, 0.1, 0.9, 0.3])
        stack.process.services.shadow._chance = lambda: next(draws)
        await ask(stack.url, CHAT, chat(ONE))
        engine.next.append(Script(ttft=0.3))
        for _ in range(3):
            await hit(stack)
        # The third was drawn as well, while the second was being compared.
        assert stack.process.services.shadow.running == 1
        await settled(stack)
        assert len(engine.requests) == 2
