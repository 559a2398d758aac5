"""Breakers, retry budget and fallback, over real sockets."""

import asyncio
from typing import Any

import pytest

from bench.engine import Script, ScriptedEngine
from tests.integration.stack import FRONTIER, Stack, chat, gateway, tiers, until
from tests.integration.wire import Answer, ask

CHAT = "/v1/chat/completions"
BROKEN = Script(status=500)


async def post(stack: Stack, body: dict[str, Any], **headers: str) -> Answer:
    return await ask(stack.url, CHAT, body, **headers)


def replica(stack: Stack, engine: ScriptedEngine) -> Any:
    return next(found for found in stack.process.services.tiers["small"].replicas.all if found.url == engine.url)


async def both_up(stack: Stack, *engines: ScriptedEngine) -> None:
    await until(lambda: all(replica(stack, engine).health == "up" for engine in engines))


async def test_a_server_that_breaks_is_passed_over_and_shown(engine: ScriptedEngine, second: ScriptedEngine) -> None:
    engine.defaults = BROKEN
    async with gateway(tiers(engine, second)) as stack:
        await both_up(stack, engine, second)
        while replica(stack, engine).breaker.state == "closed":
            await post(stack, chat(f"q {len(engine.requests)} {len(second.requests)}"))
        assert len(engine.requests) <= 5
        assert await stack.metric("forebay_breaker_state", tier="small", url=engine.url) == 2
        assert await stack.metric("forebay_breaker_state", tier="small", url=second.url) == 0
        asked = len(engine.requests)
        answers = [await post(stack, chat(f"then {number}")) for number in range(6)]
        assert {answer.status for answer in answers} == {200}
        assert len(engine.requests) == asked
        assert await stack.metric("forebay_upstream_errors_total", tier="small", kind="status_500") == asked


async def test_the_last_replica_is_never_taken_out(engine: ScriptedEngine) -> None:
    engine.defaults = BROKEN
    async with gateway(tiers(engine)) as stack:
        answers = [await post(stack, chat(f"q {number}")) for number in range(10)]
        assert {answer.status for answer in answers} == {500}
        assert len(engine.requests) == 10
        engine.defaults = Script()
        assert (await post(stack, chat("well again"))).status == 200
        assert replica(stack, engine).breaker.state == "closed"


async def test_all_broken_servers_are_still_asked(engine: ScriptedEngine, second: ScriptedEngine) -> None:
    engine.defaults = second.defaults = BROKEN
    async with gateway(tiers(engine, second)) as stack:
        await both_up(stack, engine, second)
        for number in range(12):
            assert (await post(stack, chat(f"q {number}"))).status == 500
        assert len(engine.requests) + len(second.requests) == 12


@pytest.mark.parametrize("fault", [Script(status=429), Script(status=503, headers={"retry-after": "9"})])
async def test_a_full_server_is_no_broken_one(engine: ScriptedEngine, second: ScriptedEngine, fault: Script) -> None:
    """R12's kind."""
    engine.defaults = fault
    async with gateway(tiers(engine, second)) as stack:
        await both_up(stack, engine, second)
        answers = [await post(stack, chat(f"q {number}")) for number in range(8)]
        assert {answer.status for answer in answers} == {200}
        assert replica(stack, engine).breaker.state == "closed"


async def test_a_server_that_names_a_time_is_left_alone_until_then(
    engine: ScriptedEngine, second: ScriptedEngine
) -> None:
    engine.defaults = Script(status=429, headers={"retry-after": "20"})
    async with gateway(tiers(engine, second)) as stack:
        await both_up(stack, engine, second)
        for number in range(8):
            assert (await post(stack, chat(f"q {number}"))).status == 200
        assert len(engine.requests) == 1


async def test_where_all_are_full_a_short_time_is_waited_for(engine: ScriptedEngine) -> None:
    engine.next.append(Script(status=503, headers={"retry-after": "1"}))
    async with gateway(tiers(engine)) as stack:
        assert (await post(stack, chat("q"))).status == 200
        assert len(engine.requests) == 2
        assert await stack.metric("forebay_retries_total", tier="small") == 1


async def test_first_token_timeouts_open_the_breaker(engine: ScriptedEngine, second: ScriptedEngine) -> None:
    engine.defaults = Script(hang=True)
    async with gateway(tiers(engine, second, timeout={"first_token": "50ms"})) as stack:
        await both_up(stack, engine, second)
        while replica(stack, engine).breaker.state == "closed":
            await post(stack, chat(f"q {len(engine.requests)} {len(second.requests)}"))
        assert {(await post(stack, chat(f"then {number}"))).status for number in range(4)} == {200}
        await stack.idle()


async def test_a_client_that_leaves_is_no_fault_of_the_server(engine: ScriptedEngine) -> None:
    engine.defaults = Script(hang=True)
    async with gateway(tiers(engine)) as stack:
        tasks = [asyncio.create_task(post(stack, chat(f"q {number}"))) for number in range(8)]
        await until(lambda: engine.running == 8)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await stack.idle()
        assert replica(stack, engine).breaker.state == "closed"


async def test_retries_stay_within_their_budget(engine: ScriptedEngine, second: ScriptedEngine) -> None:
    """Every server broken: what is sent is the requests and a bounded share on top."""
    engine.defaults = second.defaults = Script(status=502)
    async with gateway(tiers(engine, second)) as stack:
        await both_up(stack, engine, second)
        for number in range(100):
            assert (await post(stack, chat(f"q {number}"))).status == 502
        sent = len(engine.requests) + len(second.requests)
        assert 100 < sent <= 100 + 10 + 0.2 * 100 + 10


def both(engine: ScriptedEngine, frontier: ScriptedEngine) -> dict[str, Any]:
    document = tiers(engine, frontier=frontier, fallback="frontier")
    document["tiers"]["frontier"]["fallback"] = "small"
    return document


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
async def test_a_tier_without_a_replica_falls_back_to_the_other(
    engine: ScriptedEngine, frontier: ScriptedEngine, stream: bool
) -> None:
    """At the first refused connection, and after the probe has noticed; the answer says who gave it."""
    async with gateway(both(engine, frontier)) as stack:
        await engine.stop_listening()
        engine.drop_connections()
        for number in range(3):
            answer = await post(stack, chat(f"q {number}", stream=stream), x_forebay_debug="1")
            assert answer.status == 200
            named = (answer.header("x-forebay-tier"), answer.header("x-forebay-route-reason"))
            assert named == ("frontier", "fallback")
            await until(lambda: replica(stack, engine).health == "down")
        assert frontier.requests[-1].json["model"] == FRONTIER
        assert await stack.metric("forebay_router_decisions_total", tier="frontier", reason="fallback") == 3
        # The other tier's answer is not kept as this one's.
        await engine.listen()
        await until(lambda: replica(stack, engine).health == "up")
        again = await post(stack, chat("q 0", stream=stream))
        assert (again.header("x-forebay-tier"), again.header("x-forebay-cache")) == ("small", "miss")
        await stack.idle()


async def test_a_tier_falls_back_only_where_that_is_allowed_and_able(
    engine: ScriptedEngine, frontier: ScriptedEngine
) -> None:
    document = both(engine, frontier)
    del document["tiers"]["small"]["fallback"]
    document["tiers"]["small"]["capabilities"] = ["text"]
    async with gateway(document) as stack:
        await until(lambda: stack.process.services.tiers["frontier"].replicas.ready)
        tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        await frontier.stop_listening()
        frontier.drop_connections()
        small = await post(stack, {**chat("q"), "model": "frontier"})
        assert (small.status, small.header("x-forebay-tier")) == (200, "small")
        assert (await post(stack, {**chat("q"), "model": "frontier", "tools": tools})).status in (502, 503)
        await engine.stop_listening()
        engine.drop_connections()
        answer = await post(stack, chat("q"))
        assert answer.status in (502, 503)
        assert answer.header("x-forebay-tier") == "small"


async def test_a_broken_or_full_tier_keeps_its_requests(engine: ScriptedEngine, frontier: ScriptedEngine) -> None:
    async with gateway(both(engine, frontier)) as stack:
        for script in (Script(status=500), Script(status=429), Script(status=400)):
            engine.defaults = script
            assert (await post(stack, chat(f"q {script.status}"))).status == script.status
        assert not frontier.requests
