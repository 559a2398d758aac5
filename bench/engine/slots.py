"""The scripted engine's capacity: so many requests run, the rest wait in line."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Slots:
    """First come, first served. `limit` None is unlimited; a changed limit holds for requests that come later.

    `changed` is called when a request got into line, or left line or slot.
    """

    def __init__(self, limit: int | None, changed: Callable[[], None]) -> None:
        self.limit, self._changed = limit, changed
        self.running = 0
        self._line: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """Requests in line."""
        return len(self._line)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Waits for a slot and keeps it for the block; leaving the line early is no harm."""
        if self.limit is not None and self.running >= self.limit:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._line.append(turn)
            self._changed()
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._release()
                else:
                    self._line.remove(turn)
                    self._changed()
                raise
        else:
            self.running += 1
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        if self._line:
            # The slot changes hands and stays taken.
            self._line.popleft().set_result(None)
        else:
            self.running -= 1
        self._changed()
