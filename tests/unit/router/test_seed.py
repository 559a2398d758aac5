"""The asks that stand for chat traffic: those that are made are whole, different, and the same in every run."""

from collections import Counter

from router.seed import balanced_weights, made, read_seed

TEXT = """# A note.

[en hard one]
x = a cat | a dog | a cow
y = 1 | 2
- {x} has {y} legs.
- Why {x}?

[de easy two]
z = Hund | Katze
- Was ist {z}?
"""


def test_sentences_are_completed_in_every_way_and_come_in_turn() -> None:
    found = made(TEXT)
    own = [ask.prompt for ask in found if ask.language == "en"]
    assert len(own) == len(set(own)) == 9
    assert [prompt.startswith("Why") for prompt in own[:6]] == [False, True] * 3
    assert {ask.prompt for ask in found if ask.language == "de"} == {"Was ist Hund?", "Was ist Katze?"}
    assert {(ask.hard, ask.kind, ask.made) for ask in found} == {(True, "one", True), (False, "two", True)}
    assert made(TEXT) == found


def test_no_sentence_is_left_with_a_gap_and_every_language_has_both_sides() -> None:
    asks = read_seed()
    assert [ask.prompt for ask in asks if ask.made and ("{" in ask.prompt or "|" in ask.prompt)] == []
    assert len({ask.prompt for ask in asks}) == len(asks)
    counts = Counter((ask.language, ask.hard) for ask in asks if ask.made)
    assert set(counts) == {(language, hard) for language in ("de", "en", "es", "fr", "zh") for hard in (False, True)}


def test_easy_and_hard_asks_of_a_language_weigh_the_same() -> None:
    asks = read_seed()
    weights = balanced_weights(asks)
    for language in {ask.language for ask in asks}:
        own = [(ask.hard, weight) for ask, weight in zip(asks, weights, strict=True) if ask.language == language]
        sides = [sum(weight for hard, weight in own if hard is side) for side in (False, True)]
        assert abs(sides[0] - sides[1]) < 1e-6 * sides[0]
