"""A breaker opens after enough failures, lets one trial through when it has cooled, and closes when that succeeds."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.breaker import Breaker, Tolerance
from core.errors import DependencyFault
from tests.clock import HandClock

TOLERANCE = Tolerance(in_a_row=3, share=0.5, outcomes=10, cool=2.0)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def breaker(clock: HandClock) -> Breaker:
    return Breaker("thing", clock, TOLERANCE)


def fail(breaker: Breaker, times: int = 1) -> None:
    for _ in range(times):
        assert breaker.admit()
        breaker.failed("broken")


def test_failures_in_a_row_open_it_and_a_success_between_them_does_not(breaker: Breaker) -> None:
    fail(breaker, 2)
    breaker.succeeded()
    fail(breaker, 2)
    assert (breaker.state, breaker.level) == ("closed", 0)
    fail(breaker)
    assert (breaker.state, breaker.level, breaker.reason) == ("open", 2, "broken")
    assert not breaker.admit()


def test_a_share_of_failures_opens_it_where_they_are_never_in_a_row(breaker: Breaker) -> None:
    for _ in range(4):
        fail(breaker)
        breaker.succeeded()
    assert breaker.state == "closed", "eight outcomes say too little"
    fail(breaker)
    breaker.succeeded()
    assert breaker.state == "closed", "the failure that completes the ten opens it, not a success"
    fail(breaker)
    assert breaker.state == "open"


def test_old_outcomes_are_forgotten(breaker: Breaker) -> None:
    for _ in range(20):
        fail(breaker, 2)
        for _ in range(8):
            breaker.succeeded()
    assert breaker.state == "closed"


def test_one_trial_at_a_time_when_it_has_cooled(breaker: Breaker, clock: HandClock) -> None:
    fail(breaker, 3)
    clock.now += 1.99
    assert not breaker.admit()
    clock.now += 0.01
    assert not breaker.admit(trial=False), "somebody else makes the trials"
    assert breaker.admit()
    assert (breaker.state, breaker.level) == ("half-open", 1)
    assert not breaker.admit()
    breaker.succeeded()
    assert (breaker.state, breaker.reason) == ("closed", None)
    fail(breaker, 2)
    assert breaker.state == "closed", "the failures from before are forgotten"


def test_a_failed_trial_opens_it_for_as_long_again(breaker: Breaker, clock: HandClock) -> None:
    fail(breaker, 3)
    clock.now += 2
    fail(breaker)
    assert breaker.state == "open"
    clock.now += 1.9
    assert not breaker.admit()
    clock.now += 0.1
    assert breaker.admit()


def test_an_abandoned_trial_leaves_the_next_one_free_at_once(breaker: Breaker, clock: HandClock) -> None:
    fail(breaker, 3)
    clock.now += 2
    assert breaker.admit()
    breaker.abandoned()
    assert breaker.state == "open"
    assert breaker.admit()


def test_outcomes_of_calls_from_before_it_opened_change_nothing(breaker: Breaker, clock: HandClock) -> None:
    fail(breaker, 3)
    breaker.succeeded()
    breaker.failed("late")
    breaker.abandoned()
    assert breaker.state == "open"
    clock.now += 2
    assert breaker.admit(), "a late failure does not prolong it"


def test_every_change_is_told_once(clock: HandClock) -> None:
    seen: list[str] = []
    breaker = Breaker("thing", clock, TOLERANCE, lambda changed: seen.append(changed.state))
    fail(breaker, 3)
    breaker.failed("late")
    clock.now += 2
    assert breaker.admit()
    breaker.succeeded()
    assert seen == ["open", "half-open", "closed"]


def test_an_attempt_counts_faults_and_nothing_else(breaker: Breaker, clock: HandClock) -> None:
    for _ in range(5):
        with pytest.raises(ZeroDivisionError), breaker.attempt():
            raise ZeroDivisionError
    assert breaker.state == "closed"
    for _ in range(3):
        with pytest.raises(DependencyFault), breaker.attempt():
            raise DependencyFault("too slow", "timeout")
    assert (breaker.state, breaker.reason) == ("open", "too slow")
    with pytest.raises(DependencyFault, match="thing is left alone: too slow") as refused, breaker.attempt():
        pytest.fail("nobody may call")
    assert refused.value.kind == "open"
    clock.now += 2
    with pytest.raises(asyncio.CancelledError), breaker.attempt():
        raise asyncio.CancelledError
    assert breaker.state == "open"
    with breaker.attempt():
        assert breaker.state == "half-open"
    assert breaker.state == "closed"


@given(st.lists(st.sampled_from("sfat"), max_size=200))
def test_nothing_is_let_through_while_open_and_never_two_trials(steps: list[str]) -> None:
    clock = HandClock()
    breaker = Breaker("thing", clock, TOLERANCE)
    opened_at: float | None = None
    for step in steps:
        if step == "t":
            clock.now += 0.5
            continue
        before = breaker.state
        admitted = breaker.admit()
        if before == "open":
            assert opened_at is not None
            assert admitted == (clock.now >= opened_at + TOLERANCE.cool)
        else:
            assert admitted
        if not admitted:
            continue
        if breaker.state == "half-open":
            assert not breaker.admit()
        {"s": breaker.succeeded, "f": lambda: breaker.failed("x"), "a": breaker.abandoned}[step]()
        if breaker.state == "open" and step == "f":
            opened_at = clock.now
