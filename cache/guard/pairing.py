"""What two readings have in common and what they do not: the guard's hard rules and its features."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cache.guard.alignment import Alignment, align, apart, clashing, opposed
from cache.guard.lexicon import Lexicon
from cache.guard.reading import Reading
from cache.guard.words import WordTable

# Order of the model's inputs. Weights of words grow with their rarity; "left over" words have no partner on the other
# side; for each pair of sides the larger and the smaller value are given, so that the order of the texts is nothing.
FEATURES = (
    "similarity",
    "shared_weight_max",
    "shared_weight_min",
    "soft_overlap_max",
    "soft_overlap_min",
    "left_over_weight_max",
    "left_over_weight_min",
    "left_over_count_max",
    "left_over_count_min",
    "substitute_best",
    "substitute_worst",
    "addition_fit",
    "rarest_left_over",
    "unknown_left_over",
    "token_overlap",
    "bigram_overlap",
    "frame",
    "gap_max",
    "gap_min",
    "inversions",
    "role_changes",
    "role_swaps",
    "names_missing_max",
    "names_missing_min",
    "names_shared",
    "names_turned",
    "negated_differ",
    "opposed",
    "kind_same",
    "kind_conflict",
    "paired",
    "numbers_shared",
    "length_ratio",
    "length",
)
# Texts of more tokens than LONG are statements rather than questions; ALIKE: share of the words' weight in common.
LONG = 25
ALIKE = 0.75
SYMMETRIC = frozenset({"and", "or", "versus", "from", "the", "a", "an"})
_OPEN_KINDS = frozenset({"what", "say", "which"})
_NEAR_KINDS = frozenset({frozenset({"how", "yesno"}), frozenset({"number", "amount"}), frozenset({"when", "duration"})})


class Pair:
    """Two readings compared. Symmetric: the order of the readings changes nothing but which side is called left."""

    def __init__(self, a: Reading, b: Reading, lexicon: Lexicon, words: WordTable) -> None:
        self.a, self.b = a, b
        self._lexicon, self._table = lexicon, words
        self._words: _Words | None = None
        self._features: NDArray[np.float64] | None = None

    def refusal(self) -> str | None:
        """The hard rule that forbids serving one for the other, or None."""
        return self._refused_by_readings() or self._refused_by_words(self._compared())

    def _refused_by_readings(self) -> str | None:
        """The rules for which each text was read by itself: the cheap ones."""
        a, b = self.a, self.b
        if not a.judged or not b.judged:
            return "language"
        if a.moment or b.moment:
            return "moment"
        if a.numbers != b.numbers and set(a.numbers) != set(b.numbers):
            return "numbers"
        if a.measures and b.measures and _units_differ(a, b, self._lexicon.counted):
            return "units"
        if not (_mentions(a.codes, b) and _mentions(b.codes, a)):
            return "codes"
        if not (_mentions(a.quotes, b) and _mentions(b.quotes, a)):
            return "quotes"
        if a.negations != b.negations or (a.negations > 0 and not a.negated & b.negated):
            return "negation"
        return None

    def _refused_by_words(self, words: "_Words") -> str | None:
        """The rules about words that one side has and the other has not."""
        if words.turning > 0:
            return "turning"
        if words.comparable and words.opposed:
            return "opposites"
        if clashing(words.left, words.right, self._lexicon):
            return "classes"
        if words.comparable and (words.swaps > 0 or words.exchanged):
            return "order"
        return "names" if all(words.missing) else None

    def features(self, similarity: float) -> NDArray[np.float64]:
        """The model's inputs, shape (len(FEATURES),), in that order."""
        if self._features is None:
            self._features = self._measured()
        features = self._features.copy()
        features[0] = similarity
        return features

    def _measured(self) -> NDArray[np.float64]:
        """The features of the texts; the place of the similarity is left open."""
        a, b, words = self.a, self.b, self._compared()
        aligned, table = words.aligned, self._table
        over = (*aligned.left, *aligned.right)
        counts = sorted((len(aligned.left), len(aligned.right)))
        missing = sorted(words.missing)
        prefix, gaps = _frame(a.tokens, b.tokens)
        longest = max(len(a.tokens), len(b.tokens), 1)
        names = a.names & b.names
        union = len(a.tokens) + len(b.tokens) - words.common
        values = (
            0.0,
            words.shared[1],
            words.shared[0],
            *_covered(a, b, words, table),
            max(words.over),
            min(words.over),
            counts[1],
            counts[0],
            *_substitutes(a, b, aligned, table),
            max(map(table.weight, over), default=0.0),
            sum([word not in table for word in over]),
            words.common / max(1, union),
            _bigram_overlap(a, b),
            prefix / longest,
            gaps[1],
            gaps[0],
            _inversions(a.words, b.words, aligned.shared),
            words.changes,
            words.swaps,
            missing[1],
            missing[0],
            len(names),
            _inversions(a.words, b.words, names),
            len(a.negated ^ b.negated),
            words.opposed,
            a.kind == b.kind,
            _kinds_conflict(a.kind, b.kind),
            len(aligned.paired),
            len(set(a.numbers).intersection(b.numbers)),
            min(len(a.tokens), len(b.tokens)) / longest,
            longest,
        )
        return np.array(values, dtype=np.float64)

    def _compared(self) -> "_Words":
        if self._words is None:
            self._words = _compare(self.a, self.b, self._lexicon, self._table)
        return self._words


@dataclass(slots=True)
class _Words:
    """The words of two readings compared.

    `common`: tokens in common. `left`, `right`: words of each side, once each, that the other has not, nor another word
    for it. `over`, `totals`: what the alignment leaves over on each side, and all of each side, by weight; `shared`:
    the share of each side that the other has, the smaller one first. `comparable`: opposites and turned roles must face
    each other. `turning`: how many more words turn or narrow the meaning on one side. `missing`: how many names of each
    side the other does not mention. `changes`, `swaps`: words whose prepositions changed, and pairs that traded places.
    """

    aligned: Alignment
    common: int
    left: list[str]
    right: list[str]
    over: tuple[float, float]
    totals: tuple[float, float]
    shared: list[float]
    comparable: bool
    turning: int
    opposed: bool
    exchanged: bool
    missing: tuple[int, int]
    changes: int
    swaps: int


def _compare(a: Reading, b: Reading, lexicon: Lexicon, table: WordTable) -> _Words:
    aligned = align(a, b, lexicon, table)
    tokens = apart(a.tokens, b.tokens)
    paired = {word for pair in aligned.paired for word in pair}
    left = [word for word in dict.fromkeys((*tokens[0], *aligned.left)) if word not in paired]
    right = [word for word in dict.fromkeys((*tokens[1], *aligned.right)) if word not in paired]
    over = table.total(aligned.left), table.total(aligned.right)
    totals = table.total(a.words) or 1.0, table.total(b.words) or 1.0
    shared = sorted((1 - over[0] / totals[0], 1 - over[1] / totals[1]))
    turning = lexicon.turning
    changes, swaps = _role_changes(a.roles, b.roles)
    return _Words(
        aligned=aligned,
        common=len(a.tokens) - len(tokens[0]),
        left=left,
        right=right,
        over=over,
        totals=totals,
        shared=shared,
        # In long texts that are worded differently, opposites and turned roles need not face each other.
        comparable=max(len(a.tokens), len(b.tokens)) <= LONG or shared[0] >= ALIKE,
        turning=abs(len(turning.intersection(left)) - len(turning.intersection(right))),
        opposed=opposed(left, right, lexicon),
        exchanged=not (tokens[0] or tokens[1]) and exchanged(a.tokens, b.tokens),
        missing=(_unmentioned(a.names, aligned.left, b.tokens), _unmentioned(b.names, aligned.right, a.tokens)),
        changes=changes,
        swaps=swaps,
    )


def _units_differ(a: Reading, b: Reading, counted: frozenset[str]) -> bool:
    ours, theirs = ({pair for pair in reading.measures if pair[1] in counted} for reading in (a, b))
    return any(
        number == other and unit != different and (number, unit) not in theirs
        for number, unit in ours
        for other, different in theirs
    )


def _covered(a: Reading, b: Reading, words: _Words, table: WordTable) -> tuple[float, float]:
    """Share of each side's weight that the other covers, a left-over word by its nearest word; the larger one first."""
    left, right = words.aligned.left, words.aligned.right
    one = _coverage(left, b.words, words.totals[0], table)
    other = _coverage(right, a.words, words.totals[1], table)
    return max(one, other), min(one, other)


def _coverage(left: Sequence[str], others: tuple[str, ...], total: float, table: WordTable) -> float:
    if not left:
        return 1.0
    weights = [table.weight(word) for word in left]
    if not others:
        return 1 - sum(weights) / total
    nearest = np.maximum.reduce(table.stack(left) @ table.whole(others).T, axis=1)
    distance = 1 - np.minimum(np.maximum(nearest, 0), 1)
    lost = np.add.accumulate(np.array(weights, dtype=np.float32) * distance)[-1]
    return float(1 - lost / np.float32(total))


def _substitutes(a: Reading, b: Reading, aligned: Alignment, table: WordTable) -> tuple[float, float, float]:
    """Best and worst similarity of left-over words that face each other, and of the worst one that faces none."""
    few, many = sorted((aligned.left, aligned.right), key=len)
    others = b.words if many is aligned.left else a.words
    if not many:
        return 1.0, 1.0, 1.0
    facing: list[float] = []
    alone = set(range(len(many)))
    if few:
        # The best pair first, then the best of those words that are left, and so on.
        near = (table.stack(few) @ table.stack(many).T).tolist()
        cells = sorted((-value, row, column) for row, line in enumerate(near) for column, value in enumerate(line))
        free = set(range(len(few)))
        for value, row, column in cells:
            if row in free and column in alone:
                facing.append(-value)
                free.discard(row)
                alone.discard(column)
    fit = 1.0
    if alone and others:
        unfaced = table.stack([many[at] for at in sorted(alone)])
        fit = float(np.maximum.reduce(unfaced @ table.whole(others).T, axis=1).min())
    elif alone:
        fit = -1.0
    return max(facing, default=1.0), min(facing, default=1.0), fit


def _role_changes(a: Mapping[str, frozenset[str]], b: Mapping[str, frozenset[str]]) -> tuple[int, int]:
    """Words whose prepositions changed, and pairs of them that traded places."""
    changed = [word for word in a if word in b and not a[word] & b[word]]
    swaps = 0
    for at, x in enumerate(changed):
        for y in changed[at + 1 :]:
            swaps += bool(a[x] & b[y] and a[y] & b[x])
    return len(changed), swaps


def _kinds_conflict(kind: str, other: str) -> bool:
    return kind != other and not _OPEN_KINDS & {kind, other} and frozenset((kind, other)) not in _NEAR_KINDS


def exchanged(a: Sequence[str], b: Sequence[str]) -> bool:
    """Whether two pieces traded places around something that stayed: the cat chased the dog.

    A clause that only moved leaves nothing between the pieces, and around `and`, `or`, `vs` order means nothing.
    """
    if a == b or sorted(a) != sorted(b):
        return False
    head = 0
    while a[head] == b[head]:
        head += 1
    tail = 0
    while a[-1 - tail] == b[-1 - tail]:
        tail += 1
    here, there = list(a[head : len(a) - tail]), list(b[head : len(b) - tail])
    for first in range(1, len(here)):
        if here[:first] != there[-first:]:
            continue
        for last in range(1, len(here) - first):
            between = here[first:-last]
            if here[-last:] == there[:last] and between == there[last : len(there) - first]:
                return not set(between) <= SYMMETRIC
    return False


def _mentions(pieces: frozenset[str], there: Reading) -> bool:
    """Whether `there` has every one of `pieces` literally."""
    if not pieces:
        return True
    text = there.identity.casefold()
    return all(piece in text for piece in pieces)


def _unmentioned(names: frozenset[str], left: Sequence[str], there: Sequence[str]) -> int:
    return sum([name in left and name not in there for name in names]) if names else 0


def _frame(a: Sequence[str], b: Sequence[str]) -> tuple[int, list[int]]:
    """Equal tokens at both ends together, and how many lie between them on the shorter and the longer side."""
    shortest = min(len(a), len(b))
    head = 0
    while head < shortest and a[head] == b[head]:
        head += 1
    tail = 0
    while tail < shortest - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    return head + tail, sorted((len(a) - head - tail, len(b) - head - tail))


def _bigram_overlap(a: Reading, b: Reading) -> float:
    left, right = a.bigrams, b.bigrams
    common = len(left & right)
    union = len(left) + len(right) - common
    return common / union if union else float(a.tokens == b.tokens)


def _inversions(a: Sequence[str], b: Sequence[str], words: frozenset[str]) -> float:
    """Share of the pairs of `words` that stand in another order in `b` than in `a`."""
    places = {word: at for at, word in enumerate(b)}
    order = [places[word] for word in dict.fromkeys(a) if word in words and word in places]
    pairs = len(order) * (len(order) - 1) // 2
    turned = sum(later < earlier for at, earlier in enumerate(order) for later in order[at + 1 :])
    return turned / pairs if pairs else 0.0
