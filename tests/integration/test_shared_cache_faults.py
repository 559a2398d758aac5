"""A store that hangs, dies or comes late: no request fails, few wait for it, and all heals by itself."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from bench.engine import ScriptedEngine
from bench.servers import Server, binary
from tests.integration.shared import UNGUARDED, answered, ask, eventually, finds, healthy, says, server, sharing
from tests.integration.stack import SMALL, Stack, WordEncoder

__all__ = ["server"]
# The budget is what these tests are about.
BUDGET = "250ms"


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(SMALL) as running:
        yield running


async def breaker(stack: Stack, level: int) -> bool:
    """Whether the breaker is at this level: 0 closed, 2 open."""
    return await stack.metric("forebay_dependency_breaker_state", dependency="cache_store") == level


async def lookups(stack: Stack, result: str) -> float:
    return await stack.metric("forebay_cache_lookups_total", layer="exact", result=result)


async def test_a_store_that_hangs_is_waited_for_a_few_times_and_then_left_alone(
    server: Server, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with sharing(server.url, engine, timeout=BUDGET, **UNGUARDED) as stack:
        first = await answered(stack, "before it hangs")
        await eventually(finds, stack, "hangs it before")
        server.stop()
        try:
            for count in range(60):
                assert await ask(stack, f"while it hangs {count}") == "miss"
            assert not await breaker(stack, 0), "open, or half-open while the background tries"
            waited = await lookups(stack, "timeout")
            assert waited <= 5, "failures in a row that open the breaker"
            await asyncio.gather(*(ask(stack, f"many at once {count}") for count in range(60)))
            assert await lookups(stack, "timeout") == waited, "nobody waits any more"
            assert await says(stack, "the cache store: ")
            assert (await stack.client.get("/ready")).status_code == 200
        finally:
            server.go()
        await eventually(breaker, stack, 0)

        async def back() -> bool:
            return await answered(stack, "before it hangs") == ("hit-exact", first[1])

        await eventually(back)
        await eventually(finds, stack, "hangs it before")
        await eventually(healthy, stack)
        await stack.idle()
    lines = [record.getMessage() for record in caplog.records if record.name == "forebay.redis"]
    assert [line.partition(":")[0] for line in lines] == [
        "the cache store is left alone until it answers again",
        "the cache store is back",
    ]


async def test_a_store_that_dies_and_comes_back_empty_costs_hits_and_nothing_else(
    server: Server, engine: ScriptedEngine
) -> None:
    async with sharing(server.url, engine, **UNGUARDED) as one, sharing(server.url, engine, **UNGUARDED) as other:
        first = await answered(one, "what do you remember of me")
        await eventually(finds, other, "what of me do you remember")
        server.kill()
        for count in range(20):
            for stack in (one, other):
                assert await ask(stack, f"the store is gone {count}") == "miss"
        assert await one.metric("forebay_cache_entries", layer="exact") == 0
        await asyncio.to_thread(server.start)
        for stack in (one, other):
            await eventually(breaker, stack, 0)
        again = await answered(other, "me of what do you remember")
        assert again[0] == "miss", "the index must not serve what the store has lost"
        assert again[1] != first[1]
        await eventually(finds, one, "you remember what of me do")
        assert (await answered(one, "you remember what of me do")) == ("hit-semantic", again[1])
        await eventually(healthy, one)


async def test_a_gateway_starts_without_its_store_and_heals(
    tmp_path: Path, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    if binary("redis") is None:
        pytest.skip("no redis server is installed")
    late = Server("redis", tmp_path)
    async with sharing(late.url, engine, **UNGUARDED) as stack:
        for count in range(10):
            assert await ask(stack, f"nobody is there yet {count}") == "miss"
        assert await says(stack, "the cache store")
        skipped = [
            await stack.metric("forebay_cache_writes_skipped_total", reason=f"store_{kind}")
            for kind in ("error", "open")
        ]
        assert sum(skipped) == 10
        with late:
            await eventually(healthy, stack)
            assert await ask(stack, "somebody is there") == "miss"
            assert await ask(stack, "somebody is there") == "hit-exact"
            await eventually(finds, stack, "there is somebody")
    assert len([record for record in caplog.records if record.name == "forebay.redis"]) == 2


async def test_administration_says_when_the_store_does_not_answer(tmp_path: Path, engine: ScriptedEngine) -> None:
    auth = {"keys": [{"name": "root", "tenant": "ops", "admin": True, "sha256": _DIGEST}]}
    root = {"authorization": "Bearer d"}
    async with sharing("redis://127.0.0.1:1/0", engine, auth=auth) as stack:
        gone = await stack.client.delete(f"/admin/cache/entries/{'0' * 32}", headers=root)
        assert (gone.status_code, gone.json()["error"]["code"]) == (503, "store_unavailable")
        assert (await stack.client.post("/admin/cache/purge", headers=root)).status_code == 503
        stats = await stack.client.get("/admin/cache/stats", headers=root)
        assert stats.status_code == 200
        assert "Connect" in stats.json()["fault"]
        assert (await stack.client.get("/admin/state", headers=root)).status_code == 200
        explained = await stack.client.post(
            "/v1/explain", json={"model": "small", "messages": [{"role": "user", "content": "x"}]}, headers=root
        )
        assert explained.json()["cache"]["exact"] == "miss"


_DIGEST = "18ac3e7343f016890c510e93f935261169d9e3f565436429830faf0934f4f8e4"


async def test_an_embedder_that_hangs_is_left_alone_and_comes_back(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = threading.Event()
    free.set()
    encode = WordEncoder.encode

    def hanging(self: WordEncoder, texts: list[str]) -> object:
        free.wait(60)
        return encode(self, texts)

    monkeypatch.setattr(WordEncoder, "encode", hanging)
    async with sharing("memory", engine, semantic={**UNGUARDED["semantic"], "deadline": "100ms"}) as stack:
        assert await ask(stack, "it works at first") == "miss"
        before = await stack.metric("forebay_cache_lookups_total", layer="semantic", result="timeout")
        free.clear()
        try:
            for count in range(20):
                assert await ask(stack, f"and then it hangs {count}") == "miss"
            assert await stack.metric("forebay_dependency_breaker_state", dependency="embedder") > 0
            assert await says(stack, "embedder: no vector within 100 ms")
            late = await stack.metric("forebay_cache_lookups_total", layer="semantic", result="timeout")
            assert late - before == 20
        finally:
            free.set()

        await eventually(finds, stack, "at first it works")
        assert await ask(stack, "at first it works") == "hit-semantic"
