"""How alike answers are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load.agree import Pair, alike, same_until, verdict, wilson


def test_agreement_has_an_interval_that_holds_it() -> None:
    found = verdict([Pair("a b c", "a b c", "a b c")] * 9 + [Pair("a b c", "a x c", "a b c")])
    assert found["exact"] == 0.9
    assert found["exact_ci95"][0] < 0.9 < found["exact_ci95"][1]
    assert found["similarity"] == pytest.approx(0.9 + 0.1 * 2 / 3)
    assert found["self"]["exact"] == 1.0
    assert found["parts_after_words"] == 1.0


def test_what_a_does_not_repeat_itself_b_is_not_blamed_for() -> None:
    found = verdict([Pair("a", "b", "c")] * 20)
    assert (found["exact"], found["self"]["exact"], found["differs_beyond_itself"]) == (0.0, 0.0, False)


def test_b_is_blamed_where_a_repeats_itself() -> None:
    assert verdict([Pair("a", "b", "a")] * 20)["differs_beyond_itself"] is True


def test_without_a_second_answer_there_is_no_floor() -> None:
    found = verdict([Pair("a", "a", None)])
    assert (found["self"], found["differs_beyond_itself"]) == (None, None)


@given(st.integers(1, 2000), st.data())
def test_wilsons_interval_lies_within_0_and_1_and_around_the_share(count: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, count))
    low, high = wilson(hits, count)
    assert 0 <= low <= hits / count + 1e-12
    assert hits / count - 1e-12 <= high <= 1


@given(st.text("ab ", max_size=30), st.text("ab ", max_size=30))
def test_likeness_is_a_share_and_one_for_the_same_words(a: str, b: str) -> None:
    assert 0 <= alike(a, b) <= 1
    assert alike(a, a) == 1
    assert same_until(a, b) <= min(len(a.split()), len(b.split()))
