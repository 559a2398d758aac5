"""Is any stored question near enough that the full embedding is worth its time?

Of the questions that people ask, most have no near neighbour in the cache. A static vector costs a hundredth of an
embedding; where no stored question reaches a similarity that nearly all pairs with one answer reach, the semantic layer
would find nothing. A wrong guess here costs a miss, never a wrong answer: what is served is decided as always.
"""

from cache.index import SimilarityIndex
from core.glance import Glance

# In a longer text, in characters, the mean of the tokens says little: it is not looked at first.
LONGEST = 2000
# Rows read per search: any near question will do, so that the nearest one may be missed.
READ_ROWS = 1500


class FirstLook:
    """Static vectors of stored questions, by id. Its methods belong to the event loop."""

    def __init__(self, glance: Glance, least: float) -> None:
        self._glance, self._least = glance, least
        self._index = SimilarityIndex(read=READ_ROWS)
        self._partitions: dict[str, str] = {}

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

    def add(self, key: str, partition: str, text: str) -> None:
        """Adds a question; one that is there stays as it is."""
        if key not in self._partitions:
            self._index.add(partition, key, self._glance.vector(text[:LONGEST]))
            self._partitions[key] = partition

    def remove(self, key: str) -> None:
        """Removes a question, where it is there."""
        partition = self._partitions.pop(key, None)
        if partition is not None:
            self._index.remove(partition, key)

    async def promising(self, partition: str, text: str) -> bool:
        """Whether a question of the partition may be near the text. Cancelling it abandons the search."""
        if not self._index.holds(partition):
            return False
        if len(text) > LONGEST:
            return True
        nearest = await self._index.nearest(partition, self._glance.vector(text), 1)
        return bool(nearest) and nearest[0].similarity >= self._least
