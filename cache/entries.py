"""Stored answers in memory: bounded in bytes and in vectors, least recently used first out, expiry by layer."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from core.embedder import Vector

# What an entry costs besides its answer, text and vector: objects, dictionary slots, keys (measured, rounded up).
OVERHEAD = 1400
# A vector is held once in full and once as a searchable code of a quarter.
VECTOR_COPIES = 1.25


@dataclass(frozen=True, eq=False)
class Entry:
    """One stored answer. `stored_at`: seconds of the monotonic clock. `body`: the completion as JSON bytes.

    `partition`, `text` and `vector` are there together, for the semantic layer, or not at all.
    """

    id: str
    fingerprint: str
    tenant: str
    tier: str
    body: bytes = field(repr=False)
    stored_at: float
    partition: str | None = None
    text: str | None = field(default=None, repr=False)
    vector: Vector | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """Bytes this entry is counted with."""
        vector = 0 if self.vector is None else int(self.vector.nbytes * VECTOR_COPIES)
        return OVERHEAD + len(self.body) + 2 * len(self.text or "") + vector


class Entries:
    """Entries by id, in order of use.

    `max_bytes` bounds all of them, `max_vectors` those of the semantic layer. `put` says which entries had to leave.
    """

    def __init__(self, max_bytes: int, max_vectors: int) -> None:
        self._max_bytes, self._max_vectors = max_bytes, max_vectors
        self._used: OrderedDict[str, Entry] = OrderedDict()
        self._vectors: OrderedDict[str, None] = OrderedDict()
        # Every entry lives equally long, so the order of arrival is the order of expiry.
        self._arrived: dict[str, float] = {}
        self.bytes = 0
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._used)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._used.values())

    @property
    def vectors(self) -> int:
        """Entries of the semantic layer."""
        return len(self._vectors)

    def get(self, key: str) -> Entry | None:
        """The entry, without marking it as used."""
        return self._used.get(key)

    def touch(self, key: str) -> None:
        """Marks the entry as just used."""
        self._used.move_to_end(key)
        if key in self._vectors:
            self._vectors.move_to_end(key)

    def put(self, entry: Entry) -> list[Entry]:
        """Adds or replaces; returns the entries that left: the replaced one, evicted ones, itself where too large."""
        left = [old for old in [self.remove(entry.id)] if old is not None]
        if entry.size > self._max_bytes:
            return [*left, entry]
        self._used[entry.id] = entry
        self._arrived[entry.id] = entry.stored_at
        self.bytes += entry.size
        if entry.vector is not None:
            self._vectors[entry.id] = None
        while len(self._vectors) > self._max_vectors:
            left += self._evict(next(iter(self._vectors)))
        while self.bytes > self._max_bytes:
            left += self._evict(next(iter(self._used)))
        return left

    def remove(self, key: str) -> Entry | None:
        """Takes the entry out; None where there is none."""
        entry = self._used.pop(key, None)
        if entry is not None:
            self._vectors.pop(key, None)
            del self._arrived[key]
            self.bytes -= entry.size
        return entry

    def expired(self, before: float) -> list[Entry]:
        """Takes out every entry that was stored at or before `before`."""
        gone = []
        for key, arrived in self._arrived.items():
            if arrived > before:
                break
            gone.append(key)
        return [entry for key in gone if (entry := self.remove(key)) is not None]

    def _evict(self, key: str) -> list[Entry]:
        entry = self.remove(key)
        self.evicted += 1
        return [] if entry is None else [entry]
