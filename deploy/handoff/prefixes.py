"""Which prompts the engine has seen, by blocks, as its prefix cache keeps them: a guess without asking it."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence


class Prefixes:
    """Remembers so many blocks of prompts, the least recently used dropped first.

    `salt` keeps apart what engines keep apart: adapters and cache salts. A wrong guess costs time, never a wrong
    answer: the engine looks for itself.
    """

    def __init__(self, block_size: int, capacity: int) -> None:
        self._size, self._capacity = block_size, capacity
        self._seen: OrderedDict[int, None] = OrderedDict()

    def known(self, tokens: Sequence[int], salt: str) -> int:
        """Tokens at the start of this prompt that are likely in the prefix cache."""
        count = 0
        for key in self._keys(tokens, salt):
            if key not in self._seen:
                break
            count += self._size
        return count

    def remember(self, tokens: Sequence[int], salt: str) -> None:
        """The engine has the KV of this prompt."""
        for key in self._keys(tokens, salt):
            self._seen[key] = None
            self._seen.move_to_end(key)
        while len(self._seen) > self._capacity:
            self._seen.popitem(last=False)

    def _keys(self, tokens: Sequence[int], salt: str) -> Iterator[int]:
        key = hash(salt)
        for start in range(0, len(tokens) - self._size + 1, self._size):
            key = hash((key, tuple(tokens[start : start + self._size])))
            yield key
