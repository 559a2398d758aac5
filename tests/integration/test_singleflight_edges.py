"""Singleflight where it is hard: broken streams, slow readers, what is not shared, and the other parts it meets."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from bench.engine import Script, ScriptedEngine
from gateway import flight as flights
from tests.integration.flights import (
    CHAT,
    LONG,
    ONE,
    SLOW,
    answer_of,
    following,
    held,
    leader,
    post,
    said,
    stop_reading,
    together,
)
from tests.integration.stack import FRONTIER, SMALL, RawClient, Stack, chat, gateway, tiers, until
from tests.integration.wire import ask, text_of


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(SMALL, defaults=SLOW) as running:
        yield running


@pytest.fixture
async def stack(engine: ScriptedEngine) -> AsyncIterator[Stack]:
    async with gateway(tiers(engine)) as running:
        yield running


@pytest.mark.parametrize("cut", ["close", "reset"])
async def test_a_stream_that_breaks_is_an_error_for_its_readers_and_asked_for_again_by_the_others(
    stack: Stack, engine: ScriptedEngine, cut: str
) -> None:
    engine.next.append(Script.model_validate({"tokens": 40, "itl": 0.01, "cut_after_tokens": 20, "cut": cut}))
    async with held(engine):
        first = await leader(stack, chat(ONE, stream=True))
        others = [asyncio.ensure_future(post(stack, chat(ONE, stream=n == 0))) for n in range(6)]
        await until(lambda: following(stack) == 6)
    streamed, *whole = await asyncio.gather(*others)
    for answer in (await answer_of(first), streamed):
        assert answer.status == 200
        assert "error" in answer.events[-1]
        assert text_of(answer.events).endswith(" word19")
    assert {answer.status for answer in whole} == {200}
    assert len(engine.requests) == 2
    await stack.idle()


async def test_one_slow_reader_holds_up_nobody_and_is_cut_off(
    stack: Stack, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flights, "LIMIT", 200_000)
    engine.defaults = Script(text=LONG)
    first = await leader(stack, chat(ONE, stream=True))
    slow = await RawClient.post(stack.url, CHAT, chat(ONE, stream=True), x_request_id="slow")
    stop_reading(slow)
    fast = await asyncio.gather(answer_of(first), *(post(stack, chat(ONE, stream=True)) for _ in range(3)))
    for answer in fast:
        assert said(answer) == LONG
    line = await stack.line("slow")
    assert (line["status"], line["reason"]) == (408, "client_too_slow")
    assert len(engine.requests) == 1
    await slow.leave()
    await stack.idle()


async def test_a_leader_that_does_not_read_holds_up_nobody(stack: Stack, engine: ScriptedEngine) -> None:
    engine.defaults = Script(text=LONG)
    stuck = await RawClient.post(stack.url, CHAT, chat(ONE, stream=True))
    stop_reading(stuck)
    await until(lambda: any(one.blocked for one in stack.process.services.flights._flights.values()))
    # It would have to wait for that client: it makes a call that others can share.
    answers = await asyncio.gather(*(post(stack, chat(ONE, stream=True)) for _ in range(5)))
    assert {said(answer) for answer in answers} == {LONG}
    assert len(engine.requests) == 2
    await stuck.leave()
    await stack.idle()


async def test_when_all_are_slow_the_engine_waits(stack: Stack, engine: ScriptedEngine) -> None:
    engine.defaults = Script(text=LONG * 2)
    clients = []
    for _ in range(2):
        clients.append(await RawClient.post(stack.url, CHAT, chat(ONE, stream=True)))
        stop_reading(clients[-1])
    await engine.until(lambda: engine.blocked == 1, within=20)
    held = [one for flight in stack.process.services.flights._flights.values() for one in flight._followers]
    assert all(one.size <= flights.LIMIT for one in held)
    for client in clients:
        await client.leave()
    await stack.idle()


@pytest.mark.parametrize(
    "headers", [{"x_forebay_cache": "off"}, {"cache_control": "no-cache"}, {"cache_control": "max-age=0"}], ids=str
)
async def test_requests_that_look_nothing_up_share_nothing(
    stack: Stack, engine: ScriptedEngine, headers: dict[str, str]
) -> None:
    answers = await asyncio.gather(*(post(stack, chat(ONE), **headers) for _ in range(3)))
    assert {answer.status for answer in answers} == {200}
    assert len(engine.requests) == 3


async def test_without_the_exact_layer_nothing_is_shared(engine: ScriptedEngine) -> None:
    async with gateway({**tiers(engine), "cache": {"exact": {"enabled": False}}}) as stack:
        await asyncio.gather(*(post(stack, chat(ONE)) for _ in range(3)))
        assert len(engine.requests) == 3


async def test_running_usage_is_not_shared(stack: Stack, engine: ScriptedEngine) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    await asyncio.gather(*(post(stack, chat(ONE, stream=True, stream_options=options)) for _ in range(2)))
    assert len(engine.requests) == 2


async def test_an_answer_that_is_not_kept_is_shared_all_the_same(stack: Stack, engine: ScriptedEngine) -> None:
    engine.defaults = Script(tokens=20, ttft=0.1, finish_reason="length")
    for stream in (True, False):
        answers = await together(stack, engine, *(post(stack, chat(ONE, stream=n % 2 == stream)) for n in range(6)))
        assert len({said(answer) for answer in answers}) == 1
        assert sum(answer.header("x-forebay-cache") == "hit-exact" for answer in answers) == 5
    assert len(engine.requests) == 2


async def test_what_is_no_completion_is_not_shared_and_asked_for_at_most_once_more(
    stack: Stack, engine: ScriptedEngine
) -> None:
    engine.defaults = Script(body=b'{"choices": []}', ttft=0.1)
    answers = await together(stack, engine, *(post(stack, chat(ONE)) for _ in range(8)))
    assert sorted(answer.status for answer in answers) == [200, 200, *[502] * 6]
    assert len(engine.requests) == 2


async def test_a_semantic_hit_of_the_leader_answers_its_followers_in_one_embedding(engine: ScriptedEngine) -> None:
    semantic = {"enabled": True, "threshold": 0.9, "guard": False, "deadline": "30s"}
    engine.defaults = Script()
    async with gateway({**tiers(engine), "cache": {"semantic": semantic}}, semantic=True) as stack:
        await post(stack, chat("my password how do I reset"))
        stack.encoder.texts.clear()
        encode, all_there = stack.encoder.encode, threading.Event()
        stack.encoder.encode = lambda texts: encode(texts) if all_there.wait(20) else []  # type: ignore[method-assign]
        asks = [asyncio.ensure_future(post(stack, chat(ONE))) for _ in range(20)]
        await until(lambda: following(stack) == 19, within=20)
        all_there.set()
        answers = await asyncio.gather(*asks)
        assert {answer.header("x-forebay-cache") for answer in answers} == {"hit-semantic"}
        assert stack.encoder.texts == [ONE]
        assert len(engine.requests) == 1
        # Those who want the exact layer only ask for themselves, once for all of them.
        modes = ["exact", "on"] * 5
        mixed = await asyncio.gather(*(post(stack, chat(ONE), x_forebay_cache=mode) for mode in reversed(modes)))
        found = [answer.header("x-forebay-cache") for answer in mixed]
        assert found.count("hit-semantic") + found.count("hit-exact") + found.count("miss") == 10
        assert all(kind != "hit-semantic" for kind, mode in zip(found, reversed(modes), strict=True) if mode == "exact")
        assert len(engine.requests) == 2


async def test_pings_reach_followers_that_wait(engine: ScriptedEngine) -> None:
    async with gateway({"gateway": {"sse_ping": "20ms"}, **tiers(engine)}) as stack:
        answers = await together(stack, engine, *(post(stack, chat(ONE, stream=True)) for _ in range(3)))
        for answer in answers:
            assert answer.body.startswith(b": ping\n\n")
            assert said(answer)
        assert len(engine.requests) == 1
        # The head was sent before anybody could know that it would be a hit; the log knows how it ended.
        assert {(answer.header("x-forebay-cache"), answer.header("age")) for answer in answers} == {("miss", None)}
        await stack.idle()
        assert sorted(line["cache"] for line in stack.lines()) == ["hit-exact", "hit-exact", "miss"]


async def test_text_completions_share_as_well(stack: Stack, engine: ScriptedEngine) -> None:
    body = {"model": "small", "prompt": "once upon a time"}
    kinds = (True, False, True)
    asks = (ask(stack.url, "/v1/completions", {**body, "stream": kind}) for kind in kinds)
    found = await together(stack, engine, *asks)
    assert len(engine.requests) == 1
    texts = ["".join(c["text"] for event in one.events[:-1] for c in event["choices"]) for one in (found[0], found[2])]
    assert texts == [found[1].json["choices"][0]["text"]] * 2


async def test_an_answer_of_the_other_tier_is_shared_too(engine: ScriptedEngine) -> None:
    engine.models = [FRONTIER]
    engine.defaults = Script(ttft=0.1)
    async with ScriptedEngine(SMALL) as down:
        document = tiers(down, frontier=engine, fallback="frontier")
        async with gateway(document, probed=False) as stack:
            gates = stack.process.services.tiers
            await until(lambda: gates["frontier"].replicas.ready and gates["small"].replicas.ready)
            await down.stop_listening()
            down.drop_connections()
            await until(lambda: not gates["small"].replicas.usable, within=20)
            for stream in (True, False):
                answers = await together(stack, engine, *(post(stack, chat(ONE, stream=stream)) for _ in range(6)))
                assert len({said(answer) for answer in answers}) == 1
                kinds = sorted(answer.header("x-forebay-cache") or "" for answer in answers)
                assert kinds == ["hit-exact"] * 5 + ["miss"]
            # It is shared but not kept: it is another model's.
            assert len(engine.requests) == 2


async def test_a_cascade_is_run_once_for_all(engine: ScriptedEngine) -> None:
    engine.defaults = Script(text="sure " * 20, ttft=0.1)
    async with ScriptedEngine(FRONTIER, defaults=Script(text="from above", ttft=0.1)) as above:
        cascade = {"cascade": {"enabled": True, "threshold": -0.01, "tokens": 4}, "sticky": False}
        async with gateway({**tiers(engine, frontier=above), "router": cascade}) as stack:
            body = {**chat("What is the capital of France?"), "model": "auto"}
            for stream in (True, False):
                asked = {**body, "stream": stream, "seed": int(stream)}
                answers = await together(stack, engine, *(post(stack, asked) for _ in range(6)))
                assert {said(answer) for answer in answers} == {"from above"}
            assert (len(engine.requests), len(above.requests)) == (2, 2)
