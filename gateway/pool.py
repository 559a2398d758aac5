"""The metrics of all workers as one: those that run are asked, those that ended are read from what they left.

Counters must not fall when a worker dies, or every rate over them would jump: each worker writes its numbers down every
second, and the one that takes its place goes on from them.
"""

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import orjson
from pydantic import JsonValue

from gateway.metrics import Metrics, Snapshot, pooled
from gateway.siblings import Family, Question, Siblings

logger = logging.getLogger("forebay.workers")

# Seconds between two records: so much is lost of a worker that is killed.
INTERVAL = 1.0
ENTRIES = "forebay_cache_entries"


class MetricsPool:
    """An async context manager that keeps the record of this worker while it is open.

    `shared_cache`: all workers count the entries of the same store.
    """

    def __init__(self, metrics: Metrics, siblings: Siblings, *, shared_cache: bool) -> None:
        self._metrics, self.siblings, self._shared_cache = metrics, siblings, shared_cache
        self._folder = siblings.folder if isinstance(siblings, Family) else None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._folder is not None:
            self._metrics.absorb(_recorded(self._folder, self.siblings.number), gauges=False)
            self._task = asyncio.create_task(self._keep(self._folder), name="metrics record")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is None or self._folder is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._record(self._folder)

    async def answer(self, _: Question) -> JsonValue:
        """What another worker's scrape gets from this one."""
        return cast("JsonValue", self._metrics.snapshot())

    async def render(self) -> bytes:
        """The exposition text of all workers."""
        folder = self._folder
        if folder is None:
            # Milliseconds with many label values: streams must not stand still meanwhile.
            return await asyncio.to_thread(self._metrics.render)
        answers = cast("dict[int, Snapshot]", await self.siblings.ask("metrics"))
        mine = self._metrics.snapshot()

        def render() -> bytes:
            total = pooled([mine])
            for number in range(self.siblings.count):
                if number in answers:
                    found = answers[number]
                    if self._shared_cache:
                        found.pop(ENTRIES, None)
                    total.absorb(found)
                elif number != self.siblings.number:
                    total.absorb(_recorded(folder, number), gauges=False)
            return total.render()

        return await asyncio.to_thread(render)

    async def _keep(self, folder: Path) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            self._record(folder)

    def _record(self, folder: Path) -> None:
        path = _path(folder, self.siblings.number)
        fresh = path.with_suffix(".new")
        with contextlib.suppress(OSError):
            fresh.write_bytes(orjson.dumps(self._metrics.snapshot()))
            # Whoever reads sees the old record or the new one.
            os.replace(fresh, path)  # noqa: PTH105  # the same, and says what it does


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number}.metrics"


def _recorded(folder: Path, number: int) -> Snapshot:
    """What the worker with this number has counted as far as it was written down."""
    try:
        found: Snapshot = orjson.loads(_path(folder, number).read_bytes())
    except (OSError, ValueError):
        return {}
    return found
