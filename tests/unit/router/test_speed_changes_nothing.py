"""What is fast is compared with its plain definition: features, score, digests of a conversation, words of a text."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.request import InferenceRequest
from router.artefact import Artefact
from router.characters import CLASSES, CODE, MATH, count_classes
from router.classifier import Classifier
from router.conversations import Conversations
from router.decision import TierFacts, decide
from router.features import FEATURE_CHARS, extract, legible
from router.mixture import joined, scaled
from router.seed import read_seed
from tests.unit.router import plain_features as plain

SEED = [ask.prompt for ask in read_seed()]
# Bits of which real prompts and edge cases are made.
BITS = (
    "prove ", "Beweise", "démontr", "证明", "谢谢谢谢", "при", "이것", "def ", "class\u0301x", "for_", "while²", "o(n)",
    "\\alpha", "\n", "\t", "    x", "A. ", " (B) ", "C)", "```", "1,234.5", "3 * 4", "½", "\uff21\uff11\uff1f", "ǅ",
    "\U0001d7d9", "\U0001d400", "🙂", "\ud800", "é", "e\u0301", "ß", "ﬁ", "℀", "“", "。", "\uff1f", "?", "!", ":",
    ";", "%", "$", "at least ", "how many ", "answer:", "\x1c", "\u2003", "\u0344", "İ",
)  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=200),
    st.lists(st.sampled_from(BITS), max_size=60).map("".join),
    st.lists(st.sampled_from(SEED), max_size=30).map(" ".join),
)


@given(TEXTS)
@example("".join(BITS) * 40)
@example("\n" * 3 + "A. x\n\n B) y\n(C) z")
@example("A. one\n" + " " * FEATURE_CHARS)
def test_features_are_those_of_the_plain_definition(text: str) -> None:
    assert np.array_equal(extract(text), plain.extract(text))
    assert legible(text) == plain.legible(text)


def test_features_of_asks_short_and_long_are_those_of_the_plain_definition() -> None:
    for text in [*SEED[::97], *("\n".join(SEED[at : at + 40]) for at in range(0, len(SEED), 800))]:
        assert np.array_equal(extract(text), plain.extract(text))


@given(TEXTS)
def test_classes_of_characters_are_counted_one_by_one(text: str) -> None:
    found = dict(zip(CLASSES, count_classes(text), strict=True))
    assert found["digit"] == sum(map(str.isdigit, text))
    assert found["upper"] == sum(map(str.isupper, text))
    assert found["non_ascii"] == sum(not char.isascii() for char in text)
    assert found["math"] == sum(char in MATH for char in text)
    assert found["code"] == sum(char in CODE for char in text)


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return Classifier.load(None)


def scored(model: Artefact, text: str, vector: "np.ndarray[Any, Any] | None") -> float:
    """The complexity by the mixtures' own formula, for many rows at once."""
    features = scaled(plain.extract(text)[np.newaxis], model.mean, model.scale)
    logit = float(model.plain.logits(features)[0])
    if vector is not None and plain.legible(text):
        full = float(model.full.logits(joined(vector[np.newaxis], features))[0])
        near = float((model.prototypes @ vector).max()) >= model.familiar_at
        logit = full if near else (full + logit) / 2
    return 1 / (1 + float(np.exp(-logit)))


def test_scores_are_those_of_the_plain_formula(classifier: Classifier) -> None:
    model, generator = classifier.artefact, np.random.default_rng(0)
    familiar = set()
    for number, text in enumerate([*SEED[::97], "", "Что это такое?", "".join(BITS)]):
        vector = generator.normal(size=model.dim).astype(np.float32)
        if number % 2:
            vector += 20 * model.prototypes[number % len(model.prototypes)]
        vector /= np.linalg.norm(vector)
        for given_vector in (vector, None):
            found = classifier.score(text, given_vector)
            assert found.complexity == pytest.approx(scored(model, text, given_vector), abs=1e-6)
        familiar.add(classifier.score(text, vector).familiar)
    assert familiar == {True, False}


ROLES = st.sampled_from(["user", "assistant", "system", "tool"])
CONTENTS = st.one_of(st.text(max_size=5), st.none(), st.lists(st.fixed_dictionaries({"text": st.text(max_size=3)})))
MESSAGES = st.lists(st.fixed_dictionaries({"role": ROLES, "content": CONTENTS}), min_size=1, max_size=8)


def chat(messages: list[dict[str, Any]]) -> InferenceRequest:
    return InferenceRequest("chat", {"model": "auto", "messages": messages})


@given(MESSAGES, MESSAGES)
def test_a_turn_is_known_by_all_that_came_before_it(messages: list[dict[str, Any]], more: list[dict[str, Any]]) -> None:
    """The digest of what was said up to a user's turn is the same whenever it is asked for, and no other's."""
    first = chat([*messages, {"role": "user", "content": "one"}])
    second = chat([*first.messages, {"role": "assistant", "content": "x"}, {"role": "user", "content": "two"}])
    third = chat([*first.messages, {"role": "assistant", "content": "x"}, {"role": "tool", "content": "y"}])
    assert first.turns.last == second.turns.previous == third.turns.previous == third.turns.last
    other = chat([*more, {"role": "user", "content": "one"}])
    assert (other.turns.last == first.turns.last) == (more == messages)
    users = [index for index, message in enumerate(messages) if message["role"] == "user"]
    assert (chat(messages).turns.last is None) == (users == [])


def test_a_tenant_cannot_pass_for_another() -> None:
    memory, request = Conversations(), chat([{"role": "user", "content": "one"}])
    memory.remember("a", request, "frontier")
    following = chat([*request.messages, {"role": "assistant", "content": "x"}, {"role": "user", "content": "two"}])
    assert [memory.floor(tenant, following) for tenant in ("a", "", "aa", "b")] == ["frontier", None, None, None]


@given(st.lists(st.text(alphabet="ab \n\x08\x0e\u2003", max_size=9000), max_size=3), st.integers(-2, 4000))
def test_a_context_is_exceeded_by_more_words_than_it_has_tokens(texts: list[str], context: int) -> None:
    body: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": text} for text in texts]}
    tiers = {"small": TierFacts("a", frozenset(), context), "frontier": TierFacts("b", frozenset(), None)}
    found = decide(InferenceRequest("chat", body), tiers, forced=None, floor=None, score=None, threshold=0.5)
    words = [word for text in texts for word in re.split(r"[ \t\n\v\f\r]+", text) if word]
    fits = len(words) <= context or sum(map(len, texts)) <= 2 * context
    if fits:
        assert found.reason != "context"
    elif sum(map(len, texts)) <= 8 * len(words):
        # Texts of longer words, or with much space between them, are not read to their end.
        assert found.reason == "context" or len("\n".join(texts)) > 8 * (context + 1)
