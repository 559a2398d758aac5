"""Ending a block from outside, and the limits of waiting for a tier."""

import asyncio

import pytest

from core.clock import SystemClock
from core.config.records import Timeout
from core.errors import UpstreamTimeout
from gateway.interrupt import ClientGone, Interruptible
from gateway.patience import Patience
from gateway.timers import Timers
from tests.clock import HandClock


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def tripped(*causes: BaseException, waits: bool = True) -> Interruptible:
    """A block that is tripped inside, and then waits or ends."""
    async with Interruptible() as block:
        for cause in causes:
            block.trip(cause)
        if waits:
            await forever()
    return block


async def test_a_trip_ends_the_wait_with_its_cause_and_leaves_the_task_as_it_was() -> None:
    with pytest.raises(ClientGone):
        await tripped(ClientGone())
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_only_the_first_trip_counts() -> None:
    with pytest.raises(ClientGone):
        await tripped(ClientGone(), RuntimeError("too late"))


async def test_a_trip_in_the_last_turn_still_counts_and_does_not_leak() -> None:
    with pytest.raises(ClientGone):
        await tripped(ClientGone(), waits=False)
    await asyncio.sleep(0)


async def test_a_trip_after_the_block_does_nothing() -> None:
    block = await tripped(waits=False)
    block.trip(RuntimeError("after the block"))
    await asyncio.sleep(0)


async def test_a_cancellation_from_elsewhere_stays_one() -> None:
    async def work() -> None:
        async with Interruptible():
            await forever()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def waiting(limits: Timeout, *, content: bool) -> None:
    """Waits for ever for a tier, before or after its first content."""
    async with Interruptible() as block:
        patience = Patience(block, limits, SystemClock(), Timers())
        patience.begin()
        if content:
            patience.got()
            patience.content()
            patience.wait()
        try:
            await forever()
        finally:
            patience.end()


@pytest.mark.parametrize("name", ["first_token", "idle", "total"])
async def test_each_limit_ends_its_own_wait(name: str) -> None:
    limits = Timeout.model_validate({"first_token": "10s", "idle": "10s", "total": "10s", name: "20ms"})
    with pytest.raises(UpstreamTimeout) as caught:
        await waiting(limits, content=name == "idle")
    assert f"timeout.{name}" in caught.value.message


async def test_a_client_that_does_not_read_is_not_the_tier_being_idle() -> None:
    limits = Timeout.model_validate({"idle": "10ms"})
    async with Interruptible() as block:
        patience = Patience(block, limits, SystemClock(), Timers())
        patience.begin()
        patience.got()
        patience.content()
        # Longer than idle and a tick of the timers, but nothing of the tier is waited for.
        await asyncio.sleep(0.15)
        patience.end()
    assert block.cause is None


async def test_waiting_is_added_up() -> None:
    async with Interruptible() as block:
        patience = Patience(block, Timeout(), SystemClock(), Timers())
        patience.begin()
        await asyncio.sleep(0.01)
        patience.got()
        first = patience.waited
        await asyncio.sleep(0.01)
        assert patience.waited == first
        patience.wait()
        await asyncio.sleep(0.01)
        patience.got()
        assert patience.waited > first
        patience.end()


@pytest.mark.parametrize(
    ("came", "waited"),
    [(None, 0.5), (100.2, 0.2), (99.0, 0.0)],
    ids=["not known", "before its turn", "before the wait"],
)
async def test_what_has_come_waits_for_its_turn_and_not_for_the_tier(came: float | None, waited: float) -> None:
    clock = HandClock(100.0)
    async with Interruptible() as block:
        patience = Patience(block, Timeout(), clock, Timers())
        patience.begin()
        clock.now += 0.5
        # The present is what it returns: the next wait begins there.
        assert patience.got(came) == clock.now
        assert patience.waited == pytest.approx(waited)
        patience.wait()
        clock.now += 0.25
        patience.again(None if came is None else clock.now)
        assert patience.waited == pytest.approx(waited + 0.25)
        patience.end()


@pytest.mark.parametrize(
    ("wait", "waited"), [(0.5, 0.8), (0.0, 0.0)], ids=["the tier is behind", "the next piece was there"]
)
async def test_work_on_a_piece_delays_nobody_where_the_next_one_is_still_to_come(wait: float, waited: float) -> None:
    clock = HandClock(100.0)
    async with Interruptible() as block:
        patience = Patience(block, Timeout(), clock, Timers())
        patience.begin()
        came = patience.got()
        clock.now += 0.3
        patience.work = patience.wait() - came
        clock.now += wait
        patience.got()
        assert patience.waited == pytest.approx(waited)
        # Counted once.
        clock.now += 1.0
        patience.wait()
        clock.now += 0.1
        patience.got()
        assert patience.waited == pytest.approx(waited + 0.1)
        patience.end()
