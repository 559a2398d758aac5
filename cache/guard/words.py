"""Static vectors of common English words, distilled from the embedding model: how near two words are."""

import importlib.resources
import io
from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

WORDS_FILE = "words.npz"
# Texts whose stack is remembered: 3 MB.
STACKS = 1024


class WordTable:
    """Words (lower case, most frequent first) with unit vectors.

    `words`: n names; `codes`: int8, shape (n, dim). The rank of a word stands for its rarity.
    """

    def __init__(self, words: Sequence[str], codes: NDArray[np.int8]) -> None:
        vectors = codes.astype(np.float32)
        units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        # The last row stands for every unknown word.
        self._vectors = np.concatenate([units, np.zeros((1, units.shape[1]), dtype=np.float32)])
        self._words = tuple(words)
        self._rows = {word: row for row, word in enumerate(words)}
        # Zipf: the surprise of a word grows with the logarithm of its rank; an unknown word is the rarest.
        ranks = np.log1p(np.arange(len(words)) / 100)
        weights: list[float] = (0.3 + 0.7 * ranks / ranks[-1]).tolist()
        self._weights = dict(zip(words, weights, strict=True))
        # A question is compared with several others.
        self.whole = lru_cache(STACKS)(self.stack)

    def __contains__(self, word: object) -> bool:
        return word in self._rows

    def weight(self, word: str) -> float:
        """How much a word says, 0.3 to 1."""
        return self._weights.get(word, 1.0)

    def total(self, words: Sequence[str]) -> float:
        """The weight of all of them."""
        weights = self._weights
        return sum([weights.get(word, 1.0) for word in words])

    def neighbours(self, word: str, count: int) -> list[str]:
        """The `count` nearest other words, nearest first; for making training data."""
        row = self._rows.get(word)
        if row is None:
            return []
        order = np.argsort(-(self._vectors[:-1] @ self._vectors[row]))[1 : count + 1]
        return [self._words[at] for at in order]

    def stack(self, words: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors, shape (len(words), dim); 0 where a word is unknown. The products of two stacks are cosines."""
        known = self._rows
        rows: NDArray[np.float32] = self._vectors[[known.get(word, -1) for word in words]]
        return rows


@cache
def word_table() -> WordTable:
    """The packaged table."""
    data = importlib.resources.files("cache.guard").joinpath(WORDS_FILE).read_bytes()
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return WordTable(bytes(arrays["words"]).decode().split("\n"), arrays["codes"])
