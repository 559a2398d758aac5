"""How readings of the overhead from inside and outside are compared."""

import orjson
import pytest

from bench.overhead_agreement import Reading, Round, inside, missed, reading, summary
from gateway.metrics import Metrics


def line(cache: str, milliseconds: float) -> bytes:
    return orjson.dumps({"event": "request", "cache": cache, "overhead_ms": milliseconds})


def test_a_reading_is_taken_from_the_metrics_as_they_are_written() -> None:
    metrics = Metrics()
    before = reading(metrics.render().decode(), "miss")
    for seconds in (0.0002, 0.0004):
        metrics.overhead("miss").observe(seconds)
    metrics.overhead("hit-exact").observe(1.0)
    observed = reading(metrics.render().decode(), "miss").since(before)
    assert observed.count == 2
    assert observed.total == pytest.approx(0.0006)


def test_inside_is_the_median_of_what_the_histogram_has_observed() -> None:
    lines = [b"forebay: gateway at", line("miss", 0.2), line("miss", 0.4), line("miss", 9.0), line("hit-exact", 0.1)]
    assert inside(lines, "miss", Reading(3, 0.0096)) == pytest.approx(0.0004)
    for observed in (Reading(3, 0.0196), Reading(2, 0.0096), Reading(0, 0.0)):
        with pytest.raises(ValueError, match="the histogram"):
            inside(lines, "miss", observed)
    with pytest.raises(ValueError, match="0 lines"):
        inside([], "miss", Reading(0, 0.0))


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
    assert missed({"miss": {"ratio": 0.79}, "hit": {"ratio": 1.21}, "stream": {"ratio": 2.0}}) == [
        "miss: inside is 0.79 of outside",
        "hit: inside is 1.21 of outside",
        "stream: inside is 2.00 of outside",
    ]
    # Nothing was added, or less than nothing: that is no agreement.
    assert missed(summary([Round("miss", 0.0003, -0.0001)])) == ["miss: inside is inf of outside"]


def test_a_reading_before_anything_happened_is_nothing() -> None:
    assert reading("", "miss") == Reading(0, 0)
