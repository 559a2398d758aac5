"""Blocks that prefill replicas keep although nobody will read them."""

from collections import deque

from core.clock import Clock


class Orphans:
    """Counts them until their lease ends, when the prefill side frees them by itself."""

    def __init__(self, lease: float, clock: Clock) -> None:
        self._lease, self._clock = lease, clock
        self._left: deque[tuple[float, int]] = deque()

    def add(self, blocks: int) -> None:
        """So many were left behind."""
        if blocks:
            self._left.append((self._clock.monotonic() + self._lease, blocks))

    @property
    def blocks(self) -> int:
        """Those whose lease has not ended."""
        now = self._clock.monotonic()
        while self._left and self._left[0][0] <= now:
            self._left.popleft()
        return sum(blocks for _, blocks in self._left)
