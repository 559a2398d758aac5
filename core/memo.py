"""What was worked out for a few keys, kept."""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Memo(dict[K, V]):
    """A dict of at most `most` entries, filled by `keep` and read like any other.

    When it is full it is emptied: the keys that come again are back after one miss each, and no reading pays for an
    order of use.
    """

    __slots__ = ("most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def keep(self, key: K, value: V) -> V:
        """Remember and return the value."""
        if len(self) >= self.most and key not in self:
            self.clear()
        self[key] = value
        return value
