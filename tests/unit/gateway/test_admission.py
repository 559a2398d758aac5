"""The door of a tier: never more inside than allowed, the right one next, and nothing leaks."""

import asyncio
import random

import pytest

from core.config.records import Queue
from core.errors import Refused, Unavailable
from gateway.admission import Admission
from gateway.auth import Priority
from gateway.drain import DrainRate
from gateway.ticket import Ticket
from tests.clock import HandClock


def door(inside: int = 1, waiting: int = 8, wait: str = "5s", clock: HandClock | None = None) -> Admission:
    limits = Queue.model_validate({"max_inflight": inside, "max_waiting": waiting, "max_wait": wait})
    return Admission("small", limits, clock or HandClock())


def ticket(deadline: float | None = None, tenant: str = "t", priority: Priority = "normal") -> Ticket:
    return Ticket(tenant, priority, deadline)


async def serve(admission: Admission, clock: HandClock, seconds: float, times: int) -> None:
    """One request after another, each inside for so long."""
    for _ in range(times):
        one = ticket()
        await admission.admit(one)
        clock.now += seconds
        admission.leave(one, seconds)


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
    inside = ticket()
    await admission.admit(inside)
    waiter = asyncio.create_task(admission.admit(ticket()))
    await settled()
    # The turn is given and taken away before the waiter runs again.
    admission.leave(inside)
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
    await serve(admission, clock, 2.0, 6)
    inside = ticket()
    await admission.admit(inside)
    # One departure every two seconds: the next in line waits about two.
    assert admission.expected_wait() == pytest.approx(2.0, rel=0.3)
    with pytest.raises(Refused) as caught:
        await admission.admit(ticket(deadline=clock.now + 0.5))
    assert caught.value.reason == "deadline"
    waiter = asyncio.create_task(admission.admit(ticket(deadline=clock.now + 60)))
    await settled()
    assert admission.waiting == 1
    admission.leave(inside)
    await waiter


async def test_retry_after_is_the_queue_over_the_drain_rate() -> None:
    clock = HandClock()
    admission = door(waiting=4, clock=clock)
    await serve(admission, clock, 2.0, 6)
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


async def test_a_deadline_that_passed_while_queued_is_refused_at_its_turn() -> None:
    clock = HandClock()
    admission = door(clock=clock)
    inside = ticket()
    await admission.admit(inside)
    late = asyncio.create_task(admission.admit(ticket(deadline=clock.now + 60)))
    following = asyncio.create_task(admission.admit(ticket()))
    await settled()
    clock.now += 61
    admission.leave(inside)
    with pytest.raises(Refused) as caught:
        await late
    assert caught.value.reason == "deadline"
    await following
    assert (admission.inflight, admission.waiting) == (1, 0)


async def test_a_full_queue_makes_room_for_a_higher_priority_and_for_whoever_has_less() -> None:
    admission = door(waiting=3)
    await admission.admit(ticket())
    heavy = [asyncio.create_task(admission.admit(ticket(tenant="heavy"))) for _ in range(3)]
    await settled()
    with pytest.raises(Refused):
        await admission.admit(ticket(tenant="heavy"))
    light = asyncio.create_task(admission.admit(ticket(tenant="light")))
    await settled()
    assert [task.done() for task in heavy] == [False, False, True]
    with pytest.raises(Refused) as caught:
        await heavy[2]
    assert caught.value.reason == "queue_full"
    urgent = asyncio.create_task(admission.admit(ticket(tenant="heavy", priority="high")))
    await settled()
    assert [task.done() for task in heavy] == [False, True, True]
    with pytest.raises(Refused):
        await admission.admit(ticket(tenant="other", priority="low"))
    waiting = [*heavy, light, urgent]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert (admission.inflight, admission.waiting) == (1, 0)


async def test_a_tier_that_scales_from_zero_has_a_waiting_room() -> None:
    there = False
    limits = Queue.model_validate({"max_inflight": 2, "max_waiting": 3, "max_wait": "5s"})
    admission = Admission("small", limits, HandClock(), lambda: there, patient=True)
    tickets = [ticket() for _ in range(3)]
    waiting = [asyncio.create_task(admission.admit(one)) for one in tickets]
    await settled()
    assert (admission.inflight, admission.waiting) == (0, 3)
    admission.wake()
    assert admission.waiting == 3
    there = True
    admission.wake()
    await settled()
    assert (admission.inflight, admission.waiting) == (2, 1)
    # The servers go again: who leaves hands nothing over.
    there = False
    admission.leave(tickets[0])
    assert (admission.inflight, admission.waiting) == (1, 1)
    there = True
    admission.wake()
    await asyncio.gather(*waiting)


async def test_without_a_server_a_request_is_sent_away_at_once_or_after_max_wait() -> None:
    limits = Queue.model_validate({"max_wait": "1ms"})
    for patient in (False, True):
        admission = Admission("small", limits, HandClock(), lambda: False, patient=patient)
        with pytest.raises(Unavailable) as caught:
            await admission.admit(ticket())
        assert caught.value.reason == "no_replica"
        assert (admission.inflight, admission.waiting) == (0, 0)


def test_the_drain_rate_is_that_of_a_full_tier_and_forgets_what_is_long_ago() -> None:
    clock = HandClock()
    rate = DrainRate(clock, places=4)
    assert rate.per_second() is None
    rate.departed("normal", inside=2.0, tokens=1)
    # Nothing has left a full tier: four places, two seconds each.
    assert rate.per_second() == 2.0
    for _ in range(11):
        # Idle for an hour between the busy times: that says nothing about the speed.
        clock.now += 3600
        rate.filled()
        clock.now += 0.25
        rate.departed("normal", inside=2.0, tokens=1)
        rate.freed()
    assert rate.per_second() == pytest.approx(4.0)


def test_the_drain_rate_of_a_priority_is_what_the_higher_ones_leave() -> None:
    clock = HandClock()
    rate = DrainRate(clock, places=1)
    rate.filled()
    for _ in range(5):
        for priority in ("high", "normal", "normal", "low"):
            clock.now += 0.25
            rate.departed(priority, inside=0.25, tokens=1)
    found = [rate.per_second(priority) for priority in ("high", "normal", "low")]
    assert found == pytest.approx([4.0, 3.0, 1.0])
    clock.now += 95
    # It stands still: a hundred seconds for twenty departures.
    assert rate.per_second() == pytest.approx(0.2)


async def test_a_tier_whose_requests_all_came_to_nothing_still_refuses_with_a_time() -> None:
    clock = HandClock()
    admission = door(inside=2, clock=clock)
    failed = ticket()
    await admission.admit(failed)
    clock.now += 1.0
    failed.served = 0.0
    admission.leave(failed, 1.0)
    with pytest.raises(Refused) as caught:
        await admission.admit(ticket(deadline=clock.now))
    assert caught.value.retry_after == 1.0
