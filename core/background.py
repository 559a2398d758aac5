"""Work in the background that ends with its owner."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class Background:
    """Tasks with one life: `start` begins one, `aclose` ends those that run.

    A task that has ended is forgotten; what it raised is reported by asyncio, as for any task that nobody awaits. It
    belongs to one event loop.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """How many run. One that has ended counts no more, also before it is forgotten."""
        return sum(not task.done() for task in self._tasks)

    def start(self, work: Coroutine[Any, Any, Result], name: str) -> asyncio.Task[Result]:
        """Begin a task; `name` is for people who look at what runs."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def settled(self) -> None:
        """Wait until nothing runs, also what is begun meanwhile."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def aclose(self) -> None:
        """Cancel what runs, and wait for its end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
