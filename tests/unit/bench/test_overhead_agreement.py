"""How readings of the overhead from inside and outside are compared."""

import pytest

from bench.overhead_agreement import Reading, Round, missed, reading, summary
from gateway.metrics import Metrics


def test_a_reading_is_taken_from_the_metrics_as_they_are_written() -> None:
    metrics = Metrics()
    before = reading(metrics.render().decode(), "miss")
    for seconds in (0.0002, 0.0004):
        metrics.overhead("miss").observe(seconds)
    metrics.overhead("hit-exact").observe(1.0)
    after = reading(metrics.render().decode(), "miss")
    assert after.since(before) == pytest.approx(0.0003)
    with pytest.raises(ValueError, match="no request"):
        after.since(after)


def test_the_figure_of_a_kind_is_the_median_of_its_rounds() -> None:
    rounds = [Round("miss", 0.0003, 0.0003), Round("miss", 0.0003, 0.0004), Round("miss", 0.0003, 0.003)]
    rounds.append(Round("hit", 0.0001, 0.0002))
    found = summary(rounds)
    assert found["miss"]["outside_us"] == pytest.approx(400)
    assert found["miss"]["ratio"] == pytest.approx(0.75)
    assert found["hit"]["ratio"] == pytest.approx(0.5)


def test_only_what_is_within_a_fifth_agrees() -> None:
    near = {"miss": {"ratio": 0.81}, "hit": {"ratio": 1.19}}
    assert missed(near) == []
    assert missed({"miss": {"ratio": 0.79}, "stream": {"ratio": 1.21}}) == [
        "miss: inside is 0.79 of outside",
        "stream: inside is 1.21 of outside",
    ]
    # Nothing was added, or less than nothing: that is no agreement.
    assert missed(summary([Round("miss", 0.0003, -0.0001)])) == ["miss: inside is inf of outside"]


def test_a_reading_before_anything_happened_is_nothing() -> None:
    assert reading("", "miss") == Reading(0, 0)
