"""A breaker counts faults of the server, and a budget bounds what retries may add."""

import pytest

from gateway.upstream.breaker import FIRST_PAUSE, LONGEST_PAUSE, MIN_FAULTS, WINDOW, Breaker
from gateway.upstream.budget import FLOOR, MOST, SHARE, RetryBudget
from tests.clock import HandClock


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def fail(breaker: Breaker, times: int = 1) -> None:
    for _ in range(times):
        breaker.failed(breaker.begin())


def test_it_opens_at_a_share_of_faults_and_not_at_a_few_among_many(clock: HandClock) -> None:
    breaker = Breaker(clock)
    fail(breaker, MIN_FAULTS - 1)
    assert breaker.permits
    fail(breaker)
    assert (breaker.state, breaker.permits) == ("open", False)
    busy = Breaker(clock)
    for _ in range(20):
        busy.succeeded(busy.begin())
    fail(busy, MIN_FAULTS + 5)
    assert busy.state == "closed"


def test_faults_of_long_ago_do_not_count(clock: HandClock) -> None:
    breaker = Breaker(clock)
    fail(breaker, MIN_FAULTS - 1)
    clock.now += WINDOW + 1
    fail(breaker)
    assert breaker.state == "closed"


def test_a_server_that_is_gone_opens_it_at_once(clock: HandClock) -> None:
    breaker = Breaker(clock)
    breaker.failed(breaker.begin(), gone=True)
    assert breaker.state == "open"


def test_after_the_pause_one_call_decides(clock: HandClock) -> None:
    breaker = Breaker(clock)
    breaker.failed(breaker.begin(), gone=True)
    clock.now += FIRST_PAUSE
    assert (breaker.state, breaker.permits) == ("half_open", True)
    began = breaker.begin()
    assert not breaker.permits
    breaker.unknown(began)
    assert breaker.permits
    breaker.succeeded(breaker.begin())
    assert breaker.state == "closed"
    fail(breaker, MIN_FAULTS - 1)
    assert breaker.state == "closed"


def test_every_failed_trial_doubles_the_pause_up_to_a_limit(clock: HandClock) -> None:
    breaker = Breaker(clock)
    breaker.failed(breaker.begin(), gone=True)
    pause = FIRST_PAUSE
    for _ in range(8):
        clock.now += pause
        assert breaker.state == "half_open"
        fail(breaker)
        pause = min(pause * 2, LONGEST_PAUSE)
        clock.now += pause - 0.1
        assert breaker.state == "open"
        clock.now += 0.1


def test_calls_from_before_it_opened_decide_nothing(clock: HandClock) -> None:
    breaker = Breaker(clock)
    old = [breaker.begin(), breaker.begin()]
    clock.now += 1
    breaker.failed(breaker.begin(), gone=True)
    breaker.succeeded(old[0])
    breaker.failed(old[1])
    clock.now += FIRST_PAUSE
    assert breaker.state == "half_open"


def test_retries_are_a_share_of_the_requests_and_a_few_at_any_time(clock: HandClock) -> None:
    budget = RetryBudget(clock)
    assert sum(budget.spend() for _ in range(100)) == FLOOR
    for _ in range(100):
        budget.asked()
    assert sum(budget.spend() for _ in range(100)) == pytest.approx(100 * SHARE, abs=1)
    clock.now += 3600
    assert sum(budget.spend() for _ in range(100)) == FLOOR
    for _ in range(100_000):
        budget.asked()
    assert sum(budget.spend() for _ in range(1000)) == pytest.approx(MOST, abs=1)
