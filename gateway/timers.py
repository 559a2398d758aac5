"""One timer of the event loop for all requests whose time is up at about the same moment."""

import asyncio
from typing import Protocol

# Moments are kept apart by so many seconds, and nobody is called later than that after their time.
TICK = 0.05


class Timed(Protocol):
    """Something that is called when its time is up."""

    def late(self) -> None: ...


class Timers:
    """Nearly every timer of a request is cancelled: setting one costs a place in a set here, and cancelling it as well.

    A timer of the event loop costs several times as much. `add` gives the set from which `what` is to be discarded when
    it need not be called any more.
    """

    def __init__(self) -> None:
        self._due: dict[int, set[Timed]] = {}

    def add(self, loop: asyncio.AbstractEventLoop, now: float, at: float, what: Timed) -> set[Timed]:
        """Call `what` on this loop when the second `at` has come, `now` being the present one."""
        number = int(max(at, now) / TICK) + 1
        due = self._due.get(number)
        if due is None:
            due = self._due[number] = set()
            loop.call_later(number * TICK - now, self._fire, number)
        due.add(what)
        return due

    def _fire(self, number: int) -> None:
        due = self._due.pop(number)
        while due:
            # One that is called may discard others.
            due.pop().late()
