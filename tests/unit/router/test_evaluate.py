"""The quality-cost figures against examples worked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.calibrate import calibrate
from router.evaluate import auc, curve, document, measure, picture
from router.labels import Labelled

# Four asks. The strong model is better on the first two and equal on the others: weak mean 0.5, strong mean 1.
WEAK = np.array([0.0, 0.0, 1.0, 1.0])
STRONG = np.array([1.0, 1.0, 1.0, 1.0])


def ranked(*scores: float) -> np.ndarray:
    return np.array(scores, dtype=float)


def test_a_perfect_ranking() -> None:
    # Quality over shares 0, 1/4, 1/2, 3/4, 1 is 0.5, 0.75, 1, 1, 1: recovered 0, 1/2, 1, 1, 1, trapezoid mean 3/4.
    found = curve(ranked(4, 3, 2, 1), WEAK, STRONG)
    assert found.quality.tolist() == [0.5, 0.75, 1, 1, 1]
    assert found.apgr() == pytest.approx(0.75)
    assert found.cpt(0.5) == pytest.approx(0.25)
    assert found.cpt(0.8) == pytest.approx(0.4)
    assert auc(ranked(4, 3, 2, 1), STRONG > WEAK) == 1


def test_the_worst_ranking() -> None:
    found = curve(ranked(1, 2, 3, 4), WEAK, STRONG)
    assert found.apgr() == pytest.approx(0.25)
    assert found.cpt(0.5) == pytest.approx(0.75)
    assert auc(ranked(1, 2, 3, 4), STRONG > WEAK) == 0


def test_scores_that_tie_are_as_good_as_chance() -> None:
    found = curve(ranked(7, 7, 7, 7), WEAK, STRONG)
    assert found.apgr() == pytest.approx(0.5)
    assert found.cpt(0.5) == pytest.approx(0.5)
    assert auc(ranked(7, 7, 7, 7), STRONG > WEAK) == 0.5


def test_a_curve_that_is_not_monotone_is_read_at_its_first_crossing() -> None:
    # Gains in order of routing: +1, -1, +1, +1 of a gap of 2: recovered 0, 1/2, 0, 1/2, 1.
    found = curve(ranked(4, 3, 2, 1), np.array([0.0, 1, 0, 0]), np.array([1.0, 0, 1, 1]))
    assert found.cpt(0.5) == pytest.approx(0.25)
    assert found.cpt(0.8) == pytest.approx(0.9)
    assert found.apgr() == pytest.approx((0.25 + 0.25 + 0.25 + 0.75) / 4)


def test_without_a_gap_there_is_nothing_to_recover() -> None:
    found = curve(ranked(1, 2, 3, 4), STRONG, WEAK)
    assert (found.apgr(), found.cpt(0.5)) == (None, None)
    assert auc(ranked(1, 2), np.array([True, True])) is None


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(0, 5)), min_size=2, max_size=30))
def test_the_curve_runs_from_the_weak_to_the_strong_mean(rows: list[tuple[float, float, int]]) -> None:
    weak, strong, scores = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    found = curve(scores, weak, strong)
    assert found.shares[0] == 0
    assert found.shares[-1] == 1
    assert found.quality[0] == pytest.approx(weak.mean())
    assert found.quality[-1] == pytest.approx(strong.mean())
    assert (np.diff(found.shares) > 0).all()


@given(st.permutations(range(12)))
def test_a_monotone_map_of_scores_changes_nothing(order: list[int]) -> None:
    weak, strong = np.arange(12) % 3 / 2, np.arange(12) % 4 / 3
    scores = np.array(order, dtype=float)
    assert curve(scores, weak, strong).apgr() == curve(np.exp(scores / 3), weak, strong).apgr()


def rows(count: int, generator: np.random.Generator) -> list[Labelled]:
    hard = generator.random(count) < 0.4
    return [Labelled(f"ask {n}", 0.0 if own else 1.0, 1.0, "") for n, own in enumerate(hard)]


def test_intervals_hold_the_figure_and_the_controls_stand_beside_it() -> None:
    generator = np.random.default_rng(1)
    labelled = rows(400, generator)
    truth = np.array([row.gain for row in labelled])
    scores = truth + generator.normal(0, 1, 400)
    found = measure(labelled, scores, generator.random(400), resamples=300)
    assert found.apgr is not None
    assert found.apgr_ci is not None
    assert found.apgr_ci[0] < found.apgr < found.apgr_ci[1]
    assert found.apgr_ci[0] > 0.5
    assert found.apgr_random == pytest.approx(0.5, abs=0.02)
    assert found.apgr_length_ci is not None
    assert found.apgr_length_ci[0] < 0.5 < found.apgr_length_ci[1]
    assert found.over_length_ci is not None
    assert found.over_length_ci[0] > 0


def test_the_result_document_has_the_fixed_keys() -> None:
    labelled = rows(50, np.random.default_rng(2))
    result = document(measure(labelled, np.arange(50.0), np.arange(50.0), resamples=50))
    fixed = {"rows", "auc", "apgr", "apgr_ci", "apgr_random", "apgr_length", "cpt50", "cpt80", "curve"}
    assert fixed <= result.keys()
    first, last = result["curve"][0], result["curve"][-1]
    assert first.keys() == {"frontier_share", "quality", "random_quality", "over_random_ci"}
    middle = result["curve"][25]
    low, high = middle["over_random_ci"]
    assert low - 1e-3 <= middle["quality"] - middle["random_quality"] <= high + 1e-3
    assert (first["frontier_share"], last["frontier_share"]) == (0, 1)
    assert first["quality"] == first["random_quality"]
    assert last["quality"] == last["random_quality"]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.floats(0, 1))
def test_no_threshold_comes_nearer_to_the_wanted_share(complexities: list[float], share: float) -> None:
    values = np.array(complexities)
    found = calibrate(values, share)
    assert found.achieved == pytest.approx((values >= found.threshold).mean())
    possible = [(values >= threshold).mean() for threshold in [0, 1, *complexities]]
    assert abs(found.achieved - share) <= min(abs(own - share) for own in possible) + 1e-9


def test_a_third_of_distinct_complexities() -> None:
    found = calibrate(np.linspace(0.05, 0.95, 30), 0.3)
    assert found.achieved == pytest.approx(0.3)
    assert 0 < found.threshold < 1


def test_the_curve_is_drawn_beside_random() -> None:
    labelled = rows(50, np.random.default_rng(2))
    png = picture("labels", measure(labelled, np.arange(50.0), np.arange(50.0), resamples=50))
    assert png.startswith(b"\x89PNG")
