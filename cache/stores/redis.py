"""Stored answers in a Redis or Valkey server that several gateways share."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from cache.catalogue import Catalogue
from cache.stores.base import Entry, Sizes, Wording
from cache.stores.follower import Follower
from cache.stores.scripts import PURGE, READ, REMOVE, SIZES, WRITE, Keys, is_id, owner, shard_of
from core.clock import Clock
from core.redis_link import Argument, RedisLink

# What an entry costs besides its answer, text and vector: its share of the books, keys, allocation (measured with
# bench.cache_growth, rounded up).
OVERHEAD = 2000
# Events kept for followers; who is further behind reads everything anew. One event is about 150 bytes.
EVENTS = 10_000


class RedisStore:
    """Entries in the server behind `link`, bounded over all gateways. The link belongs to whoever made it.

    `max_bytes`, `max_vectors` and `lifetime` (seconds) as in the memory store; on a cluster each of its shards gets an
    equal part of the bounds. The catalogue follows within `follower.INTERVAL` seconds.
    """

    def __init__(
        self,
        link: RedisLink,
        clock: Clock,
        catalogue: Catalogue,
        *,
        max_bytes: int,
        max_vectors: int,
        lifetime: float,
    ) -> None:
        self._link, self._catalogue, self._clock = link, catalogue, clock
        self._keys = [Keys(shard) for shard in link.shards]
        parts = len(self._keys)
        self._max_bytes, self._max_vectors = max_bytes // parts, -(-max_vectors // parts)
        self._lifetime = int(lifetime * 1000)
        self.follower = Follower(link, self._keys, catalogue, clock, lifetime)

    async def __aenter__(self) -> Self:
        self.follower.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.follower.aclose()

    @property
    def fault(self) -> str | None:
        """What does not work; None where everything does."""
        breaker = self._link.breaker
        return f"{breaker.name}: {breaker.reason}" if breaker.reason is not None else self.follower.fault

    async def get(self, tenant: str, key: str, *, touch: bool) -> Entry | None:
        """The entry under the key of this tenant; a value that says otherwise is not one."""
        keys = self._of(key)
        found = await self._link.run(
            READ, [keys.entry(tenant, key), keys.of("use"), keys.of("vec")], [key, "1" if touch else "0"]
        )
        return None if found is None else self._entry(tenant, key, found)

    def _entry(self, tenant: str, key: str, found: Sequence[Any]) -> Entry | None:
        try:
            fingerprint, whose, tier, partition = (bytes(value).decode() for value in found[:4])
            body, age = bytes(found[4]), int(found[5]) / 1000
        except (TypeError, ValueError):
            return None
        if whose != tenant:
            return None
        return Entry(key, fingerprint, tenant, tier, body, self._clock.monotonic() - age, partition or None)

    async def put(self, entry: Entry, wording: Wording | None) -> bool:
        """Adds or replaces in one step with all that has to leave."""
        keys = self._of(entry.id)
        semantic = wording is not None and entry.partition is not None
        size = OVERHEAD + len(entry.body)
        fields: list[Argument] = ["fp", entry.fingerprint, "tenant", entry.tenant, "tier", entry.tier]
        fields += ["body", entry.body, "partition", (entry.partition or "") if semantic else ""]
        if wording is not None and semantic:
            text, vector = wording.text.encode(), wording.vector.astype("<f4").tobytes()
            fields += ["ns", wording.namespace, "text", text, "vec", vector]
            size += len(text) + len(vector)
        bounds: list[Argument] = [size, self._max_bytes, self._max_vectors, EVENTS, "1" if semantic else "0"]
        version, gone = await self._link.run(
            WRITE, keys.books, [keys.entries, entry.id, owner(entry.tenant), self._lifetime, *bounds, *fields]
        )
        for key in gone:
            self._catalogue.remove(key.decode())
        if version == 0 or wording is None or entry.partition is None:
            self._catalogue.remove(entry.id)
        elif wording.namespace == self._catalogue.namespace:
            self._catalogue.add(entry.id, entry.partition, wording, entry.stored_at, version)
        return bool(version)

    async def remove(self, *, key: str | None = None, tenant: str | None = None) -> int:
        """Takes out one entry, those of a tenant, or all, page by page; other operations go on meanwhile."""
        if key is not None:
            if not is_id(key):
                return 0
            keys = self._of(key)
            count = int(await self._link.run(REMOVE, keys.books, [keys.entries, EVENTS, key], background=True))
            self._catalogue.remove(key)
            return count
        count = 0
        for keys in self._keys:
            cursor = b"0"
            while True:
                arguments: list[Argument] = [keys.entries, EVENTS, cursor, "" if tenant is None else owner(tenant)]
                cursor, removed = await self._link.run(PURGE, keys.books, arguments, background=True)
                count += removed
                if cursor == b"0":
                    break
        return count

    async def sizes(self) -> Sizes:
        """Sizes over all gateways, after what has expired is gone."""
        totals = [0, 0, 0, 0, 0]
        for row in await asyncio.gather(*(self._sizes(keys) for keys in self._keys)):
            totals = [total + value for total, value in zip(totals, row, strict=True)]
        return Sizes(*totals)

    async def _sizes(self, keys: Keys) -> list[int]:
        while True:
            late, *row = await self._link.run(SIZES, keys.books, [keys.entries])
            if late < 1000:
                return [int(value) for value in row]

    def _of(self, key: str) -> Keys:
        return self._keys[shard_of(key, len(self._keys))]
