"""Flights without sockets: what each reader gets, and when the call ends, in any order of events."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.answer import Hit
from core.clock import SystemClock
from core.errors import UpstreamTimeout
from gateway import flight as module
from gateway.flight import Flight, Flights, Follower
from gateway.interrupt import ClientGone, Interruptible

KEY = ("tenant", "fingerprint", "normal")
ANSWER = Hit("id", 0.0, b"{}", "exact", 1.0, "small")


@dataclass
class Call:
    """A flight by hand: what was relayed, and who reads."""

    flights: Flights
    flight: Flight
    block: Interruptible
    relayed: list[bytes] = field(default_factory=list)
    readers: list[tuple[Follower, int]] = field(default_factory=list)

    def join(self) -> None:
        follower = self.flights.join(KEY, Interruptible(), stream=True, usage=False)
        if follower is not None:
            self.readers.append((follower, 0))

    def push(self) -> None:
        if self.block.cause is None:
            self.relayed.append(b"%d " % len(self.relayed))
            self.flight.push(self.relayed[-1])


STEPS = st.lists(st.sampled_from(["join", "push", "push", "leave", "take", "leader leaves"]), max_size=30)


async def run(steps: list[str], lands: bool) -> None:
    flights = Flights(SystemClock())
    try:
        async with Interruptible() as block:
            with flights.lead(KEY, block) as flight:
                call = Call(flights, flight, block)
                flight.dispatched("small")
                flight.begin(lambda: b"".join(call.relayed))
                taken: dict[Follower, bytes] = {}
                gone = False
                for step in steps:
                    waiting = [reader for reader, _ in call.readers]
                    if step == "join":
                        call.join()
                    elif step == "push":
                        call.push()
                    elif step == "leave" and waiting:
                        call.readers.pop(0)[0].leave()
                    elif step == "take" and waiting and waiting[-1].size:
                        taken[waiting[-1]] = taken.get(waiting[-1], b"") + await waiting[-1].take()
                    elif step == "leader leaves" and not gone:
                        gone = True
                        flight.trip(ClientGone())
                    # The call ends exactly when nobody waits any more.
                    assert (block.cause is not None) == (gone and not call.readers)
                    if block.cause is not None:
                        break
                if block.cause is None and lands:
                    flight.land(ANSWER, usage=b"usage", last=b"last")
                    for reader, _ in call.readers:
                        got = taken.get(reader, b"")
                        while not reader.done:
                            got += await reader.take()
                        # Whenever it joined, it has everything, once, in order.
                        assert got == b"".join(call.relayed) + b"last"
    except ClientGone:
        pass
    assert len(flights) == 0


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, lands=st.booleans())
def test_every_reader_gets_everything_once_and_the_call_lives_as_long_as_somebody_waits(
    steps: list[str], lands: bool
) -> None:
    asyncio.run(run(steps, lands))


async def test_what_interrupts_the_leader_is_told_to_the_followers() -> None:
    flights = Flights(SystemClock())
    timeout = UpstreamTimeout("too long")
    told: list[Follower | None] = []

    async def lead() -> None:
        async with Interruptible() as block:
            with flights.lead(KEY, block):
                told.append(flights.join(KEY, Interruptible(), stream=False, usage=False))
                block.trip(timeout)
                await asyncio.get_running_loop().create_future()

    with pytest.raises(UpstreamTimeout):
        await lead()
    (follower,) = told
    assert follower is not None
    assert follower.served
    assert follower.flight.outcome is timeout


@pytest.mark.parametrize(
    ("fault", "code"), [(RuntimeError("a bug"), "internal_error"), (asyncio.CancelledError(), "draining")]
)
async def test_a_fault_of_ours_and_a_stop_end_the_flight_for_all(fault: BaseException, code: str) -> None:
    flights = Flights(SystemClock())
    with pytest.raises(type(fault)), flights.lead(KEY, Interruptible()) as flight:
        raise fault
    assert getattr(flight.outcome, "code", None) == code
    assert len(flights) == 0


async def test_a_later_flight_of_the_same_question_is_not_forgotten_by_an_earlier_one() -> None:
    flights = Flights(SystemClock())
    with flights.lead(KEY, Interruptible()) as first:
        first.blocked = True
        assert flights.join(KEY, Interruptible(), stream=True, usage=False) is None
        with flights.lead(KEY, Interruptible()) as second:
            first.land(ANSWER)
            assert flights._flights == {KEY: second}
    assert len(flights) == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_who_joins_while_all_others_are_slow_is_not_slowed_by_them(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROOM", 10)
    flights = Flights(SystemClock())
    with flights.lead(KEY, Interruptible()) as flight:
        flight.begin(lambda: b"")
        slow = flights.join(KEY, Interruptible(), stream=True, usage=False)
        flight.push(b"x" * 60)
        room = asyncio.ensure_future(flight.room())
        await asyncio.sleep(0)
        assert not room.done()
        joined = flights.join(KEY, Interruptible(), stream=stream, usage=False)
        async with asyncio.timeout(5):
            await room
        assert slow is not None
        assert joined is not None
        assert (slow.size, joined.size) == (60, 0)


async def test_the_fastest_reader_sets_the_pace_and_the_slowest_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT", 100)
    monkeypatch.setattr(module, "ROOM", 10)
    flights = Flights(SystemClock())
    with flights.lead(KEY, Interruptible()) as flight:
        flight.begin(lambda: b"")
        fast = flights.join(KEY, Interruptible(), stream=True, usage=False)
        slow_block = Interruptible()
        slow = flights.join(KEY, slow_block, stream=True, usage=False)
        assert fast is not None
        assert slow is not None
        flight.push(b"x" * 60)
        room = asyncio.ensure_future(flight.room())
        await asyncio.sleep(0)
        assert not room.done()
        assert await fast.take() == b"x" * 60
        await room
        flight.push(b"y" * 60)
        await fast.take()
        async with asyncio.timeout(5):
            await flight.room()
        assert slow.size == 120
        flight.push(b"z" * 60)
        assert flight._followers == {fast}
        assert fast.size == 60
