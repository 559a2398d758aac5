"""The limits of keys over real sockets: in one gateway, and in two that share a Redis."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.engine import Script, ScriptedEngine
from bench.servers import Server
from tests.integration.shared import AMPLE, serve
from tests.integration.stack import SMALL, RawClient, Stack, chat, gateway, tiers, until
from tests.integration.wire import Answer, ask

CHAT = "/v1/chat/completions"


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(SMALL) as running:
        yield running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    yield from serve("redis", tmp_path)


def limited(engine: ScriptedEngine, store: str = "memory", **limits: Any) -> dict[str, Any]:
    """A gateway's document with one limited key, and one that is not; a key is its name."""
    keys = [
        {"name": name, "tenant": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), **extra}
        for name, extra in (("acme", limits), ("free", {}))
    ]
    price = {"input": 1.0, "output": 1.0}
    cache = {"exact": {"enabled": False}, "timeout": AMPLE}
    return {**tiers(engine, price=price), "auth": {"store": store, "keys": keys}, "cache": cache}


async def post(stack: Stack, text: str, key: str = "acme", path: str = CHAT, **fields: Any) -> Answer:
    return await ask(stack.url, path, chat(text, **fields), authorization=f"Bearer {key}")


def is_refused(answer: Answer, reason: str) -> bool:
    assert answer.status == 429
    assert int(answer.header("retry-after") or 0) >= 1
    assert answer.json["error"]["type"] == "rate_limit_error"
    return answer.header("x-forebay-reason") == reason == answer.json["error"]["code"]


async def test_requests_per_minute(engine: ScriptedEngine) -> None:
    """Refused before anything is done, counted by tenant, nobody else is touched; lists of models are free."""
    async with gateway(limited(engine, requests_per_minute=3)) as stack:
        assert [(await post(stack, f"q {n}")).status for n in range(3)] == [200] * 3
        answer = await post(stack, "q 3")
        assert is_refused(answer, "tenant_requests")
        assert 55 <= int(answer.header("retry-after") or 0) <= 61
        assert is_refused(await post(stack, "e", path="/v1/embeddings"), "tenant_requests")
        assert len(engine.requests) == 3
        assert (await post(stack, "q", key="free")).status == 200
        models = await stack.client.get("/v1/models", headers={"authorization": "Bearer acme"})
        assert models.status_code == 200
        assert await stack.metric("forebay_tenant_shed_total", tenant="acme") == 2
        await stack.idle()


async def test_concurrency_is_given_back_also_by_clients_that_leave(engine: ScriptedEngine) -> None:
    engine.defaults = Script(tokens=10_000, itl=0.2)
    async with gateway(limited(engine, concurrency=2)) as stack:
        clients = []
        for number in range(2):
            body = chat(f"q {number}", stream=True)
            clients.append(await RawClient.post(stack.url, CHAT, body, authorization="Bearer acme"))
        await until(lambda: engine.running == 2)
        assert is_refused(await post(stack, "third"), "tenant_concurrency")
        for client in clients:
            await client.leave()
        await stack.idle()
        engine.defaults = Script()
        assert (await post(stack, "fourth")).status == 200


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
async def test_r28_tokens_are_reserved_and_settled_with_the_usage(engine: ScriptedEngine, stream: bool) -> None:
    """R28: streams count as well, asked for usage or not; what was reserved too much is given back."""
    engine.defaults = Script(tokens=10)
    async with gateway(limited(engine, tokens_per_minute=300)) as stack:
        used = served = 0
        while (answer := await post(stack, f"q {served}", stream=stream, max_tokens=50)).status == 200:
            served += 1
            used = sum(seen.json is not None for seen in engine.requests)
            assert served < 100
        assert is_refused(answer, "tenant_tokens")
        total = await stack.metric("forebay_tenant_tokens_total", tenant="acme")
        # Each was let in with fifty in hand, each took about ten and its prompt.
        assert 300 - 80 <= total <= 300
        assert used == served
        await stack.idle()


async def test_a_monthly_budget_ends_with_its_money(engine: ScriptedEngine) -> None:
    engine.defaults = Script(tokens=10)
    async with gateway(limited(engine, monthly_budget=0.0005)) as stack:
        served = 0
        while (answer := await post(stack, f"q {served}", max_tokens=20)).status == 200:
            served += 1
            assert served < 100
        assert is_refused(answer, "tenant_budget")
        total = await stack.metric("forebay_tenant_tokens_total", tenant="acme")
        assert 500 - 60 <= total <= 500


async def test_other_routes_are_metered_too(engine: ScriptedEngine) -> None:
    body = {"model": "small", "input": "one two three"}
    async with gateway(limited(engine, tokens_per_minute=1000)) as stack:
        answer = await ask(stack.url, "/v1/embeddings", body, authorization="Bearer acme")
        assert answer.status == 200
        await until(lambda: len(stack.lines()) == 1)
        tokens = await stack.metric("forebay_tenant_tokens_total", tenant="acme")
        assert tokens == answer.json["usage"]["prompt_tokens"]


async def flood(stacks: list[Stack], workers: int) -> int:
    """Every worker asks until it is refused; how many were served."""
    served = 0

    async def work(number: int) -> None:
        nonlocal served
        stack, patience = stacks[number % len(stacks)], 3
        while patience:
            answer = await post(stack, f"{number} {served}", stream=number % 3 == 0, max_tokens=8)
            served += answer.status == 200
            patience -= answer.status != 200

    await asyncio.gather(*(work(number) for number in range(workers)))
    return served


async def test_r27_two_gateways_keep_one_limit(engine: ScriptedEngine, server: Server) -> None:
    """R27: a thousand tokens per minute in total, within two percent, whoever serves."""
    engine.defaults = Script(tokens=8)
    document = limited(engine, server.url, tokens_per_minute=1000)
    async with gateway(document) as one, gateway(document) as two:
        # The tier's forecast learns what a request takes; until then it reserves too much, never too little.
        served = await flood([one, two], 8)
        totals = [await stack.metric("forebay_tenant_tokens_total", tenant="acme") for stack in (one, two)]
        assert min(totals) > 0
        assert 980 <= sum(totals) <= 1020, (served, totals)
        for stack in (one, two):
            assert is_refused(await post(stack, "more", max_tokens=200), "tenant_tokens")
            await stack.idle()


async def test_two_gateways_share_requests_and_concurrency(engine: ScriptedEngine, server: Server) -> None:
    document = limited(engine, server.url, requests_per_minute=20, concurrency=4)
    async with gateway(document) as one, gateway(document) as two:
        engine.defaults = Script(hang=True)
        tasks = [asyncio.create_task(post((one, two)[n % 2], f"q {n}")) for n in range(8)]
        refused = await _first(tasks, 4)
        assert all(is_refused(answer, "tenant_concurrency") for answer in refused)
        await until(lambda: engine.running == 4)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stack in (one, two):
            await stack.idle()
        engine.defaults = Script()
        await until(lambda: engine.running == 0)
        statuses = []
        while len(statuses) < 40:
            statuses.append((await post((one, two)[len(statuses) % 2], f"r {len(statuses)}")).status)
        assert statuses.count(200) == 20 - 4


async def _first(tasks: "list[asyncio.Task[Answer]]", count: int) -> list[Answer]:
    """The first so many answers."""
    found: list[Answer] = []
    for done in asyncio.as_completed(tasks, timeout=10):
        found.append(await done)
        if len(found) == count:
            return found
    raise AssertionError("all have answered")


async def test_while_redis_is_down_everything_passes_and_is_shown(engine: ScriptedEngine, server: Server) -> None:
    """Open by policy: counted, shown, and over when Redis is back."""
    document = limited(engine, server.url, requests_per_minute=2, tokens_per_minute=10**6)
    async with gateway(document) as stack:
        assert [(await post(stack, f"q {n}")).status for n in range(3)] == [200, 200, 429]
        server.kill()
        assert [(await post(stack, f"down {n}")).status for n in range(8)] == [200] * 8
        assert await stack.metric("forebay_limits_unchecked_total") > 0
        ready = (await stack.client.get("/ready")).json()
        assert ready["ready"] is True
        assert any(line.startswith("limits:") for line in ready["degraded"])
        server.start()
        breaker = stack.process.services.breakers["limits_store"]
        await until(lambda: breaker.state == "closed", within=10)
        statuses = [(await post(stack, f"back {n}")).status for n in range(3)]
        assert statuses == [200, 200, 429]
        await stack.idle()


async def test_r30_tenants_beyond_a_thousand_are_one_label(engine: ScriptedEngine) -> None:
    """R30: keys of many tenants, and the thousand and first is `other`."""
    async with gateway(limited(engine)) as stack:
        family = stack.process.services.metrics.tenant_requests
        for number in range(1200):
            family(f"tenant-{number}").inc()
        assert (await post(stack, "q", key="free")).status == 200
        assert await stack.metric("forebay_tenant_requests_total", tenant="other") == 201
