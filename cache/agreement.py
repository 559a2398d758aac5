"""Whether two answers say the same: what shadow mode counts.

A measure of texts, not of truth. Rules say `different` where short facts contradict each other; otherwise the cosine
similarity of the two answers decides. `python -m bench.answer_agreement` measures it on labelled pairs of statements.
"""

import re
from dataclasses import dataclass

from cache.guard.lexicon import Lexicon
from core.embedder import Vector

# Least cosine similarity of two answers that say the same.
SIMILAR = 0.80
# An answer of so few words is a fact: it is in the other answer, or it is another fact.
FACT = 4
# Up to so many words, a negation turns the whole answer; a longer one has some anyway.
SENTENCE = 25
_WORD = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+(?:'[^\W\d_]+)?")
_YES_NO = {"yes": "yes", "yeah": "yes", "correct": "yes", "no": "no", "nope": "no", "incorrect": "no", "false": "no"}


@dataclass(frozen=True)
class Agreement:
    """`same`: the answers say the same. `feature`: what decided, `similarity` or a rule by name."""

    same: bool
    feature: str


def agreement(a: str, b: str, similarity: float, lexicon: Lexicon) -> Agreement:
    """Whether two answers to one question say the same; `similarity`: cosine of their embeddings. Symmetric."""
    return by_rule(a, b, lexicon) or by_similarity(similarity)


def by_similarity(similarity: float, cut: float = SIMILAR) -> Agreement:
    """What the embeddings say, where no rule does."""
    return Agreement(same=similarity >= cut, feature="similarity")


def by_rule(a: str, b: str, lexicon: Lexicon) -> Agreement | None:
    """What the words alone say; None where the similarity has to decide. Symmetric."""
    left, right = words(a), words(b)
    if left == right:
        return Agreement(same=True, feature="equal")
    shorter, longer = sorted((left, right), key=len)
    numbers = [{word for word in side if word[0].isdigit()} for side in (left, right)]
    if all(numbers) and not numbers[0] & numbers[1]:
        return Agreement(same=False, feature="numbers")
    verdicts = {_YES_NO[side[0]] for side in (left, right) if side and side[0] in _YES_NO}
    if len(verdicts) == 2:
        return Agreement(same=False, feature="polarity")
    if len(shorter) <= FACT and _inside(shorter, longer):
        return Agreement(same=True, feature="contained")
    if len(longer) <= SENTENCE and len({_negated(side, lexicon) for side in (left, right)}) == 2:
        return Agreement(same=False, feature="negation")
    return None


def words(text: str) -> list[str]:
    """Words and numbers in lower case; spacing, punctuation and markup do not count."""
    return _WORD.findall(text.replace("\u2019", "'").casefold())


def cosine(a: Vector, b: Vector) -> float:
    """Cosine similarity of two unit vectors."""
    return float(a @ b)


def _inside(short: list[str], long: list[str]) -> bool:
    return bool(short) and any(long[at : at + len(short)] == short for at in range(len(long) - len(short) + 1))


def _negated(said: list[str], lexicon: Lexicon) -> bool:
    return any(word in lexicon.negators or word.endswith("n't") for word in said)
