"""The questions that the semantic layer can find: what was asked, where, and how near it is.

A catalogue holds wordings, never answers. It follows a store, which says what comes and goes, and is at most a moment
behind it; whether an entry is still there is the store's to say when its answer is fetched.
"""

from dataclasses import dataclass, replace

from cache.first_look import FirstLook
from cache.index import SimilarityIndex
from cache.stores.base import Wording
from cache.verdict import Notes
from core.embedder import Vector

# A vector is held in full, and once as a code of a thirty-second.
COPIES = 1.05
# Bytes of a verifier's notes for each character of a text.
NOTED = 6


@dataclass(frozen=True, slots=True)
class Known:
    """A question of the catalogue. `stored_at`: monotonic seconds. `version` grows when its answer is replaced.
    `notes`: the verifier's, on the text.
    """

    id: str
    partition: str
    text: str
    stored_at: float
    version: int
    notes: Notes


@dataclass(frozen=True, slots=True)
class Near:
    """A known question, its vector, and its cosine similarity to the one that is asked, -1 to 1."""

    known: Known
    vector: Vector
    similarity: float


class Catalogue:
    """Known questions by id, at most `limit`, the oldest leave first. Its methods belong to the event loop.

    `namespace` is that of the embedder in use, None until it is known; a store that outlives this process keeps
    wordings of other embedders, and those are not wanted here. `first_look` is set before it, or never.
    """

    def __init__(self, limit: int) -> None:
        self.namespace: str | None = None
        self.first_look: FirstLook | None = None
        self._limit = limit
        self._known: dict[str, Known] = {}
        self._index = SimilarityIndex()

    def __len__(self) -> int:
        return len(self._known)

    @property
    def partitions(self) -> int:
        """How many partitions hold a question."""
        return self._index.partitions

    async def aclose(self) -> None:
        """Ends the search threads."""
        await self._index.aclose()
        if self.first_look is not None:
            await self.first_look.aclose()

    async def settled(self) -> None:
        """Waits until the index has taken in what was added."""
        await self._index.settled()
        if self.first_look is not None:
            await self.first_look.settled()

    def weight(self, wording: Wording) -> int:
        """Bytes that a question takes here, besides what every entry takes."""
        look = 0 if self.first_look is None else self.first_look.weight
        return (2 + NOTED) * len(wording.text) + int(wording.vector.nbytes * COPIES) + look

    def version(self, key: str) -> int | None:
        """The version of a known question; None where it is not known."""
        known = self._known.get(key)
        return None if known is None else known.version

    def ids(self) -> list[str]:
        """The ids of all known questions, oldest first."""
        return list(self._known)

    def add(self, key: str, partition: str, wording: Wording, stored_at: float, version: int = 0) -> None:
        """Adds or replaces a question. The vector is copied."""
        self.remove(key)
        self._known[key] = Known(key, partition, wording.text, stored_at, version, wording.notes)
        self._index.add(partition, key, wording.vector)
        if self.first_look is not None:
            self.first_look.add(key, partition, wording.text, wording.notes)
        while len(self._known) > self._limit:
            self.remove(next(iter(self._known)))

    def renew(self, key: str, stored_at: float, version: int) -> None:
        """The answer to a known question has been replaced."""
        known = self._known.pop(key)
        self._known[key] = replace(known, stored_at=stored_at, version=version)

    def remove(self, key: str) -> None:
        """Removes a question where it is known; it is found no more, also by a search that is under way."""
        known = self._known.pop(key, None)
        if known is not None:
            self._index.remove(known.partition, key)
        if self.first_look is not None:
            self.first_look.remove(key)

    def expire(self, before: float) -> None:
        """Removes the questions that were stored at or before `before`, as far as they are the oldest."""
        while self._known:
            known = next(iter(self._known.values()))
            if known.stored_at > before:
                return
            self.remove(known.id)

    async def nearest(self, partition: str, vector: Vector, count: int) -> list[Near]:
        """The `count` nearest questions of the partition, nearest first. Cancelling it abandons the search."""
        found = await self._index.nearest(partition, vector, count)
        return [Near(self._known[near.id], near.vector, near.similarity) for near in found if near.id in self._known]
