"""Limits: any sliding window, calendar months, forecasts, and a store that does not answer."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.config.records import Price
from core.errors import DependencyFault, Refused
from gateway.auth import Allowance, Identity
from gateway.forecast import FIRST_OUTPUT, Forecast, Need, need_of
from gateway.limits.base import SLOT, WINDOW, Claim, Ledger, Taken
from gateway.limits.limiter import Limiter
from gateway.limits.memory import MemoryLedger
from gateway.limits.month import month_of, rest_of_month
from gateway.metering import Usage
from tests.clock import HandClock

PRICE = Price(input=1.0, output=2.0)


def identity(**allowed: float) -> Identity:
    return Identity("k", "acme", False, True, "normal", 1.0, Allowance(**allowed))  # type: ignore[arg-type]


def limiter(ledger: Ledger) -> tuple[Limiter, list[str]]:
    unchecked: list[str] = []
    return Limiter(ledger, unchecked.append), unchecked


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 30)), max_size=60))
def test_no_window_of_a_minute_ever_holds_more_than_the_limit(steps: Sequence[tuple[float, int]]) -> None:
    asyncio.run(_take_all(steps))


async def _take_all(steps: Sequence[tuple[float, int]]) -> None:
    clock = HandClock()
    ledger = MemoryLedger(clock)
    taken: list[tuple[float, int]] = []
    for pause, amount in steps:
        clock.now += pause
        found = await ledger.take("s", "m", [Claim("tokens", 50, amount)])
        inside = sum(one for at, one in taken if at > clock.now - WINDOW)
        if isinstance(found, Taken):
            taken.append((clock.now, amount))
            assert inside + amount <= 50
        else:
            # Refused only where the window, a slot longer than a minute, is really full; and right about how long.
            assert sum(one for at, one in taken if at > clock.now - WINDOW - 2 * SLOT) + amount > 50
            assert 0 < found.wait <= WINDOW + SLOT


async def test_after_the_time_that_a_refusal_names_there_is_room() -> None:
    clock = HandClock()
    ledger = MemoryLedger(clock)
    await ledger.take("s", "m", [Claim("requests", 2, 1)])
    clock.now += 20
    await ledger.take("s", "m", [Claim("requests", 2, 1)])
    found = await ledger.take("s", "m", [Claim("requests", 2, 1)])
    assert not isinstance(found, Taken)
    assert found.wait == pytest.approx(40, abs=2 * SLOT)
    clock.now += found.wait + 0.001
    assert isinstance(await ledger.take("s", "m", [Claim("requests", 2, 1)]), Taken)


def test_a_month_ends_at_midnight_of_utc() -> None:
    late = datetime(2026, 12, 31, 23, 59, 30, tzinfo=UTC).timestamp()
    assert month_of(late) == "2026-12"
    assert rest_of_month(late) == 30
    assert month_of(late + 30) == "2027-01"


async def test_each_limit_has_its_reason_and_a_new_month_is_a_new_budget() -> None:
    clock = HandClock(ahead=0.0)
    clock.now = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()
    doors, _ = limiter(MemoryLedger(clock))
    who = identity(requests_per_minute=2, concurrency=1)
    first = await doors.enter(who)
    assert first is not None
    with pytest.raises(Refused) as caught:
        await doors.enter(who)
    assert caught.value.reason == "tenant_concurrency"
    doors.leave(first)
    assert await doors.enter(who) is not None
    with pytest.raises(Refused) as caught:
        await doors.enter(who)
    assert caught.value.reason == "tenant_requests"
    rich, need, forecast = identity(monthly_budget=0.001), Need(4, 499), Forecast()
    taken = await doors.reserve(rich, need, forecast, PRICE)
    assert taken is not None
    with pytest.raises(Refused) as caught:
        await doors.reserve(rich, need, forecast, PRICE)
    assert caught.value.reason == "tenant_budget"
    clock.now += 86_400
    # What the last month's request took in the end is none of this month's.
    assert await doors.reserve(rich, need, forecast, PRICE) is not None
    doors.settle(taken, Usage(1000, 1000, 0), PRICE, nothing=False)
    with pytest.raises(Refused):
        await doors.reserve(rich, need, forecast, PRICE)


async def test_a_reservation_becomes_what_was_used() -> None:
    doors, _ = limiter(MemoryLedger(HandClock()))
    who, need, forecast = identity(tokens_per_minute=100), Need(40, 90), Forecast()
    for usage, nothing in ((Usage(10, 10, 0), False), (None, True)):
        taken = await doors.reserve(who, need, forecast, PRICE)
        assert taken is not None
        with pytest.raises(Refused) as caught:
            await doors.reserve(who, Need(0, 1), forecast, PRICE)
        assert caught.value.reason == "tenant_tokens"
        doors.settle(taken, usage, PRICE, nothing=nothing)
        forecast = Forecast()
        need = Need(40, 70)
    # 20 used, and nothing of the second: a stream that broke off keeps its reservation.
    taken = await doors.reserve(who, need, forecast, PRICE)
    assert taken is not None
    doors.settle(taken, None, PRICE, nothing=False)
    with pytest.raises(Refused):
        await doors.reserve(who, Need(0, 1), forecast, PRICE)


async def test_a_request_that_could_take_more_than_the_limit_takes_all_of_it() -> None:
    doors, _ = limiter(MemoryLedger(HandClock()))
    who, forecast = identity(tokens_per_minute=100), Forecast()
    assert await doors.reserve(who, Need(4, 5000), forecast, PRICE) is not None


class Silent:
    """A ledger that never answers; notes what is released."""

    def __init__(self) -> None:
        self.released: list[Taken] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def take(self, subject: str, mark: str, claims: Sequence[Claim]) -> Taken:
        raise DependencyFault("no answer", "timeout")

    def settle(self, taken: Taken, changes: Sequence[int]) -> None:
        self.released.append(taken)


async def test_a_store_that_does_not_answer_lets_everything_pass_and_is_counted() -> None:
    silent = Silent()
    doors, unchecked = limiter(silent)  # type: ignore[arg-type]  # it hands out no refusals
    taken = await doors.enter(identity(concurrency=1))
    assert taken is not None
    assert unchecked == ["timeout"]
    doors.leave(taken)
    assert [(one.mark, one.slot) for one in silent.released] == [(taken.mark, None)]


async def test_a_key_without_limits_asks_nobody() -> None:
    doors, unchecked = limiter(Silent())  # type: ignore[arg-type]  # it hands out no refusals
    assert await doors.enter(identity()) is None
    assert await doors.reserve(identity(), Need(1, None), Forecast(), PRICE) is None
    assert unchecked == []


def test_a_forecast_learns_what_its_tier_counts() -> None:
    forecast = Forecast()
    assert forecast.likely(Need(400, None)) == 100 + FIRST_OUTPUT
    assert forecast.likely(Need(400, 10)) == 110
    for _ in range(20):
        forecast.learn(Need(400, None), prompt=50, output=30)
    assert forecast.likely(Need(400, None)) == pytest.approx(80)
    assert forecast.most_output(Need(0, 500)) == 500
    assert need_of(7, {"max_tokens": 5, "n": 3}) == Need(7, 15)
    assert need_of(7, {"max_tokens": -1, "n": "x"}) == Need(7, None)
