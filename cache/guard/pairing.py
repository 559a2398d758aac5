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
        self._refused: str | None = None
        self._ruled = False
        self._features: NDArray[np.float64] | None = None

    def refusal(self) -> str | None:
        """The hard rule that forbids serving one for the other, or None."""
        if not self._ruled:
            self._refused = self._refused_by_readings() or self._refused_by_words(self._compared())
            self._ruled = True
        return self._refused

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
        over, near = (*aligned.left, *aligned.right), _nearness(a, b, table)
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
            *near.coverage(words, table),
            max(words.over),
            min(words.over),
            counts[1],
            counts[0],
            *near.substitutes(aligned),
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


@dataclass(slots=True)
class _Nearness:
    """How near the content words of one side are to those of the other, as cosines of their static vectors.

    `rows`: one per word of the first side, in order, with one value per word of the other side. `columns`: the same the
    other way round. `row_of`, `column_of`: the place of a word.
    """

    rows: Sequence[Sequence[float]]
    columns: Sequence[Sequence[float]]
    row_of: Mapping[str, int]
    column_of: Mapping[str, int]

    def coverage(self, words: _Words, table: WordTable) -> tuple[float, float]:
        """Share of each side's weight that the other covers, a left-over word by its nearest word; the larger first."""
        left, right = words.aligned.left, words.aligned.right
        one = _coverage([self.rows[self.row_of[word]] for word in left], left, words.totals[0], table)
        other = _coverage([self.columns[self.column_of[word]] for word in right], right, words.totals[1], table)
        return max(one, other), min(one, other)

    def substitutes(self, aligned: Alignment) -> tuple[float, float, float]:
        """Best and worst cosine of left-over words that face each other, and of the worst one that faces none."""
        lines, at_line, at_place = self.rows, self.row_of, self.column_of
        few, many = aligned.left, aligned.right
        if len(few) > len(many):
            lines, at_line, at_place = self.columns, self.column_of, self.row_of
            few, many = many, few
        if not many:
            return 1.0, 1.0, 1.0
        facing: list[float] = []
        alone = set(range(len(many)))
        if few:
            # The best pair first, then the best of those words that are left, and so on.
            near, places = [lines[at_line[word]] for word in few], [at_place[word] for word in many]
            cells = [(-line[place], row, at) for row, line in enumerate(near) for at, place in enumerate(places)]
            cells.sort()
            free = set(range(len(few)))
            for value, row, at in cells:
                if row in free and at in alone:
                    facing.append(-value)
                    free.discard(row)
                    alone.discard(at)
        return max(facing, default=1.0), min(facing, default=1.0), self._fit([many[at] for at in alone], at_place)

    def _fit(self, alone: Sequence[str], place_of: Mapping[str, int]) -> float:
        """The cosine of the word that has the least to its nearest one on the other side."""
        if not alone:
            return 1.0
        lines = self.rows if place_of is self.row_of else self.columns
        return min([max(lines[place_of[word]], default=-1.0) for word in alone])


def _nearness(a: Reading, b: Reading, table: WordTable) -> _Nearness:
    rows: list[list[float]] = (table.whole(a.words) @ table.whole(b.words).T).tolist()
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(b.words)
    return _Nearness(rows, columns, _places(a.words), _places(b.words))


def _places(words: Sequence[str]) -> dict[str, int]:
    return {word: at for at, word in enumerate(words)}


def _coverage(near: Sequence[Sequence[float]], left: Sequence[str], total: float, table: WordTable) -> float:
    lost = 0.0
    for word, line in zip(left, near, strict=True):
        lost += table.weight(word) * (1.0 - min(max(*line, 0.0), 1.0) if line else 1.0)
    return 1.0 - lost / total


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
