"""Streaming and proxying as clients see it: bytes, errors, timeouts, and leaving early."""

import time
from collections.abc import AsyncIterator

import httpx
import orjson
import pytest
import pytest_asyncio

from bench.engine import Script, ScriptedEngine
from tests.integration.stack import SMALL, RawClient, Stack, chat, gateway, tiers, until

CHAT = "/v1/chat/completions"
FOREVER = Script(tokens=10_000, itl=0.2)


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(SMALL) as running:
        yield running


@pytest_asyncio.fixture
async def stack(engine: ScriptedEngine) -> AsyncIterator[Stack]:
    async with gateway(tiers(engine)) as running:
        yield running


def events(text: str) -> list[str]:
    """The data of each event."""
    return [part.removeprefix("data: ") for part in text.split("\n\n") if part.startswith("data: ")]


def is_envelope(body: object) -> bool:
    return isinstance(body, dict) and set(body["error"]) == {"message", "type", "param", "code"}


# The client leaves: S1, S2, S3


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
async def test_a_client_that_leaves_ends_the_engines_work_within_a_second(
    stack: Stack, engine: ScriptedEngine, stream: bool
) -> None:
    engine.next.append(FOREVER)
    client = await RawClient.post(stack.url, CHAT, chat("hello", stream=stream), x_request_id="leaver")
    if stream:
        await client.reader.readuntil(b"data: ")
    await engine.until(lambda: bool(engine.requests) and engine.requests[-1].state == "running")
    left = time.monotonic()
    await client.leave()
    await engine.until(lambda: engine.requests[-1].state == "aborted")
    assert time.monotonic() - left < 1
    assert (await stack.line("leaver"))["status"] == 499
    await stack.idle()
    assert await stack.metric("forebay_requests_total", status="499") == 1
    assert await stack.metric("forebay_inflight", tier="small") == 0


async def test_a_hundred_cancelled_streams_leave_nothing_behind(stack: Stack, engine: ScriptedEngine) -> None:
    engine.defaults = FOREVER
    clients = [await RawClient.post(stack.url, CHAT, chat(f"hello {n}", stream=True)) for n in range(100)]
    await engine.until(lambda: engine.slots.running == 100)
    for client in clients:
        await client.leave()
    await engine.until(lambda: engine.slots.running == 0)
    await stack.idle()


async def test_a_client_that_leaves_the_queue_gives_up_its_place(engine: ScriptedEngine) -> None:
    engine.defaults = FOREVER
    queue = {"max_inflight": 1, "max_waiting": 1, "max_wait": "20s"}
    async with gateway(tiers(engine, queue=queue)) as stack:
        first = await RawClient.post(stack.url, CHAT, chat("one", stream=True))
        await engine.until(lambda: engine.slots.running == 1)
        second = await RawClient.post(stack.url, CHAT, chat("two", stream=True))
        admission = stack.process.services.tiers["small"].admission
        await until(lambda: admission.waiting == 1)
        await second.leave()
        await until(lambda: admission.waiting == 0)
        await first.leave()
        await stack.idle()
        assert len(engine.requests) == 1


# What the client gets is what the engine sent (S4)


@pytest.mark.parametrize("pieces", [(1,), (3,), (7, 1), (1000,)], ids=str)
async def test_bytes_in_are_bytes_out_whatever_the_chunk_boundaries(
    stack: Stack, engine: ScriptedEngine, pieces: tuple[int, ...]
) -> None:
    request = chat("naïve €", stream=True, stream_options={"include_usage": True})
    async with httpx.AsyncClient() as direct:
        plain = await direct.post(engine.url + CHAT, json={**request, "model": SMALL}, headers={"x-request-id": "a"})
    engine.next.append(Script(pieces=pieces))
    through = await stack.client.post(CHAT, json=request, headers={"x-request-id": "a", "x-forebay-cache": "off"})
    assert through.content == plain.content


# Usage chunks (S6)


async def test_the_usage_chunk_reaches_only_the_client_that_asked(stack: Stack, engine: ScriptedEngine) -> None:
    for options, wanted in ((None, 0), ({"include_usage": False}, 0), ({"include_usage": True}, 1)):
        request = chat(f"usage {options}", stream=True)
        if options is not None:
            request["stream_options"] = options
        answer = await stack.client.post(CHAT, json=request, headers={"x-request-id": f"u{wanted}"})
        chunks = [orjson.loads(data) for data in events(answer.text)[:-1]]
        assert sum(chunk["choices"] == [] for chunk in chunks) == wanted
        assert sum("usage" in chunk for chunk in chunks) == wanted
        assert engine.requests[-1].json["stream_options"]["include_usage"] is True
        assert events(answer.text)[-1] == "[DONE]"
    assert await stack.metric("forebay_tokens_total", tier="small", kind="output") > 0
    assert (await stack.line("u1"))["output_tokens"] > 0


async def test_running_usage_is_asked_for_only_by_the_client(stack: Stack, engine: ScriptedEngine) -> None:
    options = {"include_usage": False, "continuous_usage_stats": True}
    await stack.client.post(CHAT, json=chat("a", stream=True, stream_options=options))
    assert engine.requests[-1].json["stream_options"] == {"include_usage": True}


# Comments that keep a connection alive (S8)


async def test_pings_fill_the_wait_for_the_first_token_only_where_configured(engine: ScriptedEngine) -> None:
    async with gateway({"gateway": {"sse_ping": "20ms"}, **tiers(engine)}) as stack:
        engine.next.append(Script(ttft=0.2))
        answer = await stack.client.post(CHAT, json=chat("slow", stream=True))
        assert answer.text.startswith(": ping\n\n")
        assert answer.text.endswith("data: [DONE]\n\n")
        first = answer.text.index("data: ")
        assert ": ping" not in answer.text[first:]
        engine.next.append(Script(ttft=0.2, status=503))
        answer = await stack.client.post(CHAT, json=chat("broken", stream=True))
        assert answer.status_code == 200
        assert orjson.loads(events(answer.text)[-1])["error"]["code"] == 503


async def test_there_are_no_pings_by_default(stack: Stack, engine: ScriptedEngine) -> None:
    engine.next.append(Script(ttft=0.2))
    assert ": ping" not in (await stack.client.post(CHAT, json=chat("slow", stream=True))).text


# Errors: S9, S10, S11, S20


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 503])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
async def test_an_error_before_the_first_content_keeps_its_status(
    stack: Stack, engine: ScriptedEngine, status: int, stream: bool
) -> None:
    engine.next.append(Script(status=status, headers={"retry-after": "7"}))
    answer = await stack.client.post(CHAT, json=chat("bad", stream=stream))
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["retry-after"] == "7"
    assert is_envelope(answer.json())
    assert (await stack.client.post(CHAT, json=chat("bad", stream=stream))).headers["x-forebay-cache"] == "miss"


async def test_an_error_as_the_first_event_becomes_a_status_and_is_not_stored(
    stack: Stack, engine: ScriptedEngine
) -> None:
    fault = {"error": {"message": "busy", "type": "ServiceUnavailable", "param": None, "code": 503}}
    engine.next.append(Script(error_event_after=0, error=fault))
    answer = await stack.client.post(CHAT, json=chat("bad", stream=True))
    assert (answer.status_code, answer.json()) == (503, fault)
    again = await stack.client.post(CHAT, json=chat("bad", stream=True))
    assert (again.status_code, again.headers["x-forebay-cache"]) == (200, "miss")


async def test_an_error_object_in_a_200_becomes_a_status(stack: Stack, engine: ScriptedEngine) -> None:
    engine.next.append(
        Script(body=b'{"object":"error","message":"no","type":"BadRequestError","param":null,"code":400}')
    )
    answer = await stack.client.post(CHAT, json=chat("bad"))
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "no"


@pytest.mark.parametrize("cut", ["close", "reset"])
async def test_an_engine_that_dies_after_content_ends_the_stream_with_one_error_event(
    stack: Stack, engine: ScriptedEngine, cut: str
) -> None:
    engine.next.append(Script(tokens=50, cut_after_tokens=20, cut=cut))  # type: ignore[arg-type]  # parametrized
    answer = await stack.client.post(CHAT, json=chat("long", stream=True), headers={"x-request-id": "cut"})
    found = [orjson.loads(data) for data in events(answer.text)]
    assert is_envelope(found[-1])
    assert all("error" not in chunk for chunk in found[:-1])
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in found[:-1])
    assert "[DONE]" not in answer.text
    assert len(engine.requests) == 1
    assert (await stack.line("cut"))["status"] == 502
    assert await stack.metric("forebay_cache_writes_skipped_total", reason="incomplete_stream") == 1
    assert (await stack.client.post(CHAT, json=chat("long"))).headers["x-forebay-cache"] == "miss"


async def test_a_stream_cut_inside_a_character_still_ends_in_a_readable_error(
    stack: Stack, engine: ScriptedEngine
) -> None:
    text = "word " * 30 + "🦫🦫🦫🦫"
    engine.next.append(Script(text=text))
    whole = (await stack.client.post(CHAT, json=chat("x", stream=True), headers={"x-forebay-cache": "off"})).content
    engine.next.append(Script(text=text, cut_after_bytes=whole.index("🦫".encode()) + 2))
    answer = await stack.client.post(CHAT, json=chat("x", stream=True), headers={"x-forebay-cache": "off"})
    assert is_envelope([orjson.loads(data) for data in events(answer.text)][-1])


async def test_an_error_event_after_content_is_passed_on_and_ends_the_stream(
    stack: Stack, engine: ScriptedEngine
) -> None:
    engine.next.append(Script(tokens=9, error_event_after=3, itl=0.02))
    answer = await stack.client.post(CHAT, json=chat("x", stream=True))
    found = events(answer.text)
    assert is_envelope(orjson.loads(found[-1]))
    assert sum("error" in data for data in found) == 1
    assert (await stack.client.post(CHAT, json=chat("x"))).headers["x-forebay-cache"] == "miss"


async def test_a_stream_that_ends_early_without_a_finish_reason_is_an_error(
    stack: Stack, engine: ScriptedEngine
) -> None:
    engine.next.append(Script(end="no_finish"))
    answer = await stack.client.post(CHAT, json=chat("x", stream=True))
    assert is_envelope(orjson.loads(events(answer.text)[-1]))


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nothing", None, 404),
        ("GET", CHAT, None, 405),
        ("POST", "/health", None, 405),
        ("POST", CHAT, b"{", 400),
        ("POST", CHAT, b"[]", 400),
        ("POST", CHAT, b'{"model": "small", "messages": []}', 400),
        ("POST", CHAT, b'{"model": "small", "messages": [{"role": "user"}], "kv_transfer_params": {}}', 400),
        ("POST", CHAT, b'{"model": "no", "messages": [{"role": "user", "content": "x"}]}', 404),
        ("POST", "/v1/unheard-of", b'{"model": "no"}', 404),
        ("GET", "/admin/state", None, 403),
        ("POST", CHAT, b'{"x": "' + b"y" * 5_000_000 + b'"}', 413),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_every_error_has_the_envelope(
    stack: Stack, method: str, path: str, body: bytes | None, status: int
) -> None:
    answer = await stack.client.request(method, path, content=body)
    assert answer.status_code == status
    assert is_envelope(answer.json())


# Headers: S13, S16


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_length_and_encoding_are_recomputed(stack: Stack, engine: ScriptedEngine, framing: str) -> None:
    script = Script(gzip=True, framing=framing, headers={"connection": "keep-alive", "x-engine": "yes"})  # type: ignore[arg-type]  # parametrized
    for stream in (False, True):
        engine.next.append(script)
        answer = await stack.client.post(CHAT, json=chat(f"gz {stream}", stream=stream))
        assert answer.status_code == 200
        assert "content-encoding" not in answer.headers
        assert ("content-length" in answer.headers) != ("transfer-encoding" in answer.headers)
        assert answer.headers["x-engine"] == "yes"
        assert "Answer" in answer.text


async def test_streams_ask_proxies_not_to_buffer(stack: Stack) -> None:
    for _ in ("miss", "hit"):
        answer = await stack.client.post(CHAT, json=chat("x", stream=True))
        assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-cache", "no")
        assert answer.headers["content-type"].startswith("text/event-stream")
