"""The counter of savings: what answers that were given up have cost comes first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metrics import Count
from gateway.savings import Savings


def test_a_loss_is_taken_from_later_savings() -> None:
    counter = Count()
    savings = Savings(counter)
    savings.saved(5)
    savings.lost(3)
    assert counter.value == 5
    savings.saved(2)
    assert counter.value == 5
    savings.saved(2)
    assert counter.value == 6


@given(st.lists(st.integers(-100, 100), max_size=50))
def test_it_never_falls_and_ends_at_the_most_that_was_ever_saved(steps: list[int]) -> None:
    counter = Count()
    savings = Savings(counter)
    net, most, before = 0, 0, 0.0
    for step in steps:
        if step < 0:
            savings.lost(-step)
        else:
            savings.saved(step)
        net += step
        most = max(most, net)
        assert counter.value >= before
        before = counter.value
    assert counter.value == pytest.approx(most)
