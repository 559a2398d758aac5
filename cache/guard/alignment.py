"""Which content words of two readings stand for each other."""

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from cache.guard.lexicon import Lexicon
from cache.guard.reading import Reading


@dataclass(frozen=True)
class Alignment:
    """`shared`: lemmas both sides have. `paired`: different words for one thing, left and right. `left`, `right`:
    what is left over.
    """

    shared: list[str]
    paired: list[tuple[str, str]]
    left: list[str]
    right: list[str]


def align(a: Reading, b: Reading, lexicon: Lexicon, vocabulary: Container[str]) -> Alignment:
    """Pairs equal lemmas, then synonyms, misspellings and derived words, then initials with what they stand for."""
    common = Counter(a.words) & Counter(b.words)
    left, right = _without(a.words, common), _without(b.words, common)
    paired: list[tuple[str, str]] = []
    if left and right:
        for word in left[:]:
            other = next((other for other in right if _same_thing(word, other, lexicon, vocabulary)), None)
            if other is not None:
                paired.append((word, other))
                left.remove(word)
                right.remove(other)
        _spell_out(left, right, b.words, paired)
        _spell_out(right, left, a.words, paired)
    return Alignment(list(common.elements()), paired, left, right)


def _without(words: Sequence[str], common: Counter[str]) -> list[str]:
    spent = Counter(common)
    rest = []
    for word in words:
        if spent[word] > 0:
            spent[word] -= 1
        else:
            rest.append(word)
    return rest


def _same_thing(word: str, other: str, lexicon: Lexicon, vocabulary: Container[str]) -> bool:
    if other in lexicon.synonyms.get(word, ()):
        return True
    if opposed([word], [other], lexicon) is not None:
        return False
    return misspelt(word, other, vocabulary) or derived(word, other)


def derived(word: str, other: str) -> bool:
    """Whether one is built from the other: pay and payment, install and installation."""
    short, long = sorted((word, other), key=len)
    if len(short) < 4 or not long.startswith(short[: max(4, len(short) - 2)]):
        return False
    return any(long.endswith(ending) for ending in _DERIVED) and len(long) - len(short) <= 5


_DERIVED = (
    "ment",
    "ation",
    "ition",
    "tion",
    "sion",
    "ing",
    "al",
    "ance",
    "ence",
    "ness",
    "ity",
    "ly",
    "ery",
    "age",
    "ure",
)


def misspelt(word: str, other: str, vocabulary: Container[str]) -> bool:
    """Whether exactly one is a known word and the other one or two keystrokes away from it."""
    if min(len(word), len(other)) < 4 or (word in vocabulary) == (other in vocabulary):
        return False
    return within_edits(word, other, 1 if min(len(word), len(other)) < 7 else 2)


def within_edits(word: str, other: str, most: int) -> bool:
    """Whether at most `most` letters were added, lost, changed or turned (optimal string alignment distance)."""
    if abs(len(word) - len(other)) > most:
        return False
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(word, 1):
        above, before, row = before, row, [i]
        for j, against in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != against))
            if i > 1 and j > 1 and letter == other[j - 2] and word[i - 2] == against:
                cost = min(cost, above[j - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return False
    return row[-1] <= most


def _spell_out(short: list[str], long: list[str], words: Sequence[str], paired: list[tuple[str, str]]) -> None:
    """Pairs initials left over on one side with the words they stand for on the other."""
    for initials in [word for word in short if 2 <= len(word) <= 5 and word.isalpha()]:
        letters = "".join(word[0] for word in words)
        at = letters.find(initials)
        if at < 0:
            continue
        meant = words[at : at + len(initials)]
        if all(word in long for word in meant):
            short.remove(initials)
            paired.append((initials, " ".join(meant)))
            for word in meant:
                long.remove(word)


def opposed(words: Iterable[str], others: Sequence[str], lexicon: Lexicon) -> tuple[str, str] | None:
    """A word and its opposite among `others`, by the lexicon or by a prefix or ending that turns it around."""
    for word in words:
        listed = lexicon.opposites.get(word, frozenset())
        for other in others:
            if other in listed or _turned(word, other) or _turned(other, word):
                return word, other
    return None


_TURNING = ("un", "in", "im", "il", "ir", "dis", "non", "mis", "de", "anti")


def _turned(word: str, other: str) -> bool:
    if len(word) > 3 and other.endswith(word) and other[: -len(word)] in _TURNING:
        return True
    return word.endswith("ful") and other == word[:-3] + "less"


def clashing(words: Iterable[str], others: Sequence[str], lexicon: Lexicon) -> tuple[str, str] | None:
    """Two words that are different members of one class and no synonyms."""
    for word in words:
        mine = lexicon.classes.get(word)
        if not mine:
            continue
        for other in others:
            theirs = lexicon.classes.get(other)
            if (
                theirs
                and not mine & theirs
                and other not in lexicon.synonyms.get(word, ())
                and _share_class(mine, theirs)
            ):
                return word, other
    return None


def _share_class(mine: frozenset[tuple[str, str]], theirs: frozenset[tuple[str, str]]) -> bool:
    return any(name == other for name, _ in mine for other, _ in theirs)
