"""Room on the decode side, taken before a prompt is prefilled elsewhere."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """So many sequences of the engine, first come first served.

    A request has its slot before the prefill leg begins, so the engine never queues one whose blocks are pinned.
    """

    def __init__(self, count: int) -> None:
        self._count, self.used = count, 0
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        """Requests in line."""
        return len(self._line)

    @asynccontextmanager
    async def take(self, sequences: int, within: float) -> AsyncIterator[None]:
        """Room for so many sequences for the block. Raises TimeoutError where there is none in time.

        A request for more than there are takes all.
        """
        wanted = min(sequences, self._count)
        if self._line or self.used + wanted > self._count:
            await self._wait(wanted, within)
        else:
            self.used += wanted
        try:
            yield
        finally:
            self.used -= wanted
            self._admit()

    async def _wait(self, wanted: int, within: float) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (wanted, turn)
        self._line.append(place)
        try:
            async with asyncio.timeout(within):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.used -= wanted
            else:
                self._line.remove(place)
            self._admit()
            raise

    def _admit(self) -> None:
        while self._line and self.used + self._line[0][0] <= self._count:
            wanted, turn = self._line.popleft()
            self.used += wanted
            turn.set_result(None)
