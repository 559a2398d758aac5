"""The warm-up is cut where a rule says, not where it looks right."""

import numpy as np
import pytest

from bench.load.steady import steady, warm_up


def test_a_slow_start_is_cut() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(5.0, 0.2, 60), rng.normal(1.0, 0.2, 940)])
    assert warm_up(values) == pytest.approx(60, abs=15)


def test_a_steady_run_loses_little() -> None:
    cut = warm_up(np.random.default_rng(1).normal(1.0, 0.2, 1000))
    assert cut is not None
    assert cut <= 250


def test_a_run_that_grows_to_its_end_has_no_steady_state() -> None:
    assert warm_up(np.linspace(0, 100, 1000) ** 2) is None


def test_too_few_requests_are_not_judged() -> None:
    assert warm_up(np.ones(30)) is None


def test_the_cut_counts_answered_requests_only() -> None:
    rng = np.random.default_rng(2)
    e2e = np.concatenate([rng.normal(9.0, 0.1, 100), rng.normal(1.0, 0.1, 900)])
    answered = np.ones(1000, dtype=bool)
    answered[:50] = False
    e2e[:50] = np.nan
    found = steady(np.arange(1000) / 10, e2e, answered)
    assert found.settled
    assert found.begin == pytest.approx(100, abs=15)
    assert found.from_s == pytest.approx(found.begin / 10)
