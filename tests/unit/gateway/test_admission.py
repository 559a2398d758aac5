"""The door of a tier: never more inside than allowed, first in first out, and nothing leaks."""

import asyncio
import random

import pytest

from core.config.records import Queue
from core.errors import Refused
from gateway.admission import Admission, DrainRate, Ticket


class HandClock:
    """Time that moves when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


def door(inside: int = 1, waiting: int = 8, wait: str = "5s", clock: HandClock | None = None) -> Admission:
    limits = Queue.model_validate({"max_inflight": inside, "max_waiting": waiting, "max_wait": wait})
    return Admission("small", limits, clock or HandClock())


def ticket(deadline: float | None = None) -> Ticket:
    return Ticket("t", "normal", deadline)


async def settled() -> None:
    """Let every task run as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_waiters_come_in_first_in_first_out() -> None:
    admission, order = door(), []

    async def pass_through(number: int) -> None:
        async with admission.enter(ticket()):
            order.append(number)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(pass_through(number))
    assert order == list(range(6))
    assert admission.inflight == admission.waiting == 0


async def test_a_cancelled_waiter_leaves_no_trace_even_with_its_turn_in_hand() -> None:
    admission = door()
    await admission.admit(ticket())
    waiter = asyncio.create_task(admission.admit(ticket()))
    await settled()
    # The turn is given and taken away before the waiter runs again.
    admission.leave()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert admission.inflight == admission.waiting == 0


async def test_a_full_queue_and_a_passed_deadline_refuse_at_once() -> None:
    clock = HandClock()
    admission = door(waiting=0, clock=clock)
    with pytest.raises(Refused) as caught:
        await admission.admit(ticket(deadline=clock.now - 0.1))
    assert caught.value.reason == "deadline"
    await admission.admit(ticket())
    with pytest.raises(Refused) as caught:
        await admission.admit(ticket())
    assert (caught.value.reason, caught.value.retry_after) == ("queue_full", 1.0)
    assert admission.inflight == 1


async def test_a_deadline_that_the_queue_cannot_meet_is_refused_on_entry() -> None:
    clock = HandClock()
    admission = door(waiting=8, clock=clock)
    for _ in range(6):
        await admission.admit(ticket())
        clock.now += 2.0
        admission.leave()
    await admission.admit(ticket())
    # One departure every two seconds: the next in line waits about two.
    assert admission.expected_wait() == pytest.approx(2.0, rel=0.3)
    with pytest.raises(Refused) as caught:
        await admission.admit(ticket(deadline=clock.now + 0.5))
    assert caught.value.reason == "deadline"
    waiter = asyncio.create_task(admission.admit(ticket(deadline=clock.now + 60)))
    await settled()
    assert admission.waiting == 1
    admission.leave()
    await waiter


async def test_retry_after_is_the_queue_over_the_drain_rate() -> None:
    clock = HandClock()
    admission = door(waiting=4, clock=clock)
    for _ in range(6):
        await admission.admit(ticket())
        clock.now += 2.0
        admission.leave()
    await admission.admit(ticket())
    waiters = [asyncio.create_task(admission.admit(ticket())) for _ in range(4)]
    await settled()
    with pytest.raises(Refused) as caught:
        await admission.admit(ticket())
    assert caught.value.retry_after == pytest.approx(5 * 2.0, rel=0.3)
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)
    assert (admission.inflight, admission.waiting) == (1, 0)


async def test_waiting_ends_after_max_wait() -> None:
    admission = door(wait="1ms")
    await admission.admit(ticket())
    late = ticket()
    with pytest.raises(Refused) as caught:
        await admission.admit(late)
    assert caught.value.reason == "queue_timeout"
    assert admission.waiting == 0


async def test_under_any_mix_of_leaving_and_cancelling_the_counts_hold() -> None:
    source = random.Random(7)
    admission = door(inside=3, waiting=5)
    most = 0

    async def one() -> None:
        nonlocal most
        try:
            async with admission.enter(ticket()):
                most = max(most, admission.inflight)
                for _ in range(source.randrange(4)):
                    await asyncio.sleep(0)
        except Refused:
            pass

    tasks = []
    for _ in range(400):
        tasks.append(asyncio.create_task(one()))
        if source.random() < 0.3:
            source.choice(tasks).cancel()
        if source.random() < 0.5:
            await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert most == 3
    assert admission.inflight == admission.waiting == 0


def test_the_drain_rate_forgets_what_is_long_ago() -> None:
    clock = HandClock()
    rate = DrainRate(clock)
    assert rate.per_second() is None
    for _ in range(11):
        rate.departed()
        clock.now += 0.5
    assert rate.per_second() == pytest.approx(2.0, rel=0.15)
    clock.now += 100
    assert rate.per_second() is None
