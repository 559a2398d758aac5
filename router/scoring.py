"""What an answer is worth: by a known right answer, by agreement with the other tier's, or by what a judge said."""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from typing import Literal

import orjson

Scorer = Literal["exact", "agreement", "judge"]

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_WORD = re.compile(r"\w+")
_CUE = re.compile(r"(?i)(?:answer|antwort|respuesta|réponse|答案)\s*(?:is|ist|es|est|是)?\s*[:\uff1a]?\s*(.+)$")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")
_VERDICT = re.compile(r'\{[^{}]*"a"[^{}]*\}', re.IGNORECASE)
_ARTICLES = frozenset(("a", "an", "the"))
# A judge reads so much of each text, in characters.
JUDGED_CHARS = 6000


def exact_match(said: str, right: str) -> float:
    """1.0 where an answer is or ends in the right one, else 0.0.

    Case, punctuation and articles do not count. A number is compared as a number with the last one said; anything else
    with the whole answer, its last line, and what follows "answer:".
    """
    wanted = _plain(right)
    if not wanted:
        return 0.0
    number = _number(right) if _NUMBER.fullmatch(right.strip().lstrip("$€£")) else None
    if number is not None:
        found = _NUMBER.findall(said)
        return float(bool(found) and _number(found[-1]) == number)
    lines = [line for line in said.splitlines() if line.strip()]
    candidates = [said, *lines[-1:]]
    candidates += [cue.group(1) for line in lines[-3:] if (cue := _CUE.search(line))]
    return float(any(_plain(candidate) == wanted for candidate in candidates))


def agreement(one: str, other: str) -> float:
    """How much two answers say the same, 0..1: the F1 of their words, 0 where their last numbers differ.

    As SQuAD scores answers (Rajpurkar et al. 2016, section 6.1); ideographs count as words of one character.
    """
    first, second = _plain(one), _plain(other)
    if first == second:
        return 1.0
    mine, theirs = _NUMBER.findall(one), _NUMBER.findall(other)
    short = len(first.split()) <= 12 and len(second.split()) <= 12
    if mine and theirs and short and _number(mine[-1]) != _number(theirs[-1]):
        return 0.0
    left, right = Counter(_words(first)), Counter(_words(second))
    shared = sum((left & right).values())
    return 2 * shared / (sum(left.values()) + sum(right.values())) if shared else 0.0


def judge_question(prompt: str, first: str, second: str) -> str:
    """What a judge is asked about two answers."""
    return (
        "Rate two answers to a request. Judge whether they are correct, complete and do what was asked; length and "
        "style do not count.\n\n"
        f"<request>\n{prompt[:JUDGED_CHARS]}\n</request>\n\n<answer_a>\n{first[:JUDGED_CHARS]}\n</answer_a>\n\n"
        f"<answer_b>\n{second[:JUDGED_CHARS]}\n</answer_b>\n\n"
        'Reply with one JSON object and nothing else: {"a": N, "b": N}, each N from 0 (useless) to 10 (perfect).'
    )


def judge_verdict(said: str) -> tuple[float, float] | None:
    """The two qualities, 0..1, in a judge's reply; None where there are none."""
    for found in _VERDICT.findall(said):
        try:
            value = orjson.loads(found.lower())
        except orjson.JSONDecodeError:
            continue
        scores = [value.get(name) if isinstance(value, Mapping) else None for name in ("a", "b")]
        numbers = [float(one) for one in scores if isinstance(one, int | float) and 0 <= one <= 10]
        if len(numbers) == 2:
            return numbers[0] / 10, numbers[1] / 10
    return None


def _plain(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(word for word in _WORD.findall(folded) if word not in _ARTICLES)


def _words(plain: str) -> list[str]:
    return [part for word in plain.split() for part in (word if _CJK.search(word) else (word,))]


def _number(text: str) -> float:
    return float(text.strip().lstrip("$€£").replace(",", ""))
