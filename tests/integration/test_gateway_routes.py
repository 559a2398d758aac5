"""Keys on every route, what passes through, health, metrics, and the process itself."""

import asyncio
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from bench.engine import Script, ScriptedEngine
from tests.integration.stack import FRONTIER, SMALL, RawClient, Stack, chat, gateway, tiers, until

CHAT = "/v1/chat/completions"
# sha256 of "k"
KEY = {"name": "k", "tenant": "t", "sha256": "8254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a"}


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(SMALL) as running:
        yield running


@pytest_asyncio.fixture
async def stack(engine: ScriptedEngine) -> AsyncIterator[Stack]:
    async with gateway(tiers(engine)) as running:
        yield running


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", CHAT),
        ("POST", "/v1/completions"),
        ("POST", "/v1/embeddings"),
        ("POST", "/v1/audio/transcriptions"),
        ("POST", "/v1/explain"),
        ("GET", "/v1/models"),
        ("GET", "/admin/state"),
    ],
)
async def test_one_key_check_for_every_route(engine: ScriptedEngine, method: str, path: str) -> None:
    async with gateway({**tiers(engine), "auth": {"keys": [KEY]}}) as stack:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic k"}):
            answer = await stack.client.request(method, path, json={"model": "small"}, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.headers["x-request-id"]
        answer = await stack.client.request(
            method, path, json={"model": "small"}, headers={"authorization": "bearer k"}
        )
        assert answer.status_code != 401
        assert all("authorization" not in request.headers for request in engine.requests)
        for open_path in ("/health", "/ready", "/metrics", "/openapi.json"):
            assert (await stack.client.get(open_path)).status_code == 200


async def test_other_routes_of_the_engine_pass_through_uncached(stack: Stack, engine: ScriptedEngine) -> None:
    for _ in range(2):
        answer = await stack.client.post("/v1/embeddings?x=1", json={"model": "small", "input": ["a", "b"]})
        assert (answer.headers["x-forebay-cache"], answer.headers["x-forebay-tier"]) == ("bypass", "small")
        assert len(answer.json()["data"]) == 2
    assert len(engine.requests) == 2
    assert engine.requests[0].json["model"] == SMALL
    assert engine.requests[0].incoming.target == "/v1/embeddings?x=1"
    assert await stack.metric("forebay_requests_total", route="/v1/{path}", status="200") == 2


async def test_a_streamed_response_passes_byte_for_byte(stack: Stack, engine: ScriptedEngine) -> None:
    body = {"model": SMALL, "input": "hi", "stream": True}
    async with httpx.AsyncClient() as direct:
        plain = await direct.post(f"{engine.url}/v1/responses", json=body)
    engine.next.append(Script(pieces=(5,)))
    through = await stack.client.post("/v1/responses", json=body)
    assert through.content == plain.content
    assert through.headers["x-accel-buffering"] == "no"


async def test_a_multipart_form_passes_with_the_engines_model_name(stack: Stack, engine: ScriptedEngine) -> None:
    sound = bytes(range(256)) * 40
    # The scripted engine reads JSON only and refuses this; what it was sent is what counts.
    await stack.client.post(
        "/v1/audio/transcriptions",
        files={"file": ("a.wav", sound, "audio/wav")},
        data={"model": "small", "language": "de"},
    )
    seen = engine.requests[-1]
    assert sound in seen.body
    assert b'name="model"\r\n\r\nsmall-model\r\n' in seen.body
    assert seen.headers["content-type"].startswith("multipart/form-data; boundary=")
    assert int(seen.headers["content-length"]) == len(seen.body)


async def test_a_broken_pass_through_is_an_aborted_connection(stack: Stack, engine: ScriptedEngine) -> None:
    engine.next.append(Script(cut_after_bytes=20, body=b"x" * 100, framing="chunked", pieces=(10,), piece_delay=0.02))
    with pytest.raises(httpx.RemoteProtocolError):
        await stack.client.post("/v1/embeddings", json={"model": "small", "input": "x"})
    await stack.idle()


async def test_a_pass_through_client_that_leaves_ends_the_engines_work(stack: Stack, engine: ScriptedEngine) -> None:
    engine.next.append(Script(hang=True))
    client = await RawClient.post(stack.url, "/v1/embeddings", {"model": "small", "input": "x"}, x_request_id="gone")
    await engine.until(lambda: engine.slots.running == 1)
    await client.leave()
    await engine.until(lambda: engine.requests[-1].state == "aborted")
    assert (await stack.line("gone"))["status"] == 499
    await stack.idle()


async def test_a_fault_of_ours_is_a_500_in_the_envelope_and_nothing_is_held(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> object:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(stack.process.services.tiers["small"].replicas, "open", broken)
    answer = await stack.client.post(CHAT, json=chat("x"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "secret detail" not in answer.text
    await stack.idle()


async def test_paths_that_leave_v1_or_change_the_engine_do_not_pass(stack: Stack, engine: ScriptedEngine) -> None:
    for path in (
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter/",
        "/v1/%2e%2e/metrics",
        "/v1/x/%2e%2e/%2e%2e/sleep",
    ):
        answer = await stack.client.post(path, json={"model": "small"})
        assert answer.status_code == 404
    assert not engine.requests


async def test_with_two_tiers_a_foreign_route_needs_a_name(engine: ScriptedEngine) -> None:
    async with ScriptedEngine(FRONTIER) as big, gateway(tiers(engine, frontier=big)) as stack:
        for body, status in (
            ({"model": "auto", "input": "x"}, 400),
            ({"input": "x"}, 400),
            ({"model": "nobody", "input": "x"}, 404),
            ({"model": "frontier", "input": "x"}, 200),
        ):
            assert (await stack.client.post("/v1/embeddings", json=body)).status_code == status
        assert len(big.requests) == 1


async def test_ready_follows_the_tiers_and_a_server_of_another_model_gets_nothing(engine: ScriptedEngine) -> None:
    async with (
        ScriptedEngine("other-model") as other,
        ScriptedEngine(SMALL) as spare,
        gateway(tiers(engine, other, spare)) as stack,
    ):
        replicas = {replica.url: replica for replica in stack.process.services.tiers["small"].replicas.all}
        await until(lambda: replicas[other.url].health == "down" and replicas[spare.url].health == "up")
        ready = await stack.client.get("/ready")
        assert ready.status_code == 200
        assert any("other-model" in part for part in ready.json()["degraded"])
        for number in range(6):
            await stack.client.post(CHAT, json=chat(f"x {number}"))
        assert not other.requests


async def test_metrics_have_a_port_of_their_own_where_configured(engine: ScriptedEngine) -> None:
    port = free_port()
    async with gateway({"gateway": {"metrics_port": port}, **tiers(engine)}) as stack:
        assert (await stack.client.get("/metrics")).status_code == 404
        text = (await stack.client.get(f"http://127.0.0.1:{port}/metrics")).text
        assert "forebay_inflight" in text


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


# The process


async def test_a_stop_is_unready_at_once_refuses_and_lets_streams_finish(engine: ScriptedEngine) -> None:
    async with gateway(tiers(engine)) as stack:
        engine.next.append(Script(tokens=10, itl=0.05))
        running = asyncio.create_task(stack.client.post(CHAT, json=chat("slow", stream=True)))
        await engine.until(lambda: engine.slots.running == 1)
        stack.process.stop()
        assert (await stack.client.get("/ready")).status_code == 503
        refused = await stack.client.post(CHAT, json=chat("late"))
        assert (refused.status_code, refused.headers["x-forebay-reason"]) == (503, "draining")
        assert refused.headers["retry-after"]
        answer = await running
        assert answer.text.endswith("data: [DONE]\n\n")
        await until(lambda: stack.process.server.should_exit)


async def test_a_stop_waits_no_longer_than_the_drain_limit(engine: ScriptedEngine) -> None:
    async with gateway({"gateway": {"drain": "50ms"}, **tiers(engine)}) as stack:
        engine.next.append(Script(hang=True))
        client = await RawClient.post(stack.url, CHAT, chat("stuck", stream=True))
        await engine.until(lambda: engine.slots.running == 1)
        stack.process.stop()
        await engine.until(lambda: engine.requests[-1].state == "aborted")
        await client.leave()
        await stack.idle()


async def test_settings_that_numbers_are_judged_by_are_among_the_metrics(engine: ScriptedEngine) -> None:
    settings = {"queue": {"max_inflight": 7, "max_waiting": 3}, "price": {"input": 0.5, "output": 2}}
    async with gateway({**tiers(engine, **settings), "router": {"threshold": 0.25}}, semantic=True) as stack:
        assert await stack.metric("forebay_inflight_limit", tier="small") == 7
        assert await stack.metric("forebay_queue_limit", tier="small") == 3
        assert await stack.metric("forebay_replicas_up", tier="small") == 1
        assert await stack.metric("forebay_token_price", tier="small", kind="output") == 2
        assert await stack.metric("forebay_router_threshold") == 0.25
        assert await stack.metric("forebay_cache_threshold") == 0.9
