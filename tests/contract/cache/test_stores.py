"""What every store promises, run over each of them: memory, Redis, Valkey and a cluster of three."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from bench.servers import Cluster, Server, ask, binary
from cache.catalogue import Catalogue
from cache.stores.base import Entry, Store, Wording
from cache.stores.memory import MemoryStore
from cache.stores.redis import RedisStore
from cache.stores.scripts import owner
from core.clock import SystemClock
from core.config import store_address
from core.redis_link import RedisLink
from tests.unit.cache.fakes import direction

NAMESPACE = "hand#8"
CLOCK = SystemClock()
HERE = direction("here")
EVERY = ["memory", "redis", "valkey", "cluster"]
SHARED = EVERY[1:]


class Place:
    """Where a kind of store keeps its entries; `opened` opens another gateway's view of the same place."""

    def __init__(self, url: str | None) -> None:
        self.url = url

    @asynccontextmanager
    async def opened(
        self, *, max_bytes: int = 10**7, max_vectors: int = 1000, lifetime: float = 60.0, namespace: str = NAMESPACE
    ) -> AsyncIterator[tuple[Store, Catalogue]]:
        catalogue = Catalogue(max_vectors)
        catalogue.namespace = namespace
        bounds = {"max_bytes": max_bytes, "max_vectors": max_vectors}
        try:
            if self.url is None:
                async with MemoryStore(catalogue, CLOCK, **bounds, lifetime=lifetime) as memory:
                    yield memory, catalogue
                return
            # The machine that runs the tests may be busy; that is not what they are about.
            async with (
                RedisLink(store_address(self.url), CLOCK, 5.0) as link,
                RedisStore(link, CLOCK, catalogue, **bounds, lifetime=lifetime) as shared,
            ):
                await asyncio.wait_for(shared.follower.warm.wait(), 30)
                yield shared, catalogue
        finally:
            await catalogue.aclose()


@pytest.fixture(scope="module", params=EVERY)
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from _place(request.param, tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module", params=SHARED)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from _place(request.param, tmp_path_factory.mktemp("store"))


def _place(kind: str, folder: Path) -> Iterator[Place]:
    if kind == "memory":
        yield Place(None)
        return
    program = "valkey" if kind == "valkey" else "redis"
    if binary(program) is None:
        pytest.skip(f"no {program} server is installed")
    with Cluster(program, folder) if kind == "cluster" else Server(program, folder) as running:
        yield Place(running.url)


@pytest.fixture
async def place(kept: Place) -> Place:
    await _empty(kept)
    return kept


@pytest.fixture
async def server(shared: Place) -> Place:
    await _empty(shared)
    return shared


async def _empty(place: Place) -> None:
    if place.url is not None:
        async with place.opened() as (store, _):
            await store.remove()


def number(count: int, partition: str | None = "p", tenant: str = "acme", body: bytes = b"{}") -> Entry:
    key = f"{count * 0x9E3779B1 % 2**32:08x}{count:024x}"
    return Entry(key, key * 2, tenant, "small", body, CLOCK.monotonic(), partition)


def said(text: str, namespace: str = NAMESPACE) -> Wording:
    return Wording(namespace, text, direction(text))


async def known(catalogue: Catalogue, entry: Entry, there: bool = True) -> None:
    async with asyncio.timeout(30):
        while (catalogue.version(entry.id) is not None) != there:  # noqa: ASYNC110  # nothing tells when it follows
            await asyncio.sleep(0.005)


async def size(catalogue: Catalogue, wanted: int) -> None:
    async with asyncio.timeout(30):
        while len(catalogue) != wanted:  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.005)


async def test_what_is_put_is_got_as_it_was(place: Place) -> None:
    body = bytes(range(256)) + "für alle € ".encode()
    async with place.opened() as (store, catalogue):
        entry = number(1, body=body)
        assert await store.get("acme", entry.id, touch=True) is None
        assert await store.put(entry, said("What is it?"))
        found = await store.get("acme", entry.id, touch=True)
        assert found is not None
        assert (found.body, found.fingerprint, found.tenant) == (body, entry.fingerprint, "acme")
        assert (found.tier, found.partition) == ("small", "p")
        assert found.stored_at == pytest.approx(entry.stored_at, abs=2)
        near = await catalogue.nearest("p", direction("What is it?"), 3)
        assert [(one.known.id, one.known.text) for one in near] == [(entry.id, "What is it?")]
        assert near[0].similarity == pytest.approx(1, abs=1e-5)


async def test_another_tenant_has_another_place(place: Place) -> None:
    async with place.opened() as (store, _):
        await store.put(number(1), None)
        for tenant in ("globex", "", "*", "acme:", owner("acme")):
            assert await store.get(tenant, number(1).id, touch=False) is None


async def test_a_replaced_entry_is_the_newer_one_and_counts_once(place: Place) -> None:
    async with place.opened() as (store, catalogue):
        await store.put(number(1, body=b"old"), said("a"))
        before = await store.sizes()
        await store.put(number(1, body=b"new"), said("a"))
        found = await store.get("acme", number(1).id, touch=False)
        assert found is not None
        assert found.body == b"new"
        assert await store.sizes() == before
        await store.put(number(1, None, body=b"exact only"), None)
        assert len(catalogue) == 0
        sizes = await store.sizes()
        assert (sizes.entries, sizes.vectors) == (1, 0)
        assert sizes.bytes < before.bytes


async def test_removal_by_id_by_tenant_and_of_everything(place: Place) -> None:
    async with place.opened() as (store, catalogue):
        for count in range(40):
            await store.put(number(count, tenant="acme" if count % 2 else "globex"), said(str(count)))
        assert await store.remove(key=number(1).id) == 1
        assert await store.remove(key=number(1).id) == 0
        assert await store.remove(key="no id") == 0
        assert catalogue.version(number(1).id) is None
        assert await store.remove(tenant="acme") == 19
        assert (await store.sizes()).entries == 20
        assert await store.remove() == 20
        sizes = await store.sizes()
        assert (sizes.entries, sizes.vectors, sizes.bytes) == (0, 0, 0)
        await known(catalogue, number(2), there=False)


async def test_the_number_of_vectors_is_bounded_and_the_unused_leave_first(place: Place) -> None:
    if place.url is not None and "cluster" in place.url:
        pytest.skip("a shard of a cluster has its own part of the bound")
    async with place.opened(max_vectors=3) as (store, catalogue):
        before = await store.sizes()
        for count in range(3):
            await store.put(number(count), said(str(count)))
        await store.put(number(9, None), None)
        await store.get("acme", number(0).id, touch=True)
        await store.get("acme", number(1).id, touch=False)
        await store.put(number(3), said("3"))
        there = [await store.get("acme", number(count).id, touch=False) is not None for count in (0, 1, 2, 3, 9)]
        assert there == [True, False, True, True, True]
        sizes = await store.sizes()
        assert (sizes.entries, sizes.vectors, sizes.evicted - before.evicted) == (4, 3, 1)
        assert catalogue.version(number(1).id) is None


async def test_bytes_are_bounded_and_too_large_is_refused(place: Place) -> None:
    parts = 16 if place.url is not None and "cluster" in place.url else 1
    async with place.opened(max_bytes=30_000 * parts) as (store, catalogue):
        before = await store.sizes()
        for count in range(100 * parts):
            assert await store.put(number(count, body=b"x" * 1000), said(str(count)) if count % 2 else None)
        sizes = await store.sizes()
        assert 15_000 * parts < sizes.bytes <= 30_000 * parts
        assert sizes.evicted - before.evicted + sizes.entries == 100 * parts
        assert sizes.vectors == len(catalogue)
        assert not await store.put(number(99 * parts, body=b"x" * 40_000), said("large"))
        assert await store.get("acme", number(99 * parts).id, touch=False) is None


async def test_what_has_expired_is_gone_and_not_counted(server: Place) -> None:
    async with server.opened(lifetime=0.3) as (store, catalogue):
        await store.put(number(1), said("a"))
        await known(catalogue, number(1), there=False)
        assert await store.get("acme", number(1).id, touch=True) is None
        sizes = await store.sizes()
        assert (sizes.entries, sizes.vectors, sizes.bytes) == (0, 0, 0)


async def test_one_gateway_finds_what_another_has_put_and_forgets_what_it_removes(server: Place) -> None:
    async with server.opened() as (one, first), server.opened() as (other, second):
        for count in range(200):
            await one.put(number(count), said(str(count)))
        await size(second, 200)
        near = await second.nearest("p", direction("7"), 1)
        assert (near[0].known.id, near[0].known.text) == (number(7).id, "7")
        assert np.allclose(near[0].vector, direction("7"))
        found = await other.get("acme", number(7).id, touch=True)
        assert found is not None
        assert found.stored_at == pytest.approx(CLOCK.monotonic(), abs=5)
        await other.remove(key=number(7).id)
        await known(first, number(7), there=False)
        assert await one.get("acme", number(7).id, touch=True) is None
        await other.remove()
        await size(first, 0)
        await size(second, 0)


async def test_a_gateway_that_starts_knows_what_is_there(server: Place) -> None:
    async with server.opened() as (store, _):
        for count in range(300):
            await store.put(number(count), said(str(count)))
    async with server.opened() as (store, catalogue):
        assert len(catalogue) == 300
        assert await store.get("acme", number(299).id, touch=False) is not None


async def test_wordings_of_another_embedder_are_neither_read_nor_lost(server: Place) -> None:
    async with server.opened() as (store, _):
        await store.put(number(1), said("a"))
    async with server.opened(namespace="other#16") as (store, catalogue):
        assert len(catalogue) == 0
        assert await store.get("acme", number(1).id, touch=True) is not None, "the exact layer needs no embedder"
        await store.put(number(2), Wording("other#16", "b", direction("b", 16)))
        assert len(catalogue) == 1
    async with server.opened() as (_, catalogue):
        assert catalogue.ids() == [number(1).id]


async def test_who_is_behind_the_kept_events_compares_everything(
    server: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cache.stores.redis.EVENTS", 1)
    monkeypatch.setattr("cache.stores.follower.PAGE", 3)
    async with server.opened() as (one, _), server.opened() as (_, second):
        # Streams are trimmed by the hundred.
        for count in range(700):
            await one.put(number(count), said(str(count)))
        await one.remove(key=number(5).id)
        await size(second, 699)
        await known(second, number(5), there=False)


async def test_a_poisoned_store_harms_nobody(server: Place) -> None:
    if server.url is None or "cluster" in server.url:
        pytest.skip("written to one server by hand")
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    async with server.opened() as (store, catalogue):
        await store.put(number(1, "p of acme"), said("a"))
        await store.put(number(2, "p of acme"), said("b"))
        key = f"{{fb0}}:1:entry:{owner('acme')}:{number(1).id}"
        ask(port, "HSET", key, "tenant", "globex")
        assert await store.get("acme", number(1).id, touch=False) is None
        assert await store.get("globex", number(1).id, touch=False) is None
        ask(port, "HSET", f"{{fb0}}:1:entry:{owner('acme')}:{number(2).id}", "vec", "abc")
        ask(port, "ZADD", "{fb0}:1:vec", "1", "not an id", "1", "f" * 32)
    async with server.opened() as (_, catalogue):
        assert catalogue.ids() == [number(1).id]
