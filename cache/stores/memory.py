"""Stored answers in this process: bounded in bytes and in vectors, least recently used first out."""

from collections import OrderedDict
from types import TracebackType
from typing import NamedTuple, Self

from cache.catalogue import Catalogue
from cache.stores.base import Entry, Sizes, Wording
from core.clock import Clock

# What an entry costs besides its answer and its question: objects, dictionary slots, keys (measured, rounded up).
OVERHEAD = 1400


class Held(NamedTuple):
    """An entry and the bytes it is counted with."""

    entry: Entry
    size: int


class MemoryStore:
    """Entries by id, in order of use.

    `max_bytes` bounds all of them, `max_vectors` those of the semantic layer, `lifetime` is in seconds.
    """

    def __init__(
        self, catalogue: Catalogue, clock: Clock, *, max_bytes: int, max_vectors: int, lifetime: float
    ) -> None:
        self._catalogue, self._clock = catalogue, clock
        self._max_bytes, self._max_vectors, self._lifetime = max_bytes, max_vectors, lifetime
        self._used: OrderedDict[str, Held] = OrderedDict()
        self._vectors: OrderedDict[str, None] = OrderedDict()
        # Every entry lives equally long, so the order of arrival is the order of expiry. A plain dict would step over
        # the places of all that have left from its front.
        self._arrived: OrderedDict[str, float] = OrderedDict()
        self._bytes = self._evicted = self._expired = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    @property
    def fault(self) -> str | None:
        """Nothing can be wrong with it."""
        return None

    async def get(self, tenant: str, key: str, *, touch: bool) -> Entry | None:
        """The entry; `touch` marks it as just used."""
        held = self._used.get(key)
        if held is None or held.entry.tenant != tenant:
            return None
        if touch:
            self._used.move_to_end(key)
            if key in self._vectors:
                self._vectors.move_to_end(key)
        return held.entry

    async def put(self, entry: Entry, wording: Wording | None) -> bool:
        """Adds or replaces; False where the entry is larger than the store."""
        self._sweep()
        if entry.id in self._used:
            self._drop(entry.id)
        size = OVERHEAD + len(entry.body)
        if wording is not None:
            size += self._catalogue.weight(wording)
        if size > self._max_bytes:
            return False
        self._used[entry.id] = Held(entry, size)
        self._arrived[entry.id] = entry.stored_at
        self._bytes += size
        if wording is not None and entry.partition is not None:
            self._vectors[entry.id] = None
            while len(self._vectors) > self._max_vectors:
                self._evict(next(iter(self._vectors)))
        while self._bytes > self._max_bytes:
            self._evict(next(iter(self._used)))
        if wording is not None and entry.partition is not None:
            self._catalogue.add(entry.id, entry.partition, wording, entry.stored_at)
        return True

    async def remove(self, *, key: str | None = None, tenant: str | None = None) -> int:
        """Takes out one entry, those of a tenant, or all."""
        if key is not None:
            return int(self._drop(key))
        keys = [held.entry.id for held in self._used.values() if tenant is None or held.entry.tenant == tenant]
        return sum(self._drop(found) for found in keys)

    async def sizes(self) -> Sizes:
        """Sizes after what has expired is gone."""
        self._sweep()
        return Sizes(len(self._used), len(self._vectors), self._bytes, self._evicted, self._expired)

    def _sweep(self) -> None:
        before = self._clock.monotonic() - self._lifetime
        gone: list[str] = []
        for key, arrived in self._arrived.items():
            if arrived > before:
                break
            gone.append(key)
        if gone:
            self._expired += sum(self._drop(key) for key in gone)

    def _evict(self, key: str) -> None:
        self._evicted += self._drop(key)

    def _drop(self, key: str) -> bool:
        held = self._used.pop(key, None)
        if held is None:
            return False
        self._vectors.pop(key, None)
        del self._arrived[key]
        self._bytes -= held.size
        self._catalogue.remove(key)
        return True
