"""The shipped classifier with the real embedding model: common sense on asks it was not trained on.

`pairs.jsonl` holds easy and hard asks of equal length with the same openings; `rephrasings.jsonl` small rewordings of
one ask per line; `hard.jsonl` proofs, law, medicine, code in five languages, which a word list for English calls
simple; `stakes.jsonl` hard asks of seven languages from more domains, beside easy ones about the same things. None is
used in training: `test_no_held_out_ask_is_among_the_seed_asks` sees to it. `hard.jsonl` was looked at while training
data was written; `stakes.jsonl` was written before that, and only its sums were looked at.
"""

import json
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.config import Config
from core.embedder import MINILM
from core.encoders import encoder_for
from core.request import InferenceRequest
from router.classifier import Classifier, Score
from router.decision import ask
from router.seed import read_seed

HERE = Path(__file__).parent
THRESHOLD = Config.model_fields["router"].get_default().threshold

Scorer = Callable[[str], Score]


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return Classifier.load(None)


@pytest.fixture(scope="module")
def score(classifier: Classifier) -> Scorer:
    encoder = encoder_for()

    def scored(text: str) -> Score:
        [embedding] = encoder.encode([text])
        return classifier.score(text, embedding.vector)

    return scored


def lines(name: str) -> list[Any]:
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


def frontier(score: Score) -> bool:
    return score.complexity >= THRESHOLD


def test_the_shipped_file_is_for_the_default_embedder(classifier: Classifier) -> None:
    assert classifier.embedder == MINILM == Config.model_fields["embedder"].get_default().model


def test_no_held_out_ask_is_among_the_seed_asks() -> None:
    seed = {one.prompt.casefold() for one in read_seed()}
    held_out = [text for pair in lines("pairs.jsonl") for text in (pair["easy"], pair["hard"])]
    held_out += [text for group in lines("rephrasings.jsonl") for text in group]
    held_out += [one["prompt"] for name in ("hard.jsonl", "stakes.jsonl") for one in lines(name)]
    assert [text for text in held_out if text.casefold() in seed] == []


def test_the_pairs_are_of_equal_length() -> None:
    ratios = [len(pair["easy"]) / len(pair["hard"]) for pair in lines("pairs.jsonl")]
    assert np.mean(ratios) == pytest.approx(1, abs=0.03)


@pytest.mark.embedder
def test_easy_and_hard_asks_of_equal_length_fall_on_their_sides(score: Scorer) -> None:
    pairs = lines("pairs.jsonl")
    right: dict[str, list[bool]] = {pair["lang"]: [] for pair in pairs}
    for pair in pairs:
        right[pair["lang"]] += [not frontier(score(pair["easy"])), frontier(score(pair["hard"]))]
    everything = [one for some in right.values() for one in some]
    assert np.mean(everything) >= 0.9
    assert min(np.mean(some) for some in right.values()) >= 0.8


def test_words_and_form_alone_place_most_of_them(classifier: Classifier) -> None:
    right = []
    for pair in lines("pairs.jsonl"):
        easy, hard = (classifier.score(pair[name], None) for name in ("easy", "hard"))
        right += [not frontier(easy), frontier(hard)]
        assert not easy.familiar
    assert np.mean(right) >= 0.8


@pytest.mark.embedder
def test_proofs_law_medicine_and_code_are_hard_in_every_language(score: Scorer) -> None:
    asks = lines("hard.jsonl")
    assert Counter(one["lang"] for one in asks) == dict.fromkeys(("de", "en", "es", "fr", "zh"), 8)
    assert [(one["lang"], one["prompt"]) for one in asks if not frontier(score(one["prompt"]))] == []


@pytest.mark.embedder
def test_of_hard_asks_that_were_not_trained_on_nine_in_ten_are_hard(score: Scorer) -> None:
    """And the easy ones about the same things are not dragged along."""
    right: dict[tuple[str, bool], list[bool]] = {}
    for one in lines("stakes.jsonl"):
        right.setdefault((one["lang"], one["hard"]), []).append(frontier(score(one["prompt"])) == one["hard"])
    for hard, least, least_of_one in ((True, 0.9, 0.8), (False, 0.85, 0.75)):
        own = {lang: some for (lang, level), some in right.items() if level is hard}
        assert np.mean([one for some in own.values() for one in some]) >= least, hard
        # Of Italian and Portuguese there are too few to tell.
        found = {lang: float(np.mean(some)) for lang, some in own.items() if len(some) >= 12}
        assert set(found) == {"de", "en", "es", "fr", "zh"}
        assert min(found.values()) >= least_of_one, found


@pytest.mark.embedder
def test_small_rephrasings_keep_their_tier(score: Scorer) -> None:
    kept = []
    for first, *others in lines("rephrasings.jsonl"):
        tier = frontier(score(first))
        kept += [frontier(score(other)) == tier for other in others]
    assert np.mean(kept) >= 0.9


@pytest.mark.embedder
def test_a_prompt_of_200_000_characters_is_scored_by_its_head_and_tail(score: Scorer) -> None:
    long = "Prove the following lemma on compact operators. " + "{x" * 100_000 + " Give a rigorous proof of each step."
    assert 0 <= score(long).complexity <= 1
    assert frontier(score(long))


def test_content_parts_are_scored_like_one_text(classifier: Classifier) -> None:
    parts = [{"type": "text", "text": "Prove the lemma."}, {"type": "text", "text": "Be rigorous."}]
    request = InferenceRequest("chat", {"model": "auto", "messages": [{"role": "user", "content": parts}]})
    text = ask(request)
    assert text is not None
    assert classifier.score(text, None) == classifier.score("Prove the lemma.\nBe rigorous.", None)


def test_the_system_prompt_does_not_count(classifier: Classifier) -> None:
    harness = {"role": "system", "content": "You must prove theorems rigorously. " * 500}
    user = {"role": "user", "content": "Hello!"}
    request = InferenceRequest("chat", {"model": "auto", "messages": [harness, user]})
    assert ask(request) == "Hello!"
    assert not frontier(classifier.score("Hello!", None))


def test_scoring_leaves_nothing_behind(classifier: Classifier) -> None:
    vector = np.full(384, 384**-0.5, dtype=np.float32)
    classifier.score("Warm up.", vector)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for n in range(2000):
        classifier.score(f"Which lemma number {n} holds for {n * n} rings?", vector)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 50_000
