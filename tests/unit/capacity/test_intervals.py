import math

import numpy as np
import pytest

from capacity.arrivals import Poisson
from capacity.intervals import mean_of, percentile_of
from capacity.scheduler import Scheduler
from capacity.simulate import run, run_until
from capacity.step_model import StepModel
from capacity.workload import Group, Spread, Synthetic


def queue(count: int, load: float = 0.8) -> Synthetic:
    """M/M/1 with a service of 1 s: the response is exponential with mean 1 / (1 - load)."""
    return Synthetic(Poisson(load), count, [Group("all", 1, Spread(1, 1))], 1.0, "exponential")


ONE = Scheduler("work-conserving", max_num_seqs=1)
FREE = StepModel.of_batch(0.0, 0.0)


def test_percentiles_are_numpys() -> None:
    values = np.random.default_rng(1).exponential(1, 1003)
    for percent in (0, 1, 50, 95, 99, 100):
        assert percentile_of(values, percent).value == pytest.approx(np.percentile(values, percent))


def test_a_short_run_has_no_interval() -> None:
    values = np.random.default_rng(1).exponential(1, 1000)
    assert mean_of(values[:40]).low is None
    assert percentile_of(values, 99).low is None
    assert percentile_of(values, 50).low is not None


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    held = {"mean": 0, "p95": 0}
    truth = {"mean": 5.0, "p95": -5 * math.log(0.05)}
    for seed in range(60):
        result = run(queue(60_000), ONE, FREE, seed, warmup=0.05)
        found = {"mean": result.mean("e2e"), "p95": result.percentile("e2e", 95)}
        for name, one in found.items():
            assert one.low is not None
            assert one.high is not None
            held[name] += one.low <= truth[name] <= one.high
    assert held["mean"] >= 54
    assert held["p95"] >= 54


def test_a_run_grows_until_it_is_precise_enough() -> None:
    found = run_until(queue, ONE, FREE, 3, estimate=lambda result: result.mean("e2e"), relative=0.03)
    assert found.reached
    assert found.estimate.relative is not None
    assert found.estimate.relative <= 0.03
    assert len(found.result) > 20_000
    never = run_until(queue, ONE, FREE, 3, estimate=lambda result: result.mean("e2e"), relative=1e-5, most=40_000)
    assert not never.reached
    assert len(never.result) == 40_000
