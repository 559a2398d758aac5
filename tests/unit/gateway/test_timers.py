"""Timers of requests share those of the event loop: each is called once, not before its time, not when discarded."""

import asyncio

from gateway.timers import TICK, Timers


class Noting:
    """Notes when it is called, and does something more then."""

    def __init__(self) -> None:
        self.called: list[float] = []
        self.discards: tuple[set[object], object] | None = None

    def late(self) -> None:
        self.called.append(asyncio.get_running_loop().time())
        if self.discards is not None:
            group, other = self.discards
            group.discard(other)


class CountingLoop:
    """Stands in for the loop: keeps what it is to call."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, object, tuple[object, ...]]] = []

    def call_later(self, delay: float, callback: object, *args: object) -> None:
        self.calls.append((delay, callback, args))


async def test_each_is_called_once_and_not_before_its_time() -> None:
    timers, loop = Timers(), asyncio.get_running_loop()
    soon, later = Noting(), Noting()
    began = loop.time()
    timers.add(loop, began, began + 0.01, soon)
    timers.add(loop, began, began + 3 * TICK, later)
    await asyncio.sleep(8 * TICK)
    assert [len(soon.called), len(later.called)] == [1, 1]
    # The loop itself may be early by its own resolution.
    assert soon.called[0] - began >= 0.01 - 0.002
    assert later.called[0] - began >= 3 * TICK - 0.002


async def test_one_that_was_discarded_is_not_called_even_by_another_of_the_same_moment() -> None:
    timers, loop = Timers(), asyncio.get_running_loop()
    now = loop.time()
    one, other, gone = Noting(), Noting(), Noting()
    group = timers.add(loop, now, now, one)
    timers.add(loop, now, now, other)
    timers.add(loop, now, now, gone).discard(gone)
    # Whichever is called first discards the other.
    one.discards, other.discards = (group, other), (group, one)  # type: ignore[assignment]
    await asyncio.sleep(3 * TICK)
    assert len(one.called) + len(other.called) == 1
    assert gone.called == []


def test_those_of_one_moment_cost_the_loop_one_timer() -> None:
    timers, loop = Timers(), CountingLoop()
    for number in range(1000):
        timers.add(loop, 100.0, 160.01 + number * TICK / 2000, Noting())  # type: ignore[arg-type]
    assert len(loop.calls) == 1
    timers.add(loop, 100.0, 161.01, Noting())  # type: ignore[arg-type]
    assert len(loop.calls) == 2
    for delay, _, _ in loop.calls:
        assert 60.01 < delay <= 61.01 + TICK


def test_a_moment_that_is_over_is_the_next_one() -> None:
    timers, loop = Timers(), CountingLoop()
    timers.add(loop, 100.01, 3.0, Noting())  # type: ignore[arg-type]
    assert 0.0 < loop.calls[0][0] <= TICK
