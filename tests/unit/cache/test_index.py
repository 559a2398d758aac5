"""Search inside a partition, small and large, with removal while the background work goes on."""

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from cache import index as index_module
from cache.index import SimilarityIndex
from core.embedder import Vector
from tests.unit.cache.fakes import beside, direction

DIM = 32


@pytest.fixture
async def index() -> AsyncIterator[SimilarityIndex]:
    opened = SimilarityIndex()
    yield opened
    await opened.aclose()


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same code at sizes that a test can afford."""
    for name, value in {"IN_PLACE": 100, "TAIL": 32, "STEP": 64, "LIST_ROWS": 16, "READ_ROWS": 400}.items():
        monkeypatch.setattr(index_module, name, value)


def some(count: int, prefix: str = "") -> dict[str, Vector]:
    return {f"{prefix}{number}": direction(f"{prefix}{number}", DIM) for number in range(count)}


async def test_the_nearest_come_first_and_only_from_their_partition(index: SimilarityIndex) -> None:
    query = direction("query", DIM)
    for similarity in (0.2, 0.9, 0.5):
        index.add("p", f"at {similarity}", beside(query, similarity))
    index.add("q", "elsewhere", query)
    found = await index.nearest("p", query, 2)
    assert [near.id for near in found] == ["at 0.9", "at 0.5"]
    assert found[0].similarity == pytest.approx(0.9, abs=1e-5)
    assert await index.nearest("nowhere", query, 2) == []


async def test_removed_vectors_are_not_found_and_empty_partitions_go(index: SimilarityIndex) -> None:
    vectors = some(50)
    for key, vector in vectors.items():
        index.add("p", key, vector)
    for key in list(vectors)[::2]:
        index.remove("p", key)
    for key, vector in vectors.items():
        best = (await index.nearest("p", vector, 1))[0]
        assert (best.id == key) == (int(key) % 2 == 1)
    for key in list(vectors)[1::2]:
        index.remove("p", key)
    assert index.partitions == 0


@pytest.mark.usefixtures("small_limits")
async def test_a_large_partition_is_searched_like_a_small_one(index: SimilarityIndex) -> None:
    vectors = some(900)
    for key, vector in vectors.items():
        index.add("p", key, vector)
        await asyncio.sleep(0)
    await index.settled()
    found = [(await index.nearest("p", beside(vector, 0.9), 3))[0] for vector in vectors.values()]
    right = [near for near, key in zip(found, vectors, strict=True) if near.id == key]
    assert len(right) >= 0.98 * len(vectors)
    assert all(near.similarity == pytest.approx(0.9, abs=1e-4) for near in right)


@pytest.mark.usefixtures("small_limits")
async def test_nothing_removed_is_found_while_files_are_built_and_filled(index: SimilarityIndex) -> None:
    rng = np.random.default_rng(3)
    alive: dict[str, Vector] = {}
    for count in range(1500):
        key = f"v{count}"
        alive[key] = direction(key, DIM)
        index.add("p", key, alive[key])
        if count % 3 == 2:
            gone = str(rng.choice(list(alive)))
            index.remove("p", gone)
            found = await index.nearest("p", alive.pop(gone), 5)
            assert gone not in {near.id for near in found}
            assert {near.id for near in found} <= alive.keys()
    await index.settled()
    kept = [(await index.nearest("p", vector, 1))[0].id == key for key, vector in alive.items()]
    assert sum(kept) >= 0.98 * len(kept)


@pytest.mark.usefixtures("small_limits")
async def test_an_id_that_comes_back_is_found_where_it_is_and_not_where_it_was(index: SimilarityIndex) -> None:
    vectors = some(300)
    for key, vector in vectors.items():
        index.add("p", key, vector)
    await index.settled()
    old, new = vectors["7"], direction("moved", DIM)
    index.remove("p", "7")
    index.add("p", "7", new)
    assert (await index.nearest("p", new, 1))[0].similarity == pytest.approx(1.0, abs=1e-5)
    assert all(near.id != "7" or near.similarity < 0.9 for near in await index.nearest("p", old, 5))


@pytest.mark.usefixtures("small_limits")
async def test_a_failing_background_leaves_the_partition_searchable(
    index: SimilarityIndex, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise MemoryError("no room for a file")

    monkeypatch.setattr(index_module, "InvertedFile", broken)
    vectors = some(200)
    for key, vector in vectors.items():
        index.add("p", key, vector)
    await index.settled()
    assert "could not be maintained" in caplog.text
    assert (await index.nearest("p", vectors["150"], 1))[0].id == "150"


@pytest.mark.usefixtures("small_limits")
async def test_closing_ends_background_work() -> None:
    index = SimilarityIndex()
    for key, vector in some(500).items():
        index.add("p", key, vector)
    await index.aclose()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "cache-index"]
