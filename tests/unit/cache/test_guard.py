"""The guard's parts, each against the plain way of doing the same."""

import numpy as np
import pytest

from cache.guard.alignment import apart, clashing, derived, opposed
from cache.guard.lexicon import lexicon
from cache.guard.model import Trees
from cache.guard.packing import unpack
from cache.guard.reading import MAX_CHARS, Reader
from cache.guard.verifier import Guard, packaged_model
from cache.guard.words import word_table
from cache.verdict import Notes, Side

VECTOR = np.eye(1, 384, dtype=np.float32)[0]


def walked(trees: Trees, features: np.ndarray) -> tuple[float, np.ndarray]:
    """One tree after the other, one step after the other."""
    total, worth = trees.base, np.zeros_like(features)
    for tree in range(len(trees.feature)):
        node = 0
        while (split := trees.feature[tree, node]) >= 0:
            side = trees.left if features[split] <= trees.threshold[tree, node] else trees.right
            below = side[tree, node]
            worth[split] += trees.value[tree, below] - trees.value[tree, node]
            node = below
        total += trees.value[tree, node]
    return total, worth


def test_all_trees_at_once_are_the_trees_one_by_one() -> None:
    model = packaged_model()
    rng = np.random.default_rng(5)
    for features in rng.normal(model.mean, 2 * model.scale + 0.1, size=(50, len(model.mean))):
        total, worth = model.trees.total(features), model.trees.contributions(features)
        plain, each = walked(model.trees, features)
        assert total == pytest.approx(plain, abs=1e-9)
        assert worth == pytest.approx(each, abs=1e-9)


def test_a_value_at_the_threshold_goes_left() -> None:
    one = np.array([[0, -1, -1]])
    values = np.array([[0.0, -1.0, 1.0]])
    trees = Trees(one, np.array([[0.5, 0, 0]]), np.array([[1, 0, 0]]), np.array([[2, 0, 0]]), values, 0.0)
    assert [trees.total(np.array([value])) for value in (0.4, 0.5, 0.6)] == [-1.0, -1.0, 1.0]


@pytest.mark.parametrize("text", ["", "???", " . ", "…", '"', "--"])
def test_a_text_without_words_is_like_no_other(text: str) -> None:
    guard = Guard(packaged_model())
    verdict = guard.verify(Side(text, VECTOR), Side("how do I reset my password", VECTOR))
    assert (verdict.served, verdict.feature) == (False, "language")


def test_of_a_text_that_is_too_long_only_its_identity_is_read() -> None:
    guard = Guard(packaged_model())
    text = "how do I reset my password " * (MAX_CHARS // 20)
    assert guard.verify(Side(text, VECTOR), Side(text.upper(), VECTOR)).feature == "identical"
    refused = guard.verify(Side(text, VECTOR), Side(text + "today", VECTOR))
    assert (refused.served, refused.feature) == (False, "language")


def test_long_tokens_are_read_and_not_remembered() -> None:
    reader = Reader(lexicon(), word_table())
    for number in range(3):
        reading = reader.read(f"what is {'x' * 100}{number}")
        assert reading.tokens == ("what", "is", f"{'x' * 100}{number}")
        assert reading == reader.read(f"what is {'x' * 100}{number}")


def test_sentences_open_behind_their_marks() -> None:
    reader = Reader(lexicon(), word_table())
    assert reader.read("Is it open? Berlin asks. Does Paris ask: Rome\nOslo too").names == frozenset({"paris"})


@pytest.mark.parametrize(
    ("left", "right", "turned"),
    [
        (["happy"], ["unhappy"], True),
        (["dishonest"], ["honest"], True),
        (["careful"], ["careless"], True),
        (["careless"], ["careful"], True),
        (["open"], ["close"], True),
        (["art"], ["unart"], False),  # too short to be sure
        (["happy", "sunny"], ["glad", "windy", "uneven"], False),
        ([], ["unhappy"], False),
    ],
)
def test_opposites_stand_on_either_side(left: list[str], right: list[str], turned: bool) -> None:
    assert opposed(left, right, lexicon()) is turned
    assert opposed(right, left, lexicon()) is turned


def test_what_one_side_has_more_often_is_apart() -> None:
    assert apart(["a", "b"], ["b", "c"]) == (["a"], ["c"])
    assert apart(["a", "b", "a"], ["a", "b", "b"]) == (["a"], ["b"])
    assert apart(["a", "a"], ["a"]) == (["a"], [])


def test_members_of_one_class_clash_unless_they_mean_the_same() -> None:
    lists = lexicon()
    one = next(iter(lists.classes))
    [(name, member), *_] = lists.classes[one]
    other = next(word for word, found in lists.classes.items() if any(c == name and m != member for c, m in found))
    if other not in lists.synonyms.get(one, ()):
        assert clashing([one], ["nothing", other], lists)
    assert not clashing([one], [one], lists)
    assert not clashing([one], [], lists)


def test_derived_words_share_their_beginning() -> None:
    assert derived("pay", "payment") is False  # too short to be sure
    assert derived("install", "installation")
    assert derived("installation", "install")
    assert not derived("settlement", "setting sun")
    assert not derived("ship", "relationship")


def test_notes_say_what_the_text_said() -> None:
    """A stored text that was noted is compared as if it were read anew, and one without notes is noted."""
    asked = "How do I reset my router's password?"
    stored = ["how to reset the password of a router", "How do I reset 2 routers in Rome?", 'say "no" to `x.y()`', "?"]
    for text in stored:
        plain = Guard(packaged_model()).verify(Side(asked, VECTOR), Side(text, VECTOR))
        guard, notes = Guard(packaged_model()), Notes()
        noted = Notes(guard.note(text))
        for one in (noted, notes):
            verdict = Guard(packaged_model()).verify(Side(asked, VECTOR), Side(text, VECTOR, one))
            assert (verdict.served, verdict.feature, verdict.score) == (plain.served, plain.feature, plain.score)
        assert notes.packed is not None
        assert noted.packed is not None
        assert unpack(notes.packed) == unpack(noted.packed)
