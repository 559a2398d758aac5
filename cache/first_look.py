"""Could any stored question have the answer? If not, the full embedding is not worth its time.

Of the questions that people ask, most have no answer in the cache. A static vector costs a hundredth of an embedding.
The stored questions that are nearest by it are looked at as the guard looks at them; where it would refuse every one of
them, the semantic layer would find nothing. A wrong guess here costs a miss, never a wrong answer: what is served is
decided as always.
"""

from dataclasses import dataclass

from cache.index import SimilarityIndex
from cache.verdict import Foresight, Notes
from core.glance import Glance

# In a longer text, in characters, the mean of the tokens says little: it is not looked at first.
LONGEST = 2000
# Rows read per search, and stored questions that are looked at, nearest first.
READ_ROWS, LOOKED_AT = 6000, 3
# What a question costs besides its vector: objects, dictionary slots, codes (measured, rounded up).
OVERHEAD = 500


@dataclass(frozen=True, slots=True)
class _Seen:
    partition: str
    text: str
    notes: Notes


class FirstLook:
    """Static vectors of stored questions, by id. Its methods belong to the event loop.

    `least`: the likeness that a hopeful question has where there is no `foresight`.
    """

    def __init__(self, glance: Glance, least: float, foresight: Foresight | None = None) -> None:
        self._glance, self._foresight = glance, foresight
        self._least = least if foresight is None else foresight.likeness
        self._index = SimilarityIndex(read=READ_ROWS)
        self._seen: dict[str, _Seen] = {}

    @property
    def weight(self) -> int:
        """Bytes that a question takes here."""
        return OVERHEAD + 4 * self._glance.dim

    def renew(self, threshold: float) -> None:
        """The cache demands another similarity from here on."""
        least = self._glance.least(threshold)
        # Where that was not measured, every question may be near.
        self._least = -1.0 if least is None else least

    async def aclose(self) -> None:
        """Ends the search threads."""
        await self._index.aclose()

    async def settled(self) -> None:
        """Waits until the index has taken in what was added."""
        await self._index.settled()

    def add(self, key: str, partition: str, text: str, notes: Notes) -> None:
        """Adds a question, and the place for notes on it; one that is there stays as it is."""
        if key not in self._seen:
            self._index.add(partition, key, self._glance.vector(text[:LONGEST]))
            self._seen[key] = _Seen(partition, text, notes)

    def notes(self, key: str) -> Notes | None:
        """The notes on a question; None where it is not there."""
        seen = self._seen.get(key)
        return None if seen is None else seen.notes

    def remove(self, key: str) -> None:
        """Removes a question, where it is there."""
        seen = self._seen.pop(key, None)
        if seen is not None:
            self._index.remove(seen.partition, key)

    async def promising(self, partition: str, text: str) -> bool:
        """Whether a question of the partition may have the answer to this one. Cancelling it abandons the search."""
        if not self._index.holds(partition):
            return False
        if len(text) > LONGEST:
            return True
        for near in await self._index.nearest(partition, self._glance.vector(text), LOOKED_AT):
            if near.similarity < self._least:
                return False
            seen = self._seen.get(near.id)
            if seen is not None and self._hopeful(text, seen, near.similarity):
                return True
        return False

    def prepare(self, partition: str, text: str) -> None:
        """Compare the text with the nearest questions of the partition, where that can be done at once."""
        if self._foresight is None or len(text) > LONGEST:
            return
        for near in self._index.at_once(partition, self._glance.vector(text), LOOKED_AT) or ():
            seen = self._seen.get(near.id)
            if seen is not None and near.similarity >= self._least:
                self._hopeful(text, seen, near.similarity)

    def _hopeful(self, asked: str, stored: _Seen, likeness: float) -> bool:
        return self._foresight is None or self._foresight.hopeful(asked, stored.text, likeness, stored.notes)
