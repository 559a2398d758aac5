"""Memory stays within its bounds however many distinct prompts come; `bench.cache_growth` does it with a million."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from bench.cache_growth import MadeUpGlance
from cache import index as index_module
from cache.question import namespace
from cache.response_cache import ResponseCache
from tests.clock import HandClock
from tests.unit.cache.fakes import DIM, ON, Agreeing, ask, completion, embedding, settings


async def grow(cache: ResponseCache, first: int, count: int) -> None:
    rng = np.random.default_rng(first)
    for number in range(first, first + count):
        vector = rng.standard_normal(8).astype(np.float32)
        vector /= np.linalg.norm(vector)
        where: dict[str, Any] = {} if number % 2 else {"seed": number % 40}
        question = ask(f"a prompt that nobody has sent before {number}", **where)
        assert await cache.store(question, completion(), embedding(vector), tier="small", controls=ON) is None
        if number % 10 == 0:
            await cache.semantic(question, embedding(vector), ON, deadline=5.0)


async def test_many_distinct_prompts_take_no_more_memory_than_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"IN_PLACE": 100, "TAIL": 32, "STEP": 64, "LIST_ROWS": 16, "READ_ROWS": 400}.items():
        monkeypatch.setattr(index_module, name, value)
    kept = settings({"max_entries": 400}, max_bytes=2_000_000)
    async with ResponseCache(kept, clock=HandClock(), verifier=Agreeing()) as cache:
        cache.understand(namespace("hand", "1", DIM), MadeUpGlance())
        index = cache.catalogue._index
        tracemalloc.start()
        await grow(cache, 0, 1500)
        await cache.catalogue.settled()
        before = tracemalloc.get_traced_memory()[0]
        await grow(cache, 1500, 3000)
        await cache.catalogue.settled()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        stats = await cache.stats()
        assert (stats.semantic, stats.known) == (400, 400)
        assert stats.bytes <= 2_000_000
        assert stats.partitions <= 21
        assert sum(len(part) for part in index._partitions.values()) == 400
        codes = sum(len(part.file.keys) for part in index._partitions.values() if part.file is not None)
        assert codes <= 3 * 400, "what has left is cleared out of the codes"
        assert grown < 0.3 * before, "three times as many prompts were stored since"
