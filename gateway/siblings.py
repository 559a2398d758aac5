"""The worker processes of one gateway as they see each other: each answers questions of the others over a Unix socket.

A question is one line of JSON, its answer another, and the connection ends. Only processes of the same user reach the
folder.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import orjson
from pydantic import JsonValue

logger = logging.getLogger("forebay.workers")

# How long another worker is waited for, in seconds: one that hangs must not hang a scrape.
PATIENCE = 2.0
# The longest answer, in bytes: the metrics of a thousand tenants are a tenth of it.
LONGEST = 16 * 1024**2
Question = Mapping[str, JsonValue]
Answering = Callable[[Question], Awaitable[JsonValue]]


class Siblings(Protocol):
    """The other workers.

    `ask` gives the answers of those that answer in time, by their numbers; it never raises. `answering` says who
    answers the questions of the others.
    """

    number: int
    count: int

    async def ask(self, what: str, **details: JsonValue) -> dict[int, JsonValue]: ...

    def answering(self, answers: Mapping[str, Answering]) -> None: ...


class Alone:
    """The only worker."""

    number, count = 0, 1

    async def ask(self, what: str, **details: JsonValue) -> dict[int, JsonValue]:
        """Nobody answers."""
        del what, details
        return {}

    def answering(self, answers: Mapping[str, Answering]) -> None:
        """Nobody asks."""


class Family:
    """One of several workers. An async context manager that listens while it is open.

    `folder`: where the sockets of all workers are, short enough for an address. `number`: from 0 to `count` - 1.
    """

    def __init__(self, folder: Path, number: int, count: int) -> None:
        self.folder, self.number, self.count = folder, number, count
        self._answers: Mapping[str, Answering] = {}
        self._server: asyncio.Server | None = None
        self._asked: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        path = self._path(self.number)
        # Of the worker that had the number before.
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, path, limit=LONGEST)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._asked:
            task.cancel()
        await asyncio.gather(*self._asked, return_exceptions=True)
        self._path(self.number).unlink(missing_ok=True)

    def answering(self, answers: Mapping[str, Answering]) -> None:
        """These answer the questions of the others."""
        self._answers = answers

    async def ask(self, what: str, **details: JsonValue) -> dict[int, JsonValue]:
        """The answers of the others, by their numbers."""
        question = orjson.dumps({**details, "what": what}) + b"\n"
        others = [number for number in range(self.count) if number != self.number]
        answers = await asyncio.gather(*(self._one(number, question) for number in others))
        return {number: answer[0] for number, answer in zip(others, answers, strict=True) if answer}

    async def _one(self, number: int, question: bytes) -> list[JsonValue]:
        """The answer of one worker in a list; an empty one where there is none."""
        try:
            async with asyncio.timeout(PATIENCE):
                reader, writer = await asyncio.open_unix_connection(self._path(number), limit=LONGEST)
                try:
                    writer.write(question)
                    line = await reader.readline()
                finally:
                    writer.close()
            return [orjson.loads(line)] if line else []
        except (OSError, ValueError) as error:
            logger.info("worker %d did not answer: %s: %s", number, type(error).__name__, error)
            return []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._asked.add(task)
            task.add_done_callback(self._asked.discard)
        try:
            async with asyncio.timeout(PATIENCE):
                question = orjson.loads(await reader.readline())
                answering = self._answers.get(question["what"])
                if answering is not None:
                    writer.write(orjson.dumps(await answering(question)) + b"\n")
                    await writer.drain()
        except (OSError, ValueError, KeyError) as error:
            logger.warning("a question of another worker got no answer: %s: %s", type(error).__name__, error)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.sock"
