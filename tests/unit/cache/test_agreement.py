"""Whether two answers say the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.agreement import SIMILAR, agreement
from cache.guard.lexicon import lexicon

LONG = "The refund is paid back to the card that was used for the order within some days of our receiving the parcel"


@pytest.mark.parametrize(
    ("a", "b", "similarity", "same", "feature"),
    [
        ("Paris.", "paris", 0.1, True, "equal"),
        ("**42**", "42", 0.1, True, "equal"),
        ("Paris", "The capital is Paris.", 0.3, True, "contained"),
        ("Paris", "The capital is Lyon.", 0.3, False, "similarity"),
        (f"{LONG}: 30 days.", f"{LONG}: 60 days.", 0.99, False, "numbers"),
        ("It takes 3,5 hours or 210 minutes", "210 minutes in all", 0.9, True, "similarity"),
        ("Yes, you can.", "No, you can.", 0.99, False, "polarity"),
        ("Yes, you can.", "You can indeed.", SIMILAR, True, "similarity"),
        ("You can return it.", "You cannot return it.", 0.99, False, "negation"),
        ("You can return it.", "You can't return it.", 0.99, False, "negation"),
        # A long answer holds some negation anyway.
        (f"{LONG} again, and it is never late.", f"{LONG} again, and it comes in time.", 0.95, True, "similarity"),
        ("Open the settings.", "Go to the settings page.", SIMILAR - 0.01, False, "similarity"),
        ("", "Something", 0.0, False, "similarity"),
    ],
)
def test_rules_first_then_the_similarity(a: str, b: str, similarity: float, same: bool, feature: str) -> None:
    found = agreement(a, b, similarity, lexicon())
    assert (found.same, found.feature) == (same, feature)


texts = st.lists(st.sampled_from(["yes", "no", "not", "30", "60", "days", "Paris", "the", "refund"]), max_size=8)


@given(texts, texts, st.floats(-1, 1))
def test_it_does_not_matter_which_answer_is_which(a: list[str], b: list[str], similarity: float) -> None:
    one, two = " ".join(a), " ".join(b)
    assert agreement(one, two, similarity, lexicon()) == agreement(two, one, similarity, lexicon())
    assert agreement(one, one, similarity, lexicon()).same
