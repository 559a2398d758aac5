"""Response cache, C32: identical concurrent requests of one tenant share one call, and nothing else."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bench.engine import Script, ScriptedEngine
from gateway import flight as flights
from tests.integration.stack import FRONTIER, SMALL, RawClient, Stack, chat, gateway, tiers, until
from tests.integration.test_gateway_caches import KEYS
from tests.integration.wire import Answer, ask, parse, text_of

CHAT = "/v1/chat/completions"
ONE = "how do I reset my password"
USAGE = {"include_usage": True}
CROWD = 50
# More than the buffers of a connection hold whose reader has narrowed its own.
LONG = ("word" * 5000 + " ") * 400
SLOW = Script(tokens=40, ttft=0.15, itl=0.005)


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(SMALL, defaults=SLOW) as running:
        yield running


@pytest.fixture
async def stack(engine: ScriptedEngine) -> AsyncIterator[Stack]:
    async with gateway(tiers(engine)) as running:
        yield running


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
