"""Response cache, C32: identical concurrent requests of one tenant share one call, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bench.engine import Script, ScriptedEngine
from tests.integration.flights import (
    CHAT,
    CROWD,
    ONE,
    SLOW,
    USAGE,
    answer_of,
    following,
    held,
    leader,
    post,
    said,
    together,
)
from tests.integration.stack import SMALL, RawClient, Stack, chat, gateway, tiers, until
from tests.integration.test_gateway_caches import KEYS
from tests.integration.wire import Answer, parse


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(SMALL, defaults=SLOW) as running:
        yield running


@pytest.fixture
async def stack(engine: ScriptedEngine) -> AsyncIterator[Stack]:
    async with gateway(tiers(engine)) as running:
        yield running


@pytest.mark.parametrize("stream", [True, False, None], ids=["SSE", "JSON", "both"])
async def test_c32_fifty_identical_requests_make_one_call(
    stack: Stack, engine: ScriptedEngine, stream: bool | None
) -> None:
    kinds = [number % 2 == 0 if stream is None else stream for number in range(CROWD)]
    answers = await together(
        stack, engine, *(post(stack, chat(ONE, stream=kind), x_request_id=f"r{n}") for n, kind in enumerate(kinds))
    )
    assert len(engine.requests) == 1
    assert len({said(answer) for answer in answers}) == 1
    found = sorted(answer.header("x-forebay-cache") or "" for answer in answers)
    assert found == ["hit-exact"] * (CROWD - 1) + ["miss"]
    followers = [answer for answer in answers if answer.header("x-forebay-cache") == "hit-exact"]
    assert {(answer.header("age"), answer.header("x-forebay-tier")) for answer in followers} == {("0", "none")}
    entries = {answer.header("x-forebay-cache-id") for answer in followers}
    await stack.idle()
    # Each is settled exactly once; the call is paid once, and what the others saved is counted.
    assert sorted(line["request_id"] for line in stack.lines()) == sorted(f"r{n}" for n in range(CROWD))
    assert await stack.metric("forebay_requests_total", cache="hit-exact", tier="none", status="200") == CROWD - 1
    assert await stack.metric("forebay_tokens_total", tier="small", kind="output") == 40
    saved = await stack.metric("forebay_saved_tokens_total", source="exact")
    assert saved == (CROWD - 1) * (40 + await stack.metric("forebay_tokens_total", tier="small", kind="input"))
    again = await post(stack, chat(ONE))
    assert entries == {again.header("x-forebay-cache-id")}
    assert said(again) == said(answers[0])
    assert len(stack.process.services.flights) == 0


@pytest.mark.parametrize("when", ["before the first token", "in the middle"])
@pytest.mark.parametrize("stream", [True, False], ids=["SSE", "JSON"])
async def test_c32_followers_survive_their_leaders_client(
    stack: Stack, engine: ScriptedEngine, stream: bool, when: str
) -> None:
    async with held(engine):
        first = await leader(stack, chat(ONE, stream=stream), x_request_id="leader")
        others = asyncio.gather(*(post(stack, chat(ONE, stream=stream)) for _ in range(CROWD - 1)))
        await until(lambda: following(stack) == CROWD - 1, within=20)
        if when == "before the first token":
            await first.leave()
            await until(lambda: all(one.left for one in stack.process.services.flights._flights.values()))
    if when == "in the middle":
        await engine.until(lambda: engine.requests[-1].state == "running")
        if stream:
            await first.reader.readuntil(b"word20")
        await first.leave()
    answers = await others
    assert len(engine.requests) == 1
    assert engine.requests[0].state == "done"
    assert {answer.header("x-forebay-cache") for answer in answers} == {"hit-exact"}
    assert {said(answer) for answer in answers} == {said(await post(stack, chat(ONE)))}
    line = await stack.line("leader")
    assert (line["status"], line["tier"], line["output_tokens"]) == (499, "small", 40)
    await stack.idle()


@pytest.mark.parametrize("stream", [True, False], ids=["SSE", "JSON"])
async def test_c32_the_engine_stops_when_nobody_waits_any_more(
    stack: Stack, engine: ScriptedEngine, stream: bool
) -> None:
    engine.defaults = Script(tokens=10_000, itl=0.2)
    clients = [await leader(stack, chat(ONE, stream=stream), x_request_id="c0")]
    clients += [await RawClient.post(stack.url, CHAT, chat(ONE, stream=stream), x_request_id=f"c{n}") for n in (1, 2)]
    await until(lambda: following(stack) == 2)
    await engine.until(lambda: engine.slots.running == 1)
    for client in clients:
        assert engine.slots.running == 1
        await client.leave()
    await engine.until(lambda: engine.requests[-1].state == "aborted")
    assert [(await stack.line(f"c{n}"))["status"] for n in range(3)] == [499] * 3
    await stack.idle()
    assert len(stack.process.services.flights) == 0
    assert len(engine.requests) == 1


async def test_c32_tenants_never_share_a_flight_whatever_the_scope(engine: ScriptedEngine) -> None:
    for scope in ("tenant", "global"):
        async with gateway({**tiers(engine), "auth": KEYS, "cache": {"scope": scope}}) as stack:
            engine.requests.clear()
            asks = (post(stack, chat(ONE), authorization=f"Bearer {key}") for key in "aba")
            found = [answer.header("x-forebay-cache") for answer in await together(stack, engine, *asks)]
            assert (sorted(map(str, found)), found[1]) == (["hit-exact", "miss", "miss"], "miss")
            assert len(engine.requests) == 2


async def test_an_urgent_request_does_not_wait_with_a_less_urgent_one(stack: Stack, engine: ScriptedEngine) -> None:
    asks = [post(stack, chat(ONE), x_forebay_priority=priority) for priority in ("low", "normal", "low", "normal")]
    answers = await together(stack, engine, *asks)
    assert sorted(answer.header("x-forebay-cache") or "" for answer in answers) == ["hit-exact"] * 2 + ["miss"] * 2
    assert len(engine.requests) == 2


async def test_a_late_follower_gets_what_it_missed_and_then_the_rest_as_it_comes(
    stack: Stack, engine: ScriptedEngine
) -> None:
    engine.defaults = Script(reasoning="Let me think first.", tokens=60, itl=0.01)
    fields = {"stream": True, "n": 2, "logprobs": True}
    first = await leader(stack, chat(ONE, **fields))
    start = await first.reader.readuntil(b"word20")
    late = await post(stack, chat(ONE, **fields))
    whole = parse(start + await asyncio.wait_for(first.reader.read(), 20))
    first.writer.close()
    assert late.header("x-forebay-cache") == "hit-exact"
    assert len(engine.requests) == 1
    # Fewer chunks, and more than one: the rest came live.
    assert 5 < len(late.events) < len(whole.events)
    assert combined(late) == combined(whole)


def combined(answer: Answer) -> dict[int, dict[str, Any]]:
    """Every choice of a streamed answer, put together as a client does."""
    found: dict[int, dict[str, Any]] = {}
    for event in answer.events[:-1]:
        for choice in event["choices"]:
            into = found.setdefault(choice["index"], {"content": "", "reasoning": "", "logprobs": [], "finish": []})
            into["content"] += choice["delta"].get("content") or ""
            into["reasoning"] += choice["delta"].get("reasoning") or ""
            into["logprobs"] += (choice["logprobs"] or {}).get("content") or []
            into["finish"] += [choice["finish_reason"]] if choice["finish_reason"] else []
    return found


async def test_a_late_follower_gets_tool_calls_whole(stack: Stack, engine: ScriptedEngine) -> None:
    call = {"name": "f", "arguments": '{"words": "' + "many " * 60 + '"}', "id": "call-1"}
    engine.defaults = Script.model_validate({"tool_calls": [call], "itl": 0.01})
    first = await leader(stack, chat(ONE, stream=True))
    await first.reader.readuntil(b"many")
    late = await post(stack, chat(ONE, stream=True))
    await first.reader.read()
    first.writer.close()
    parts = [
        part for event in late.events[:-1] for c in event["choices"] for part in c["delta"].get("tool_calls") or ()
    ]
    assert parts[0]["id"] == "call-1"
    assert parts[0]["function"]["name"] == "f"
    assert "".join(part["function"]["arguments"] for part in parts) == call["arguments"]
    assert len(engine.requests) == 1


@pytest.mark.parametrize("leads", [USAGE, None], ids=["leader asked", "leader did not"])
async def test_each_client_gets_the_usage_chunk_that_it_asked_for(
    stack: Stack, engine: ScriptedEngine, leads: dict[str, bool] | None
) -> None:
    async with held(engine):
        first = await leader(stack, chat(ONE, stream=True, stream_options=leads))
        others = [
            asyncio.ensure_future(post(stack, chat(ONE, stream=True, stream_options=options)))
            for options in (USAGE, None)
        ]
        await until(lambda: following(stack) == 2)
    asked, plain = await asyncio.gather(*others)
    for answer, wanted in ((await answer_of(first), leads is not None), (asked, True), (plain, False)):
        chunks = answer.events[:-1]
        assert sum("usage" in chunk for chunk in chunks) == wanted
        if wanted:
            assert (chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]) == ([], 40)
    assert len(engine.requests) == 1


@pytest.mark.parametrize("status", [400, 429, 500, 503])
@pytest.mark.parametrize("stream", [True, False], ids=["SSE", "JSON"])
async def test_an_error_before_content_is_everybodys_and_not_asked_for_again(
    stack: Stack, engine: ScriptedEngine, status: int, stream: bool
) -> None:
    engine.next.append(Script(status=status, headers={"retry-after": "7"}))
    answers = await together(stack, engine, *(post(stack, chat(ONE, stream=n % 2 == stream)) for n in range(10)))
    assert {(answer.status, answer.header("retry-after")) for answer in answers} == {(status, "7")}
    assert {answer.header("x-forebay-cache") for answer in answers} == {"miss"}
    assert len({answer.body for answer in answers}) == 1
    assert len(engine.requests) == 1
    assert await stack.metric("forebay_requests_total", tier="small", cache="miss", status=str(status)) == 10
    assert (await post(stack, chat(ONE))).status == 200


async def test_a_refusal_of_the_leader_is_everybodys_and_takes_no_further_place(engine: ScriptedEngine) -> None:
    queue = {"max_inflight": 1, "max_waiting": 1, "max_wait": "300ms"}
    engine.defaults = Script(tokens=10_000, itl=0.2)
    async with gateway(tiers(engine, queue=queue)) as stack:
        busy = await leader(stack, chat("something else"))
        answers = await asyncio.gather(*(post(stack, chat(ONE)) for _ in range(CROWD)))
        assert {(answer.status, answer.header("x-forebay-reason")) for answer in answers} == {(429, "queue_timeout")}
        assert all(answer.header("retry-after") for answer in answers)
        assert await stack.metric("forebay_shed_total", tier="small", reason="queue_timeout") == CROWD
        assert len(engine.requests) == 1
        await busy.leave()
        await stack.idle()


async def test_a_deadline_is_its_own_requests_only(engine: ScriptedEngine) -> None:
    queue = {"max_inflight": 1, "max_waiting": 5, "max_wait": "10s"}
    engine.next.append(Script(tokens=10_000, itl=0.2))
    async with gateway(tiers(engine, queue=queue)) as stack:
        busy = await leader(stack, chat("something else"))
        hasty = await leader(stack, chat(ONE), x_forebay_deadline_ms="150")
        patient = [asyncio.ensure_future(post(stack, chat(ONE))) for _ in range(5)]
        hastier = await post(stack, chat(ONE), x_forebay_deadline_ms="60")
        for answer in (hastier, await answer_of(hasty)):
            assert (answer.status, answer.header("x-forebay-reason")) == (429, "deadline")
        await busy.leave()
        answers = await asyncio.gather(*patient)
        assert sorted(answer.header("x-forebay-cache") or "" for answer in answers) == ["hit-exact"] * 4 + ["miss"]
        assert len(engine.requests) == 2
