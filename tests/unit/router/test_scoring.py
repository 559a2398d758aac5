"""What an answer is worth."""

import pytest

from router.scoring import agreement, exact_match, judge_question, judge_verdict


@pytest.mark.parametrize(
    ("said", "right", "worth"),
    [
        ("Paris", "paris", 1),
        ("The capital is Paris.", "Paris", 0),
        ("Let me think.\nParis.", "Paris", 1),
        ("So the answer is: Paris", "Paris", 1),
        ("First 12, then 3 * 4 = 1,200.", "1200", 1),
        ("It is 1200 or 7", "1200", 0),
        ("$18", "18.0", 1),
        ("no number", "18", 0),
        ("(B)", "B", 1),
        ("Answer: (C)", "B", 0),
        ("答案是\uff1a巴黎", "巴黎", 1),
        ("anything", "", 0),
        ("", "x", 0),
    ],
)
def test_exact_match(said: str, right: str, worth: float) -> None:
    assert exact_match(said, right) == worth


def test_agreement_is_one_for_the_same_words_and_less_for_others() -> None:
    assert agreement("It is Paris.", "it is paris") == 1
    near = agreement("The capital of France is Paris.", "Paris is the capital city of France.")
    far = agreement("The capital of France is Paris.", "I cannot say.")
    assert far == 0 < near < 1
    assert agreement("It is 12.", "It is 13.") == 0
    assert agreement("", "") == 1
    assert 0 < agreement("巴黎是法国首都", "法国的首都是巴黎") < 1


def test_a_judges_verdict_is_found_in_what_it_says() -> None:
    assert judge_verdict('Sure: {"a": 7, "b": 10}') == (0.7, 1.0)
    assert judge_verdict('{"A": 0.5, "B": 1}') == (0.05, 0.1)
    for nothing in ("", "a is better", '{"a": 7}', '{"a": 11, "b": 2}', '{"a": "x", "b": 2}', '{"a": 1, "b" 2}'):
        assert judge_verdict(nothing) is None


def test_a_judge_reads_bounded_texts() -> None:
    assert len(judge_question("x" * 100_000, "y" * 100_000, "{}")) < 20_000
