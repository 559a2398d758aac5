"""Which content words of two readings stand for each other."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from cache.guard.lexicon import Lexicon
from cache.guard.reading import Reading


@dataclass(frozen=True)
class Alignment:
    """`shared`: lemmas both sides have. `paired`: different words for one thing, left and right. `left`, `right`:
    what is left over.
    """

    shared: frozenset[str]
    paired: list[tuple[str, str]]
    left: list[str]
    right: list[str]


def align(a: Reading, b: Reading, lexicon: Lexicon, vocabulary: Container[str]) -> Alignment:
    """Pairs equal lemmas, then synonyms, misspellings and derived words, then initials with what they stand for."""
    left, right = apart(a.words, b.words)
    paired: list[tuple[str, str]] = []
    if left and right:
        known = {word: word in vocabulary for word in (*left, *right)}
        for word in left[:]:
            other = _partner(word, right, lexicon, known)
            if other is not None:
                paired.append((word, other))
                left.remove(word)
                right.remove(other)
        _spell_out(left, right, b.words, paired)
        _spell_out(right, left, a.words, paired)
    return Alignment(frozenset(a.words) & frozenset(b.words), paired, left, right)


def apart(a: Sequence[str], b: Sequence[str]) -> tuple[list[str], list[str]]:
    """What each side has more often than the other: its later occurrences."""
    ours, theirs = set(a), set(b)
    if len(ours) == len(a) and len(theirs) == len(b):
        return [word for word in a if word not in theirs], [word for word in b if word not in ours]
    return _without(a, b), _without(b, a)


def _without(words: Sequence[str], others: Sequence[str]) -> list[str]:
    spent: dict[str, int] = {}
    for word in others:
        spent[word] = spent.get(word, 0) + 1
    rest = []
    for word in words:
        left = spent.get(word, 0)
        if left:
            spent[word] = left - 1
        else:
            rest.append(word)
    return rest


def _partner(word: str, others: Sequence[str], lexicon: Lexicon, known: Mapping[str, bool]) -> str | None:
    """The first of `others` that is another word for `word`, or the same word built on or misspelt."""
    synonyms, start, length, mine = lexicon.synonyms.get(word, ()), word[:4], len(word), known[word]
    for other in others:
        if other in synonyms:
            return other
        if other[:4] == start and derived(word, other):
            same = True
        else:
            # Exactly one of the two is a known word.
            same = known[other] is not mine and -3 < length - len(other) < 3 and misspelt(word, other)
        if same and not opposed((word,), (other,), lexicon):
            return other
    return None


def derived(word: str, other: str) -> bool:
    """Whether one is built from the other: pay and payment, install and installation."""
    if word[:4] != other[:4]:
        return False
    short, long = sorted((word, other), key=len)
    if len(short) < 4 or not long.startswith(short[: max(4, len(short) - 2)]):
        return False
    return long.endswith(_DERIVED) and len(long) - len(short) <= 5


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


def misspelt(word: str, other: str) -> bool:
    """Whether one is one or two keystrokes away from the other; which of them is a word is the caller's to know."""
    shorter, longer = sorted((len(word), len(other)))
    most = 1 if shorter < 7 else 2
    return shorter >= 4 and longer - shorter <= most and within_edits(word, other, most)


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


def opposed(words: Sequence[str], others: Sequence[str], lexicon: Lexicon) -> bool:
    """Whether one side has the opposite of a word of the other: by the lexicon, or by what is put before or behind."""
    opposites = lexicon.opposites
    for word in words:
        listed = opposites.get(word)
        if listed is not None and not listed.isdisjoint(others):
            return True
    return _turned(words, others) or _turned(others, words)


_TURNING = ("un", "in", "im", "il", "ir", "dis", "non", "mis", "de", "anti")


def _turned(words: Sequence[str], others: Sequence[str]) -> bool:
    """Whether one of `others` is one of `words` turned around: happy and unhappy, careful and careless."""
    for other in others:
        if other.startswith(_TURNING):
            for prefix in _TURNING:
                rest = other.removeprefix(prefix)
                if rest != other and len(rest) > 3 and rest in words:
                    return True
        if other.endswith("less") and other[:-4] + "ful" in words:
            return True
    return False


def clashing(words: Sequence[str], others: Sequence[str], lexicon: Lexicon) -> bool:
    """Whether the sides have different members of one class that are no synonyms."""
    classes = lexicon.classes
    there = [other for other in others if other in classes]
    return bool(there) and any(_clash(word, other, lexicon) for word in words if word in classes for other in there)


def _clash(word: str, other: str, lexicon: Lexicon) -> bool:
    mine, theirs = lexicon.classes[word], lexicon.classes[other]
    if mine & theirs or other in lexicon.synonyms.get(word, ()):
        return False
    return any(name == another for name, _ in mine for another, _ in theirs)
