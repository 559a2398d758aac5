"""What is seen of an ask, and at what cost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.features import COUNT, FEATURE_CHARS, NAMES, extract, legible, length

AT = {name: index for index, name in enumerate(NAMES)}


def seen(text: str, name: str) -> float:
    return float(extract(text)[AT[name]])


@given(st.text(max_size=300))
def test_any_text_gives_finite_features_of_one_shape(text: str) -> None:
    features = extract(text)
    assert features.shape == (COUNT,)
    assert np.isfinite(features).all()


@pytest.mark.parametrize("filler", ["{", "}", "{{}}", "$", "\\", "(a", "设", "é", " ", "\n", "1,", "A. x\n"])
def test_of_a_huge_prompt_only_head_tail_and_length_count(filler: str) -> None:
    head, tail = "Prove the lemma. ", " Explain why."
    huge = head + filler * (400_000 // len(filler)) + tail
    half = FEATURE_CHARS // 2
    assert np.array_equal(np.delete(extract(huge), _lengths()), np.delete(extract(_cut(huge, half)), _lengths()))


def _cut(text: str, half: int) -> str:
    return f"{text[:half]}\n{text[-half:]}"


def _lengths() -> list[int]:
    return [AT["log_length"], AT["short"], AT["medium"], AT["long"]]


@pytest.mark.parametrize(
    "text",
    [
        "Prove that this holds.",
        "Beweise, dass dies gilt.",
        "Démontrez que cela vaut.",
        "Demuestra que esto vale.",
        "证明这个结论成立。",
        "Докажите, что это верно.",
        "これを証明してください。",
    ],
)
def test_a_proof_is_recognized_in_any_language(text: str) -> None:
    assert seen(text, "has_proof") == 1
    assert seen(text, "has_greeting") == 0


@pytest.mark.parametrize("text", ["Hello!", "Guten Morgen!", "Bonjour !", "¡Hola!", "你好。", "Привет!"])
def test_a_greeting_is_recognized_in_any_language(text: str) -> None:
    assert seen(text, "has_greeting") == 1
    assert seen(text, "has_proof") == 0


def test_accents_and_case_do_not_matter_to_words() -> None:
    kinds = [index for name, index in AT.items() if name.startswith(("has_", "log_")) and name != "log_length"]
    assert np.array_equal(extract("DÉMONTRER")[kinds], extract("demontrer")[kinds])


def test_a_whole_word_stem_does_not_match_a_longer_word() -> None:
    assert seen("cat", "has_everyday") == 1
    assert seen("catastrophe", "has_everyday") == 0


def test_form_is_seen() -> None:
    assert seen("Pick one:\nA. red\nB. blue\nC. green", "options") == 1
    assert seen("```\nx = 1\n```", "fence") == 1
    assert seen("Is it so?", "ends_question") == 1
    assert seen("真的吗？", "ends_question") == 1  # noqa: RUF001  # the full-width mark is the point
    assert seen("What is 7 * 8?", "small_sum") == 1
    assert seen("Sort in O(n log n) time", "big_o") == 1
    assert seen(r"Let $\alpha \le \beta$", "latex") > 0


def test_the_same_words_with_other_endings_share_their_place() -> None:
    bag = slice(len(NAMES), None)
    assert np.array_equal(extract("optimize")[bag], extract("optimizations")[bag])
    assert not np.array_equal(extract("optimize")[bag], extract("minimize")[bag])


def test_scripts_that_the_embedder_cannot_read_are_told_apart() -> None:
    assert legible("What is this?")
    assert legible("这是什么？")  # noqa: RUF001  # the full-width mark is the point
    assert legible("Let α and β be roots of the polynomial")  # noqa: RUF001  # Greek letters are the point
    assert not legible("Что это такое?")
    assert not legible("이것은 무엇입니까?")
    assert not legible("ما هذا؟")
    assert not legible("🙂🙂🙂")
    assert not legible("")


def test_length_grows_with_the_text() -> None:
    assert length("") < length("a") < length("ab")
