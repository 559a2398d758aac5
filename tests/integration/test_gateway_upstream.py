"""Servers that do not answer or break, several of them, and what they are sent."""

from collections.abc import AsyncIterator

import orjson
import pytest
import pytest_asyncio

from bench.engine import Script, ScriptedEngine
from tests.integration.stack import FRONTIER, SMALL, RawClient, Stack, chat, gateway, tiers, until

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


# Servers that do not answer: S21, R12, R14


async def test_a_refused_connection_is_a_502_and_a_tier_known_to_be_down_a_503(engine: ScriptedEngine) -> None:
    await engine.stop_listening()
    async with gateway(tiers(engine), probed=False) as stack:
        answer = await stack.client.post(CHAT, json=chat("x"))
        assert answer.status_code in (502, 503)
        replica = stack.process.services.tiers["small"].replicas.all[0]
        await until(lambda: replica.health == "down")
        answer = await stack.client.post(CHAT, json=chat("x"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_replica")
        assert answer.headers["retry-after"]
        assert answer.headers["x-forebay-reason"] == "no_replica"
        assert (await stack.client.get("/ready")).status_code == 503
        assert (await stack.client.get("/health")).status_code == 200


async def test_a_server_that_stops_listening_is_a_502(stack: Stack, engine: ScriptedEngine) -> None:
    await engine.stop_listening()
    engine.drop_connections()
    answer = await stack.client.post(CHAT, json=chat("x"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_connect_error")
    assert await stack.metric("forebay_upstream_errors_total", tier="small", kind="connect") >= 1


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
async def test_an_engine_that_never_answers_is_a_504(engine: ScriptedEngine, stream: bool) -> None:
    timeout = {"first_token": "100ms"}
    async with gateway(tiers(engine, timeout=timeout)) as stack:
        engine.next.append(Script(hang=True))
        answer = await stack.client.post(CHAT, json=chat("x", stream=stream))
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_timeout")
        await engine.until(lambda: engine.requests[-1].state == "aborted")
        await stack.idle()


async def test_an_engine_that_stalls_in_a_stream_is_cut_after_idle(engine: ScriptedEngine) -> None:
    async with gateway(tiers(engine, timeout={"idle": "100ms"})) as stack:
        engine.next.append(Script(tokens=20, cut_after_tokens=5, cut="stall"))
        answer = await stack.client.post(CHAT, json=chat("x", stream=True), headers={"x-request-id": "idle"})
        assert "timeout.idle" in orjson.loads(answer.text.rsplit("data: ", 1)[1])["error"]["message"]
        assert (await stack.line("idle"))["status"] == 504
        await stack.idle()


@pytest.mark.parametrize(
    "fault",
    [
        Script(status=429),
        Script(status=503),
        Script(error_event_after=0, error={"error": {"message": "m", "code": 503}}),
    ],
    ids=["429", "503", "event"],
)
async def test_another_replica_is_tried_when_one_is_full_or_broken(fault: Script) -> None:
    async with ScriptedEngine(SMALL) as one, ScriptedEngine(SMALL) as two, gateway(tiers(one, two)) as stack:
        one.defaults = fault
        for number in range(4):
            answer = await stack.client.post(CHAT, json=chat(f"x {number}", stream=True))
            assert answer.status_code == 200
        assert await stack.metric("forebay_retries_total", tier="small") >= 1
        assert len(two.requests) == 4


async def test_a_request_is_retried_when_its_server_dies_before_answering() -> None:
    async with ScriptedEngine(SMALL) as one, ScriptedEngine(SMALL) as two, gateway(tiers(one, two)) as stack:
        one.defaults = Script(cut_after_bytes=0, cut="reset")
        for number in range(4):
            assert (await stack.client.post(CHAT, json=chat(f"x {number}"))).status_code == 200
        await one.stop_listening()
        one.drop_connections()
        for number in range(4):
            assert (await stack.client.post(CHAT, json=chat(f"y {number}"))).status_code == 200
        await stack.idle()


async def test_requests_go_to_the_replica_with_the_fewest_calls() -> None:
    async with ScriptedEngine(SMALL) as one, ScriptedEngine(SMALL) as two, gateway(tiers(one, two)) as stack:
        one.defaults = two.defaults = FOREVER
        clients = [await RawClient.post(stack.url, CHAT, chat(f"x {n}", stream=True)) for n in range(10)]
        await until(lambda: one.slots.running + two.slots.running == 10)
        assert one.slots.running == two.slots.running == 5
        for client in clients:
            await client.leave()
        await stack.idle()


# What the engine is sent: S22, R17, R20


async def test_max_completion_tokens_wins_and_only_it_is_sent(stack: Stack, engine: ScriptedEngine) -> None:
    await stack.client.post(CHAT, json=chat("x", max_tokens=5, max_completion_tokens=3))
    body = engine.requests[-1].json
    assert body["max_completion_tokens"] == 3
    assert "max_tokens" not in body


async def test_the_tiers_key_is_sent_and_the_clients_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIER_KEY", "tier-secret")
    async with ScriptedEngine(SMALL, api_key="tier-secret") as engine:
        document = tiers(engine, api_key="${TIER_KEY}")
        async with gateway(document) as stack:
            headers = {
                "authorization": "Bearer client-secret",
                "cookie": "a=b",
                "x-api-key": "k",
                "traceparent": "00-1",
            }
            for path, body in ((CHAT, chat("x")), ("/v1/embeddings", {"model": "small", "input": "x"})):
                answer = await stack.client.post(path, json=body, headers={**headers, "x-request-id": "trace-1"})
                assert answer.status_code == 200
                seen = engine.requests[-1].headers
                assert seen["authorization"] == "Bearer tier-secret"
                assert (seen["x-request-id"], seen["traceparent"]) == ("trace-1", "00-1")
                assert not {"cookie", "x-api-key"} & set(seen)
            assert "secret" not in bytes(stack.log).decode()


async def test_a_tier_that_refuses_its_key_is_not_the_clients_fault(engine: ScriptedEngine, stack: Stack) -> None:
    engine.next.append(Script(status=401))
    answer = await stack.client.post(CHAT, json=chat("x"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_auth")


async def test_the_turns_of_a_conversation_reach_a_tier_of_several_replicas_as_one_session() -> None:
    turns = [{"role": "user", "content": "What is 2 + 2?"}]
    seen = []
    async with ScriptedEngine(SMALL) as engine, gateway(tiers(engine, replicas={"max": 2})) as stack:
        for _ in range(2):
            # What a client names a session is not passed on.
            body = {**chat("x"), "messages": turns}
            answer = await stack.client.post(CHAT, json=body, headers={"x-session-id": "mine"})
            seen.append(engine.requests[-1].headers["x-session-id"])
            turns = [*turns, answer.json()["choices"][0]["message"], {"role": "user", "content": "And 3 + 3?"}]
        assert seen[0] == seen[1] != "mine"
        await stack.client.post(CHAT, json=chat("something else"))
        assert engine.requests[-1].headers["x-session-id"] != seen[0]


async def test_a_tier_of_one_replica_is_told_no_session(stack: Stack, engine: ScriptedEngine) -> None:
    await stack.client.post(CHAT, json=chat("x"))
    assert "x-session-id" not in engine.requests[-1].headers


async def test_a_sane_request_id_is_kept_and_another_replaced(stack: Stack) -> None:
    for given, kept in (("abc-1.2:3", True), ("a b", False), ("x" * 129, False)):
        answer = await stack.client.post(CHAT, json=chat("x"), headers={"x-request-id": given})
        assert (answer.headers["x-request-id"] == given) is kept


async def test_auto_is_decided_by_the_classifier_with_its_evidence() -> None:
    async with (
        ScriptedEngine(SMALL) as small,
        ScriptedEngine(FRONTIER) as big,
        gateway(tiers(small, frontier=big)) as stack,
    ):
        answer = await stack.client.post(
            CHAT, json={**chat("What is 2 + 2?"), "model": "auto"}, headers={"x-forebay-debug": "1"}
        )
        assert answer.headers["x-forebay-tier"] in ("small", "frontier")
        assert float(answer.headers["x-forebay-complexity"]) >= 0
        assert answer.headers["x-forebay-route-reason"] in ("complexity", "unfamiliar")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("said", "told"), [("remote", "remote"), ("anything", None)])
async def test_where_a_prompt_was_computed_is_told_to_those_who_ask(
    engine: ScriptedEngine, stream: bool, said: str, told: str | None
) -> None:
    engine.defaults = Script(headers={"x-forebay-prefill": said})
    async with gateway(tiers(engine)) as stack:
        plain = await stack.client.post(CHAT, json={**chat("a"), "stream": stream})
        asked = await stack.client.post(CHAT, json={**chat("b"), "stream": stream}, headers={"x-forebay-debug": "1"})
        assert "x-forebay-prefill" not in plain.headers
        assert asked.headers.get("x-forebay-prefill") == told
