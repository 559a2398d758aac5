"""Bounded waits and honest refusals, over real sockets."""

from collections.abc import AsyncIterator

import pytest_asyncio

from bench.engine import Script, ScriptedEngine
from tests.integration.stack import SMALL, RawClient, Stack, chat, gateway, tiers, until

CHAT = "/v1/chat/completions"
FOREVER = Script(tokens=10_000, itl=0.2)


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(SMALL) as running:
        yield running


async def occupied(stack: Stack, engine: ScriptedEngine) -> RawClient:
    """A client that holds the only slot."""
    engine.next.append(FOREVER)
    client = await RawClient.post(stack.url, CHAT, chat("hold", stream=True))
    await engine.until(lambda: engine.slots.running == 1)
    return client


async def test_a_full_queue_refuses_at_once(engine: ScriptedEngine) -> None:
    async with gateway(tiers(engine, queue={"max_inflight": 1, "max_waiting": 0})) as stack:
        holder = await occupied(stack, engine)
        answer = await stack.client.post(CHAT, json=chat("x"), headers={"x-request-id": "refused"})
        assert (answer.status_code, answer.headers["x-forebay-reason"]) == (429, "queue_full")
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "queue_full"
        assert answer.headers["x-forebay-tier"] == "small"
        assert await stack.metric("forebay_shed_total", tier="small", reason="queue_full") == 1
        assert await stack.metric("forebay_tenant_shed_total", tenant="default") == 1
        assert (await stack.line("refused"))["reason"] == "queue_full"
        await holder.leave()
        await stack.idle()


async def test_the_longest_wait_and_the_clients_deadline_end_the_waiting(engine: ScriptedEngine) -> None:
    async with gateway(tiers(engine, queue={"max_inflight": 1, "max_waiting": 5, "max_wait": "100ms"})) as stack:
        holder = await occupied(stack, engine)
        late = await stack.client.post(CHAT, json=chat("x"))
        assert (late.status_code, late.headers["x-forebay-reason"]) == (429, "queue_timeout")
        due = await stack.client.post(CHAT, json=chat("y"), headers={"x-forebay-deadline-ms": "30"})
        assert (due.status_code, due.headers["x-forebay-reason"]) == (429, "deadline")
        await holder.leave()
        await stack.idle()


async def test_a_waiting_request_gets_the_slot_that_becomes_free(engine: ScriptedEngine) -> None:
    async with gateway(tiers(engine, queue={"max_inflight": 1, "max_waiting": 5})) as stack:
        holder = await occupied(stack, engine)
        waiting = await RawClient.post(stack.url, CHAT, chat("next"), x_request_id="next", x_forebay_debug="1")
        await until(lambda: stack.process.services.tiers["small"].admission.waiting == 1)
        assert await stack.metric("forebay_queue_depth", tier="small") == 1
        await holder.leave()
        head = (await waiting.reader.readuntil(b"\r\n\r\n")).decode()
        assert "200" in head.splitlines()[0]
        assert "x-forebay-queue-ms" in head
        assert (await stack.line("next"))["queue_ms"] > 0
        await waiting.leave()
        await stack.idle()


async def test_a_hit_needs_no_slot(engine: ScriptedEngine) -> None:
    async with gateway(tiers(engine, queue={"max_inflight": 1, "max_waiting": 0})) as stack:
        await stack.client.post(CHAT, json=chat("known"))
        holder = await occupied(stack, engine)
        assert (await stack.client.post(CHAT, json=chat("known"))).headers["x-forebay-cache"] == "hit-exact"
        await holder.leave()
        await stack.idle()


async def test_an_illegal_deadline_is_a_400(engine: ScriptedEngine) -> None:
    async with gateway(tiers(engine)) as stack:
        for value in ("0", "-1", "soon", "1.5"):
            answer = await stack.client.post(CHAT, json=chat("x"), headers={"x-forebay-deadline-ms": value})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-forebay-deadline-ms")
