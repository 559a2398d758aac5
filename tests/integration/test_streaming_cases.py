"""Streaming and proxying: one test or more per case seen in the field, over real sockets."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import openai
import orjson
import pytest

from bench.engine import Script, ScriptedEngine, ToolCall
from tests.integration.stack import SMALL, RawClient, Stack, chat, gateway, tiers, until
from tests.integration.wire import ask, is_envelope, parse, text_of

CHAT = "/v1/chat/completions"
USAGE = {"include_usage": True}


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(SMALL) as running:
        yield running


@pytest.fixture
async def stack(engine: ScriptedEngine) -> AsyncIterator[Stack]:
    async with gateway(tiers(engine)) as running:
        yield running


def stream(text: str, **fields: Any) -> dict[str, Any]:
    return chat(text, stream=True, **fields)


@pytest.mark.parametrize("streamed", [True, False], ids=["S1", "S2"])
@pytest.mark.parametrize("moment", ["before the head", "before the first token", "in the middle"])
async def test_s1_s2_a_client_that_leaves_ends_the_engines_work(
    stack: Stack, engine: ScriptedEngine, streamed: bool, moment: str
) -> None:
    """S1, S2: the upstream connection is closed within a second, 499 in log and metric."""
    scripts = {
        "before the head": Script(hang=True),
        "before the first token": Script(ttft=60),
        "in the middle": Script(tokens=1000, itl=0.05),
    }
    client = await RawClient.post(
        stack.url, CHAT, chat("leave", stream=streamed, script=scripts[moment].model_dump(mode="json"))
    )
    await engine.until(lambda: engine.running == 1)
    if streamed and moment == "in the middle":
        await client.reader.readuntil(b"data: ")
    await client.leave()
    await engine.until(lambda: engine.requests[-1].state == "aborted", within=1)
    await stack.idle()
    await until(lambda: bool(stack.lines()))
    assert [line["status"] for line in stack.lines()] == [499]
    assert await stack.metric("forebay_requests_total", status="499") == 1
    assert await stack.metric("forebay_inflight", tier="small") == 0


async def test_s1_a_closed_openai_stream_stops_generation(stack: Stack, engine: ScriptedEngine) -> None:
    """S1 with the official client."""
    engine.defaults = Script(tokens=1000, itl=0.05)
    async with openai.AsyncOpenAI(base_url=stack.url + "/v1", api_key="k", max_retries=0) as client:
        asked: Any = {"model": "small", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        answer = await client.chat.completions.create(**asked)
        await anext(aiter(answer))
        await answer.close()
        await engine.until(lambda: engine.requests[-1].state == "aborted", within=1)
    await stack.idle()


async def test_s1_a_client_that_shuts_its_sending_side_is_taken_as_gone(stack: Stack, engine: ScriptedEngine) -> None:
    """S1: as uvicorn and vLLM take it; nothing is left running."""
    client = await RawClient.post(stack.url, CHAT, stream("half", script={"tokens": 1000, "itl": 0.05}))
    await client.reader.readuntil(b"data: ")
    client.writer.write_eof()
    await engine.until(lambda: engine.requests[-1].state == "aborted", within=1)
    client.writer.close()
    await stack.idle()
    await until(lambda: bool(stack.lines()))
    assert [line["status"] for line in stack.lines()] == [499]


async def test_s3_a_hundred_cancelled_requests_leave_no_trace(stack: Stack, engine: ScriptedEngine) -> None:
    """S3: streams, plain requests and passed-through ones, left at different moments."""
    kinds: list[tuple[str, dict[str, Any]]] = [
        (CHAT, {"stream": True, "script": {"tokens": 1000, "itl": 0.05}}),
        (CHAT, {"script": {"hang": True}}),
        (CHAT, {"stream": True, "script": {"ttft": 60}}),
        ("/v1/embeddings", {"script": {"hang": True}}),
    ]
    clients = []
    for number in range(100):
        path, fields = kinds[number % 4]
        clients.append(await RawClient.post(stack.url, path, chat(f"hello {number}", **fields)))
    await engine.until(lambda: engine.running == 100, within=20)
    assert await stack.metric("forebay_inflight", tier="small") == 100
    for client in clients:
        await client.leave()
    await engine.until(lambda: engine.running == 0)
    await stack.idle()
    assert await stack.metric("forebay_inflight", tier="small") == 0
    assert await stack.metric("forebay_requests_total", status="499") >= 25
    assert len(stack.lines()) == 100


@pytest.mark.parametrize(("asked", "shown"), [(None, 0), (False, 0), (True, 1)])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_s6_usage_reaches_only_the_client_that_asked(
    stack: Stack, engine: ScriptedEngine, path: str, asked: bool | None, shown: int
) -> None:
    """S6: exactly one usage chunk, after the finish chunk, with no choices; metering works either way."""
    body = stream("hi", prompt="hi", **({} if asked is None else {"stream_options": {"include_usage": asked}}))
    answer = await ask(stack.url, path, body)
    *chunks, done = answer.events
    assert done == b"[DONE]"
    assert [event["choices"] == [] for event in chunks].count(True) == shown
    assert sum("usage" in event for event in chunks) == shown
    assert all("choices" in event for event in chunks)
    if shown:
        assert chunks[-1]["choices"] == []
        assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert await stack.metric("forebay_tokens_total", tier="small", kind="output") > 0


async def test_s6_an_engine_that_always_sends_usage_does_not_surprise_the_client(
    stack: Stack, engine: ScriptedEngine
) -> None:
    """S6."""
    engine.defaults = Script(usage="always")
    assert all(event == b"[DONE]" or event["choices"] for event in (await ask(stack.url, CHAT, stream("a"))).events)


async def test_s6_no_usage_chunk_on_a_stream_that_broke(stack: Stack, engine: ScriptedEngine) -> None:
    """S6."""
    engine.next.append(Script(tokens=9, error_event_after=4, usage="always"))
    answer = await ask(stack.url, CHAT, stream("a", stream_options=USAGE))
    assert all(event.get("choices") != [] for event in answer.events)


async def test_s8_pings_come_only_before_the_first_token_and_only_where_configured(engine: ScriptedEngine) -> None:
    """S8."""
    engine.defaults = Script(ttft=0.25, tokens=3, itl=0.1)
    async with gateway({**tiers(engine), "gateway": {"sse_ping": "30ms"}}) as pinging:
        answer = await ask(pinging.url, CHAT, stream("slow"))
        assert answer.body.startswith(b": ping\n\n")
        assert b": ping" not in answer.body[answer.body.index(b"data: ") :]
        assert answer.body.endswith(b"data: [DONE]\n\n")
        hit = await ask(pinging.url, CHAT, stream("slow"))
        assert hit.header("x-forebay-cache") == "hit-exact"
        assert b": ping" not in hit.body
    async with gateway(tiers(engine)) as silent:
        assert b": ping" not in (await ask(silent.url, CHAT, stream("slow"))).body


@pytest.mark.parametrize("status", [400, 404, 413, 422, 429, 500, 502, 503])
@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "json"])
async def test_s9_an_engines_error_keeps_its_status_and_is_json(
    stack: Stack, engine: ScriptedEngine, status: int, streamed: bool
) -> None:
    """S9, C10: status and envelope of the engine, also under stream; the next request reaches the engine."""
    engine.next.append(Script(status=status, headers={"retry-after": "3"}))
    answer = await ask(stack.url, CHAT, chat("hi", stream=streamed))
    assert (answer.status, answer.header("content-type")) == (status, "application/json")
    assert is_envelope(answer.json)
    assert answer.json["error"]["code"] == status
    assert answer.header("retry-after") == "3"
    again = await ask(stack.url, CHAT, chat("hi", stream=streamed))
    assert (again.status, again.header("x-forebay-cache")) == (200, "miss")


async def test_s14_other_routes_stream_through(stack: Stack) -> None:
    """S14: /v1/responses with the official client."""
    async with openai.AsyncOpenAI(base_url=stack.url + "/v1", api_key="k", max_retries=0) as client:
        events = [event async for event in await client.responses.create(model="small", input="hello", stream=True)]
        plain = await client.responses.create(model="small", input="hello")
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said.strip() == plain.output_text
    assert events[-1].type == "response.completed"


async def test_s16_every_event_is_sent_on_at_once_and_proxies_are_told_not_to_buffer(
    stack: Stack, engine: ScriptedEngine
) -> None:
    """S16: the client has read the third token while the engine has not made the fourth."""
    client = await RawClient.post(
        stack.url, CHAT, stream("hi", script={"text": "one two three four", "cut_after_tokens": 3, "cut": "stall"})
    )
    head = parse(await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), 5))
    assert head.header("cache-control") == "no-cache"
    assert head.header("x-accel-buffering") == "no"
    assert (head.header("content-type") or "").startswith("text/event-stream")
    await asyncio.wait_for(client.reader.readuntil(b"three"), 5)
    assert engine.requests[-1].open
    assert engine.requests[-1].tokens == 3
    await client.leave()


S18 = """
import asyncio, json, sys
import aiohttp
from vllm.benchmarks.lib.endpoint_request_func import RequestFuncInput
from vllm.benchmarks.lib import endpoint_request_func as bench

async def main(url):
    async with aiohttp.ClientSession() as session:
        counts = []
        for batch in range(3):
            asked = [RequestFuncInput(prompt=f"p {batch} {n}", api_url=url + path, prompt_len=2, output_len=8,
                                      model="small", ignore_eos=True, request_id=f"b{batch}-{n}")
                     for n in range(20) for path in ("/v1/chat/completions",)]
            done = await asyncio.gather(*(bench.async_request_openai_chat_completions(one, session) for one in asked))
            asked = [RequestFuncInput(prompt=f"q {batch} {n}", api_url=url + "/v1/completions", prompt_len=2,
                                      output_len=8, model="small", ignore_eos=True) for n in range(20)]
            done += await asyncio.gather(*(bench.async_request_openai_completions(one, session) for one in asked))
            counts.append([sum(one.success for one in done), sum(one.output_tokens or 0 for one in done)])
        print(json.dumps(counts))

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.e2e
async def test_s18_vllms_own_load_generator_runs_batch_after_batch(stack: Stack, engine: ScriptedEngine) -> None:
    """S18: the request functions of `vllm bench serve`, in a process of their own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", S18, stack.url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    out, _ = await asyncio.wait_for(process.communicate(), 110)
    assert orjson.loads(out.splitlines()[-1]) == [[40, 320]] * 3
    assert {seen.status for seen in engine.requests} == {200}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (CHAT, {}, 400),
        (CHAT, {"model": "small"}, 400),
        (CHAT, {"model": "small", "messages": []}, 400),
        (CHAT, {"model": "small", "messages": "hi"}, 400),
        (CHAT, chat("hi", stream="yes"), 400),
        (CHAT, chat("hi", kv_transfer_params={}), 400),
        (CHAT, chat("hi", max_tokens=-1), 400),
        (CHAT, {**chat("hi"), "model": "gpt-4"}, 404),
        ("/v1/completions", {"model": "small"}, 400),
        ("/v1/unheard-of", {"model": "small"}, 404),
        ("/v1/embeddings", {"model": "gpt-4"}, 404),
        ("/nothing", {}, 404),
        ("/v1/models", {}, 405),
        ("/admin/state", {}, 403),
        (CHAT, chat("x" * 5_000_000), 413),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_s20_every_error_has_the_one_shape(stack: Stack, path: str, body: dict[str, Any], status: int) -> None:
    """S20."""
    answer = await ask(stack.url, path, body)
    assert (answer.status, answer.header("content-type")) == (status, "application/json")
    assert is_envelope(answer.json)


async def test_s21_refused_connections_dead_tiers_and_silence_have_their_own_status(engine: ScriptedEngine) -> None:
    """S21: 502 for a refused connection, 503 with Retry-After when no replica is up, 504 on timeout."""
    limits = {"connect": "1s", "first_token": "200ms", "idle": "200ms"}
    async with gateway(tiers(engine, timeout=limits)) as stack:
        silent = await ask(stack.url, CHAT, chat("silent", script={"hang": True}))
        assert (silent.status, silent.json["error"]["type"]) == (504, "upstream_error")
        stuck = await ask(stack.url, CHAT, stream("stuck", script={"cut_after_tokens": 2, "cut": "stall"}))
        assert is_envelope(stuck.events[-1])
        await engine.stop_listening()
        engine.drop_connections()
        refused = await ask(stack.url, CHAT, chat("refused"))
        assert (refused.status, refused.json["error"]["code"]) == (502, "upstream_connect_error")
        replica = stack.process.services.tiers["small"].replicas.all[0]
        await until(lambda: replica.health == "down", within=10)
        down = await ask(stack.url, CHAT, chat("down"))
        assert (down.status, down.header("x-forebay-reason")) == (503, "no_replica")
        assert int(down.header("retry-after") or 0) >= 1
        assert (await stack.client.get("/ready")).status_code == 503
        assert (await stack.client.get("/health")).status_code == 200
        await engine.listen()
        await until(lambda: replica.health == "up", within=10)
        assert (await ask(stack.url, CHAT, chat("back"))).status == 200


@pytest.mark.parametrize(
    ("limits", "sent", "tokens"),
    [
        ({"max_completion_tokens": 3}, {"max_completion_tokens": 3}, 3),
        ({"max_completion_tokens": 3, "max_tokens": 9}, {"max_completion_tokens": 3}, 3),
        ({"max_tokens": 4}, {"max_tokens": 4}, 4),
    ],
)
async def test_s22_max_completion_tokens_wins_and_only_it_is_sent(
    stack: Stack, engine: ScriptedEngine, limits: dict[str, int], sent: dict[str, int], tokens: int
) -> None:
    """S22."""
    answer = await ask(stack.url, CHAT, chat("hi", **limits))
    seen = engine.requests[-1].json
    assert {name: seen[name] for name in ("max_tokens", "max_completion_tokens") if name in seen} == sent
    assert answer.json["usage"]["completion_tokens"] == tokens


async def test_a_client_that_reads_slowly_holds_the_engine_back(stack: Stack, engine: ScriptedEngine) -> None:
    """Back-pressure: what the client does not read is not piled up in the gateway."""
    # 100 MB of events; the sockets between client and engine hold a few of them.
    engine.next.append(Script(text=("x" * 10_000 + " ") * 10_000))
    client = await RawClient.post(stack.url, CHAT, stream("slow"))
    await engine.until(lambda: engine.blocked == 1, within=20)
    assert 0 < engine.requests[-1].tokens < 5_000
    await client.leave()
    await engine.until(lambda: engine.requests[-1].state == "aborted")
    await stack.idle()


async def test_tool_calls_reasoning_and_logprobs_are_the_engines(stack: Stack, engine: ScriptedEngine) -> None:
    """S4's kind, through the official client: what is said is what the engine said."""
    engine.defaults = Script(reasoning="Let me see.", tool_calls=(ToolCall(name="f", arguments='{"a": "é"}'),))
    direct = await ask(engine.url, CHAT, {**stream("t", logprobs=True), "model": SMALL}, x_request_id="r")
    through = await ask(stack.url, CHAT, stream("t", logprobs=True), x_request_id="r")
    assert through.events == direct.events
    assert text_of(through.events) == ""
