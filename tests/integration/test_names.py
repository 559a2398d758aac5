"""Names of servers with changing answers: followed, and never an outage of their own."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from bench.engine import Script, ScriptedEngine
from tests.integration.stack import SMALL, Stack, chat, gateway, until
from tests.integration.wire import Answer, ask

CHAT = "/v1/chat/completions"
NAME = "engines.test"


class Zone:
    """A resolver whose answers are told; None is a failure."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: Sequence[str] | None = addresses
        self.asked: list[str] = []

    async def resolve(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        if self.addresses is None:
            raise OSError("Temporary failure in name resolution")
        return self.addresses


@pytest.fixture
async def engines() -> AsyncIterator[list[ScriptedEngine]]:
    """Three servers on one port of three addresses, as the pods behind a headless Service."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(ScriptedEngine(SMALL))
        others = [ScriptedEngine(SMALL, host=f"127.0.0.{n}", port=first.port) for n in (2, 3)]
        yield [first, *[await stack.enter_async_context(other) for other in others]]


def named(engine: ScriptedEngine, **settings: Any) -> dict[str, Any]:
    return {"tiers": {"small": {"model": SMALL, "urls": [f"http://{NAME}:{engine.port}"], **settings}}}


async def post(stack: Stack, body: dict[str, Any]) -> Answer:
    return await ask(stack.url, CHAT, body)


def addresses(stack: Stack) -> dict[str, str]:
    """Every server's address and its health."""
    found = stack.process.services.tiers["small"].replicas.all
    return {replica.url.split("/")[2].partition(":")[0]: replica.health for replica in found}


async def moved(stack: Stack, zone: Zone, *to: str) -> None:
    """The name is at these addresses, all of them up."""
    zone.addresses = to
    await stack.process.services.names.refresh()
    await until(lambda: addresses(stack) == dict.fromkeys(to, "up"))


async def test_every_address_of_a_name_is_a_replica_and_is_asked_by_its_name(engines: list[ScriptedEngine]) -> None:
    zone = Zone("127.0.0.1", "127.0.0.2", "127.0.0.3")
    async with gateway(named(engines[0]), resolver=zone) as stack:
        await until(lambda: set(addresses(stack).values()) == {"up"})
        for number in range(9):
            assert (await post(stack, chat(f"q {number}"))).status == 200
        assert [len(engine.requests) for engine in engines] == [3, 3, 3]
        host = f"{NAME}:{engines[0].port}"
        assert all(seen.headers["host"] == host for engine in engines for seen in (*engine.requests, *engine.probes))
        assert set(zone.asked) == {NAME}


async def test_r1_an_address_that_leaves_gets_nothing_more_and_its_streams_finish(
    engines: list[ScriptedEngine],
) -> None:
    """R1."""
    zone = Zone("127.0.0.1", "127.0.0.2")
    async with gateway(named(engines[0]), resolver=zone) as stack:
        await moved(stack, zone, "127.0.0.1", "127.0.0.2")
        for engine in engines:
            engine.defaults = Script(tokens=6, itl=0.1)
        streams = [asyncio.create_task(post(stack, chat(f"s {number}", stream=True))) for number in range(4)]
        await until(lambda: engines[0].running == engines[1].running == 2)
        await moved(stack, zone, "127.0.0.1")
        for number in range(4):
            assert (await post(stack, chat(f"q {number}"))).status == 200
        assert len(engines[1].requests) == 2
        answers = await asyncio.gather(*streams)
        assert all(answer.events[-1] == b"[DONE]" for answer in answers)
        url = f"http://127.0.0.2:{engines[0].port}"
        assert url not in (await stack.client.get("/metrics")).text
        await stack.idle()


async def test_r2_an_address_that_comes_back_is_another_replica(engines: list[ScriptedEngine]) -> None:
    """R2: nothing of its past counts, and it gets no request before its probe."""
    zone = Zone("127.0.0.1", "127.0.0.2")
    async with gateway(named(engines[0]), resolver=zone) as stack:
        await moved(stack, zone, "127.0.0.1", "127.0.0.2")
        await moved(stack, zone, "127.0.0.1")
        engines[1].models = ("another-model",)
        zone.addresses = ("127.0.0.1", "127.0.0.2")
        await stack.process.services.names.refresh()
        assert addresses(stack)["127.0.0.2"] == "unknown"
        for number in range(4):
            assert (await post(stack, chat(f"q {number}"))).status == 200
        await until(lambda: addresses(stack)["127.0.0.2"] == "down")
        assert not engines[1].requests


async def test_r4_while_a_name_cannot_be_looked_up_its_last_addresses_serve(engines: list[ScriptedEngine]) -> None:
    """R4: kept, counted, shown; and unready when none of them answers."""
    zone = Zone("127.0.0.1", "127.0.0.2")
    async with gateway(named(engines[0]), resolver=zone) as stack:
        await moved(stack, zone, "127.0.0.1", "127.0.0.2")
        zone.addresses = None
        await stack.process.services.names.refresh()
        assert (await post(stack, chat("q"))).status == 200
        assert await stack.metric("forebay_upstream_errors_total", tier="small", kind="resolve") >= 1
        ready = await stack.client.get("/ready")
        assert ready.status_code == 200
        assert any(NAME in line and "kept" in line for line in ready.json()["degraded"])
        for engine in engines[:2]:
            await engine.stop_listening()
            engine.drop_connections()
        await until(lambda: set(addresses(stack).values()) == {"down"}, within=10)
        assert (await stack.client.get("/ready")).status_code == 503
        assert (await stack.client.get("/health")).status_code == 200
        await moved(stack, zone, "127.0.0.3")
        ready = await stack.client.get("/ready")
        assert (ready.status_code, ready.json()["degraded"]) == (200, [])


async def test_r4_a_gateway_starts_before_its_names_exist(engines: list[ScriptedEngine]) -> None:
    """R4's kind: an unknown name at the start is 503, not a crash, and is found later."""
    zone = Zone()
    zone.addresses = None
    async with gateway(named(engines[0]), resolver=zone, probed=False) as stack:
        answer = await post(stack, chat("q"))
        assert (answer.status, answer.header("x-forebay-reason")) == (503, "no_replica")
        assert (await stack.client.get("/ready")).status_code == 503
        await moved(stack, zone, "127.0.0.2")
        assert (await post(stack, chat("q"))).status == 200


async def test_r9_a_changed_list_of_addresses_is_what_is_probed_and_asked(engines: list[ScriptedEngine]) -> None:
    """R9."""
    document = {"tiers": {"small": {"model": SMALL, "urls": [engines[0].url]}}}
    async with gateway(document) as stack:
        replicas = stack.process.services.tiers["small"].replicas
        kept = replicas.all[0]
        stack.process.services.names.point(replicas, [engines[1].url, engines[0].url])
        await until(lambda: addresses(stack) == {"127.0.0.1": "up", "127.0.0.2": "up"})
        assert kept in replicas.all
        stack.process.services.names.point(replicas, [engines[1].url])
        await asyncio.sleep(0)
        asked = len(engines[0].probes)
        assert (await post(stack, chat("q"))).status == 200
        assert (len(engines[0].requests), len(engines[1].requests)) == (0, 1)
        probed = len(engines[1].probes)
        await until(lambda: len(engines[1].probes) > probed)
        assert len(engines[0].probes) == asked
