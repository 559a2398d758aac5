"""The queue of a tier over real sockets: priorities, tenants, and tiers that sleep."""

import asyncio
import hashlib
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


def keyed(*rows: dict[str, Any]) -> dict[str, Any]:
    """The `auth` section for these keys; a key is its name."""
    keys = [{"tenant": row["name"], **row, "sha256": hashlib.sha256(row["name"].encode()).hexdigest()} for row in rows]
    return {"auth": {"keys": keys}}


async def test_the_queue_is_served_by_priority_and_a_keys_is_its_highest(engine: ScriptedEngine) -> None:
    """Two tenants and the header; what a key may not have is lowered, what is no priority is a 400."""
    document = keyed({"name": "vip", "priority": "high"}, {"name": "joe"})
    queue = {"max_inflight": 1, "max_waiting": 10}
    async with gateway({**tiers(engine, queue=queue), **document}) as stack:
        admission = stack.process.services.tiers["small"].admission
        engine.next.append(Script(ttft=0.3))
        asked = [("joe", None, "first"), ("joe", "low", "d"), ("joe", "high", "c"), ("vip", "normal", "b")]
        tasks = []
        for place, (key, priority, text) in enumerate([*asked, ("vip", None, "a")]):
            headers = {"authorization": f"Bearer {key}"} | ({"x_forebay_priority": priority} if priority else {})
            tasks.append(asyncio.create_task(post(stack, chat(text), **headers)))
            await until(lambda place=place: admission.waiting == place and admission.inflight == 1)
        assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}
        order = [seen.json["messages"][0]["content"] for seen in engine.requests]
        # joe's high is lowered to normal, in the same band as vip's normal, which came later from a tenant ahead of it.
        assert (order[0], order[1], order[4]) == ("first", "a", "d")
        assert await stack.metric("forebay_queue_wait_seconds_count", tier="small", priority="high") == 1
        bad = await post(stack, chat("x"), authorization="Bearer joe", x_forebay_priority="urgent")
        assert (bad.status, bad.json["error"]["param"]) == (400, "x-forebay-priority")
        await stack.idle()


async def test_a_heavy_tenant_does_not_starve_a_light_one(engine: ScriptedEngine) -> None:
    queue = {"max_inflight": 1, "max_waiting": 8}
    engine.defaults = Script(ttft=0.02)
    async with gateway({**tiers(engine, queue=queue), **keyed({"name": "heavy"}, {"name": "light"})}) as stack:
        admission = stack.process.services.tiers["small"].admission
        flood = [
            asyncio.create_task(post(stack, chat(f"h {number}"), authorization="Bearer heavy")) for number in range(30)
        ]
        await until(lambda: admission.waiting == 8)
        answers = [await post(stack, chat(f"l {number}"), authorization="Bearer light") for number in range(3)]
        assert {answer.status for answer in answers} == {200}
        refused = [answer for answer in await asyncio.gather(*flood) if answer.status != 200]
        assert {answer.header("x-forebay-reason") for answer in refused} == {"queue_full"}
        light = [seen.number for seen in engine.requests if seen.json["messages"][0]["content"].startswith("l")]
        assert light[0] <= 4
        await stack.idle()


async def test_a_tier_that_scales_from_zero_lets_its_requests_wait(engine: ScriptedEngine) -> None:
    await engine.stop_listening()
    settings = {"replicas": {"min": 0, "max": 1}, "queue": {"max_wait": "10s"}}
    async with gateway(tiers(engine, **settings), probed=False) as stack:
        gate = stack.process.services.tiers["small"]
        await until(lambda: gate.replicas.all[0].health == "down")
        waiting = [asyncio.create_task(post(stack, chat(f"q {number}"))) for number in range(3)]
        await until(lambda: gate.admission.waiting == 3)
        assert await stack.metric("forebay_queue_depth", tier="small") == 3
        await engine.listen()
        assert {answer.status for answer in await asyncio.gather(*waiting)} == {200}
        await stack.idle()


async def test_the_waiting_room_of_a_tier_that_does_not_come_up_is_left(engine: ScriptedEngine) -> None:
    await engine.stop_listening()
    settings = {"replicas": {"min": 0, "max": 1}, "queue": {"max_wait": "100ms"}}
    async with gateway(tiers(engine, **settings), probed=False) as stack:
        replicas = stack.process.services.tiers["small"].replicas
        await until(lambda: replicas.all[0].health == "down")
        answer = await post(stack, chat("q"))
        assert (answer.status, answer.header("x-forebay-reason")) == (503, "no_replica")
        assert int(answer.header("retry-after") or 0) >= 1
        await stack.idle()
