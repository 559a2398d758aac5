"""The search for the knee, on a server whose limit is known."""

from collections.abc import Callable

import numpy as np
import pytest

from bench.load.measures import Aims, Run, document
from bench.load.order import Order, Outcome
from bench.load.plan import Arriving, Asking
from bench.load.sweep import kept, swept
from bench.load.target import Target
from tests.unit.bench.load.logs import exchange, run_of

ORDER = Order(Target("http://127.0.0.1:1/v1"), Arriving(duration_s=20.0), Asking("m"), Aims(ttft_s=2.0))


def served(rate: float, capacity: float) -> Run:
    """A server that answers `capacity` per second, first come first served, after half a second."""
    free, seen = 0.0, []
    for index, due in enumerate(np.arange(0, 20, 1 / rate)):
        free = max(free, float(due)) + 1 / capacity
        seen.append(exchange(index, float(due), [free + 0.5], usage=1))
    return run_of(seen)


def measuring(capacity: float, asked: list[float]) -> Callable[..., Outcome]:
    def measure(order: Order, tell: object) -> Outcome:
        assert order.arriving.rate is not None
        asked.append(order.arriving.rate)
        run = served(order.arriving.rate, capacity)
        return Outcome(document(run, order.aims, {}), (run,))

    return measure


def test_the_knee_lies_between_a_rate_that_is_kept_and_one_that_is_not() -> None:
    asked: list[float] = []
    found = swept(ORDER, start=4.0, rates=None, measure=measuring(25.0, asked)).document
    knee = found["knee"]
    assert isinstance(knee, dict)
    # What piles up within 20 s must be more than chance: a few percent of overload pass.
    assert 20 < knee["rate_rps"] < 28 < knee["next_rate_rps"] <= 32
    assert asked[:4] == [4.0, 8.0, 16.0, 32.0]
    assert len(asked) == 7


def test_given_rates_are_run_and_no_others() -> None:
    asked: list[float] = []
    found = swept(ORDER, start=None, rates=[50.0, 10.0], measure=measuring(30.0, asked)).document
    assert asked == [50.0, 10.0]
    assert [row["kept"] for row in found["sweep"]] == [True, False]  # type: ignore[attr-defined]
    assert found["knee"]["rate_rps"] == 10.0  # type: ignore[index]


def test_without_a_rate_that_is_kept_there_is_no_knee() -> None:
    found = swept(ORDER, start=90.0, rates=None, measure=measuring(30.0, [])).document
    assert found["knee"]["rate_rps"] is None  # type: ignore[index]


@pytest.mark.parametrize(("rate", "most"), [(20.0, 1.0), (60.0, 0.7)])
def test_answers_over_arrivals_tell_a_pile(rate: float, most: float) -> None:
    share = kept(served(rate, 30.0))
    assert share <= most
    assert (share == 1.0) == (rate == 20.0)
