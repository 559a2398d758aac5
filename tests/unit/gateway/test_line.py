"""The order of a queue: priority first, then tokens served over weight."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.auth import Priority
from gateway.line import MAX_IDLE, FairLine
from gateway.ticket import Ticket


def ticket(tenant: str, cost: float = 10, priority: Priority = "normal", weight: float = 1) -> Ticket:
    return Ticket(tenant, priority, cost=cost, weight=weight)


def serve(line: FairLine, count: int) -> Counter[str]:
    """Tokens by tenant of so many turns."""
    served: Counter[str] = Counter()
    for _ in range(count):
        one = line.pop()
        assert one is not None
        served[one.tenant] += int(one.cost)
    return served


def test_higher_priorities_come_first_and_one_tenant_in_order() -> None:
    line = FairLine()
    tickets = [ticket("a", priority=priority) for priority in ("low", "normal", "high", "normal", "high")]
    for one in tickets:
        line.add(one)
    order = [line.pop() for _ in range(5)]
    assert order == [tickets[place] for place in (2, 4, 1, 3, 0)]
    assert line.pop() is None


def test_a_heavy_tenant_cannot_starve_a_light_one() -> None:
    line = FairLine()
    for _ in range(200):
        line.add(ticket("heavy"))
    line.add(ticket("light"))
    assert "light" in serve(line, 2)


def test_tokens_are_shared_by_weight_whatever_the_requests_sizes() -> None:
    line, source = FairLine(), random.Random(3)
    for _ in range(400):
        line.add(ticket("one", cost=source.randint(5, 15)))
        line.add(ticket("big", cost=source.randint(50, 150)))
        line.add(ticket("double", cost=source.randint(5, 15), weight=2))
    served = serve(line, 300)
    assert served["big"] == pytest.approx(served["one"], rel=0.15)
    assert served["double"] == pytest.approx(2 * served["one"], rel=0.15)


def test_who_was_idle_starts_where_the_others_are() -> None:
    line = FairLine()
    for _ in range(50):
        line.charge(ticket("busy"))
    for _ in range(20):
        line.add(ticket("busy"))
        line.add(ticket("fresh"))
    served = serve(line, 20)
    assert served["busy"] == pytest.approx(served["fresh"], abs=20)


def test_what_a_request_really_took_is_put_right() -> None:
    line = FairLine()
    for _ in range(40):
        line.add(ticket("liar", cost=1))
        line.add(ticket("honest", cost=10))
    turns: Counter[str] = Counter()
    for _ in range(40):
        one = line.pop()
        assert one is not None
        turns[one.tenant] += 1
        line.correct(one, 10)
    assert turns["liar"] == pytest.approx(turns["honest"], abs=2)


def test_what_is_ahead_counts_higher_ones_and_the_own_share() -> None:
    line = FairLine()
    for _ in range(10):
        line.add(ticket("heavy"))
    for _ in range(3):
        line.add(ticket("urgent", priority="high"))
    assert line.ahead(ticket("light")) == 30 + 10
    assert line.ahead(ticket("heavy")) == 30 + 110
    assert line.ahead(ticket("light", priority="low")) == 130 + 10
    assert line.ahead(ticket("light", priority="high")) == 10
    assert line.work() == 130
    for _ in range(4):
        line.add(ticket("light"))
    assert line.ahead(ticket("light")) == 30 + 50 + 40
    assert line.ahead(ticket("light", weight=2)) == 30 + 50 + 20
    assert line.ahead(ticket("light", weight=0.25)) == 30 + 50 + 100
    assert line.ahead(ticket("light", weight=0.25), room=100) == 30 + 50 + 160
    # Of ten places, two are those of the light tenant.
    assert line.ahead(ticket("light", weight=0.25), room=10) == 30 + 30 + 80


def test_room_is_made_at_the_cost_of_the_lowest_and_the_heaviest() -> None:
    line = FairLine()
    first, second = ticket("heavy"), ticket("heavy")
    light = ticket("light")
    for one in (first, second, light):
        line.add(one)
    assert line.displace(ticket("heavy")) is None
    assert line.displace(ticket("light")) is None
    assert line.displace(ticket("other", priority="low")) is None
    assert line.displace(ticket("other")) is second
    assert len(line) == 2
    low = ticket("poor", priority="low")
    line.add(low)
    assert line.displace(ticket("heavy")) is low
    assert line.displace(ticket("heavy", priority="high")) in (first, light)


def test_tenants_that_have_gone_are_forgotten() -> None:
    line = FairLine()
    for number in range(3 * MAX_IDLE):
        line.add(ticket(f"t{number}"))
        line.pop()
    assert all(len(band.flows) <= MAX_IDLE + 1 for band in line._bands.values())


STEP = st.tuples(st.sampled_from(["add", "pop", "remove", "correct", "displace"]), st.integers(0, 11))


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=60))
def test_nothing_is_lost_or_doubled(steps: list[tuple[str, int]]) -> None:
    """Against a plain set: every ticket that was added comes out once, the highest priority first."""
    line = FairLine()
    inside: list[Ticket] = []
    known = [ticket("abc"[n % 3], cost=n + 1, priority=("high", "normal", "low")[n // 4]) for n in range(12)]
    for step, number in steps:
        one = known[number]
        if step == "add" and one not in inside:
            line.add(one)
            inside.append(one)
        elif step == "pop":
            popped = line.pop()
            assert (popped is None) == (not inside)
            if popped is not None:
                best = min(("high", "normal", "low").index(other.priority) for other in inside)
                assert ("high", "normal", "low").index(popped.priority) == best
                inside.remove(popped)
        elif step == "remove":
            line.remove(one)
            inside = [other for other in inside if other is not one]
        elif step == "correct":
            line.correct(one, 5)
        elif step == "displace":
            gone = line.displace(one)
            inside = [other for other in inside if other is not gone]
        assert len(line) == len(inside)
