"""What may end a request from outside while it waits: the client leaving, or the tier taking too long."""

import asyncio
from types import TracebackType
from typing import Any, Protocol, Self


class ClientGone(Exception):  # not a fault of ours: the client closed its connection
    """The client closed its connection before its answer was complete."""


class Trippable(Protocol):
    """What can be ended from outside, with the cause. `trip` returns at once; only the first call counts."""

    def trip(self, cause: BaseException) -> None: ...


class Interruptible:
    """A block that `trip` ends with an exception of its own, wherever it waits.

    Works as asyncio.timeout does: the task is cancelled, and on the way out the cancellation becomes the exception.
    `task` is the one that runs the block, where the caller knows it. A cancellation from elsewhere passes unchanged.
    Only the first trip counts; after the block, trips do nothing.
    """

    __slots__ = ("_cancelling", "_open", "_task", "cause")

    def __init__(self, task: "asyncio.Task[Any] | None" = None) -> None:
        self.cause: BaseException | None = None
        self._task = task
        self._cancelling = 0
        self._open = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the block. Its task knows it; asking for the running one is a system call."""
        return asyncio.get_running_loop() if self._task is None else self._task.get_loop()

    def trip(self, cause: BaseException) -> None:
        """End the block with `cause`."""
        if self._open and self.cause is None and self._task is not None:
            self.cause = cause
            self._task.cancel()

    async def __aenter__(self) -> Self:
        if self._task is None:
            self._task = asyncio.current_task()
        if self._task is not None:
            self._cancelling = self._task.cancelling()
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        if self.cause is None or self._task is None:
            return
        if kind is None:
            # The block ended in the same turn of the loop: the cancellation is still to come, take it here.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                kind = asyncio.CancelledError
        if self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise self.cause from None
