"""What two readings have in common and what they do not: the guard's hard rules and its features."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cache.guard.alignment import align, clashing, opposed
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
        self._lexicon, self._words = lexicon, words
        common = Counter(a.tokens) & Counter(b.tokens)
        self._common_tokens = common.total()
        self.tokens_left = list((Counter(a.tokens) - common).elements())
        self.tokens_right = list((Counter(b.tokens) - common).elements())
        self.alignment = align(a, b, lexicon, words)
        left, right = self.alignment.left, self.alignment.right
        weights = [sum(map(words.weight, side)) for side in (left, right, a.words, b.words)]
        self._left_over = weights[:2]
        self._totals = [weight or 1.0 for weight in weights[2:]]
        self._shared = sorted(1 - rest / total for rest, total in zip(weights[:2], self._totals, strict=True))
        # In long texts that are worded differently, opposites and turned roles need not face each other.
        self._comparable = max(len(a.tokens), len(b.tokens)) <= LONG or self._shared[0] >= ALIKE
        paired = {word for pair in self.alignment.paired for word in pair}
        self._left = [word for word in dict.fromkeys((*self.tokens_left, *left)) if word not in paired]
        self._right = [word for word in dict.fromkeys((*self.tokens_right, *right)) if word not in paired]

    def refusal(self) -> str | None:
        """The hard rule that forbids serving one for the other, or None."""
        a, b = self.a, self.b
        checks: tuple[tuple[str, Callable[[], bool]], ...] = (
            ("language", lambda: not a.judged or not b.judged),
            ("moment", lambda: a.moment or b.moment),
            ("numbers", lambda: set(a.numbers) != set(b.numbers)),
            ("units", self._units_differ),
            ("codes", lambda: not (_mentions(a.codes, b) and _mentions(b.codes, a))),
            ("quotes", lambda: not (_mentions(a.quotes, b) and _mentions(b.quotes, a))),
            ("negation", lambda: a.negations != b.negations or (a.negations > 0 and not a.negated & b.negated)),
            ("turning", lambda: self._turning() > 0),
            ("opposites", lambda: self._comparable and self._opposed is not None),
            ("classes", lambda: clashing(self._left, self._right, self._lexicon) is not None),
            ("order", lambda: self._comparable and (self._roles[1] > 0 or exchanged(a.tokens, b.tokens))),
            ("names", lambda: bool(self._missing(a, b)) and bool(self._missing(b, a))),
        )
        return next((name for name, broken in checks if broken()), None)

    def features(self, similarity: float) -> NDArray[np.float64]:
        """The model's inputs, shape (len(FEATURES),), in that order."""
        a, b, aligned = self.a, self.b, self.alignment
        weigh = self._words.weight
        soft = sorted(self._soft())
        counts = sorted((len(aligned.left), len(aligned.right)))
        missing = sorted((len(self._missing(a, b)), len(self._missing(b, a))))
        prefix, gaps = _frame(a.tokens, b.tokens)
        longest = max(len(a.tokens), len(b.tokens), 1)
        rarest = [weigh(word) for word in (*aligned.left, *aligned.right)]
        changes, swaps = self._roles
        kinds = frozenset({a.kind, b.kind})
        union = len(a.tokens) + len(b.tokens) - self._common_tokens
        values = (
            similarity,
            self._shared[1],
            self._shared[0],
            soft[1],
            soft[0],
            max(self._left_over),
            min(self._left_over),
            counts[1],
            counts[0],
            *self._substitutes(),
            max(rarest, default=0.0),
            sum(word not in self._words for word in (*aligned.left, *aligned.right)),
            self._common_tokens / max(1, union),
            _bigram_overlap(a.tokens, b.tokens),
            prefix / longest,
            gaps[1],
            gaps[0],
            _inversions(a.words, b.words, set(aligned.shared)),
            changes,
            swaps,
            missing[1],
            missing[0],
            len(a.names & b.names),
            _inversions(a.words, b.words, a.names & b.names),
            len(a.negated ^ b.negated),
            self._opposed is not None,
            a.kind == b.kind,
            len(kinds) == 2 and not kinds & _OPEN_KINDS and kinds not in _NEAR_KINDS,
            len(aligned.paired),
            len(set(a.numbers) & set(b.numbers)),
            min(len(a.tokens), len(b.tokens)) / longest,
            longest,
        )
        return np.array(values, dtype=np.float64)

    def _units_differ(self) -> bool:
        known = set(self._lexicon.units.values())
        counted_a, counted_b = ({pair for pair in r.measures if pair[1] in known} for r in (self.a, self.b))
        return any(
            number == other and unit != different and (number, unit) not in counted_b
            for number, unit in counted_a
            for other, different in counted_b
        )

    def _missing(self, here: Reading, there: Reading) -> list[str]:
        """Names of one side that the other does not mention in any way."""
        left = self.alignment.left if here is self.a else self.alignment.right
        return [name for name in here.names if name in left and name not in there.tokens]

    def _turning(self) -> int:
        """How many more words turn or narrow the meaning on one side."""
        turning = self._lexicon.turning
        return abs(sum(word in turning for word in self._left) - sum(word in turning for word in self._right))

    @cached_property
    def _opposed(self) -> tuple[str, str] | None:
        return opposed(self._left, self._right, self._lexicon)

    def _soft(self) -> tuple[float, float]:
        """Share of each side's weight that the other covers, a left-over word by its nearest word."""
        a, b, aligned = self.a, self.b, self.alignment
        covered = [1.0, 1.0]
        sides = zip((aligned.left, aligned.right), (b.words, a.words), self._totals, strict=True)
        for side, (words, others, total) in enumerate(sides):
            if words and others:
                nearest = self._words.similarities(words, others).max(axis=1).clip(0, 1)
                lost = sum(self._words.weight(word) * (1 - near) for word, near in zip(words, nearest, strict=True))
                covered[side] = 1 - lost / total
            elif words:
                covered[side] = 1 - sum(map(self._words.weight, words)) / total
        return covered[0], covered[1]

    def _substitutes(self) -> tuple[float, float, float]:
        """Best and worst similarity of left-over words that face each other, and of the worst one that faces none."""
        few, many = sorted((self.alignment.left, self.alignment.right), key=len)
        others = self.b.words if many is self.alignment.left else self.a.words
        if not many:
            return 1.0, 1.0, 1.0
        facing: list[float] = []
        alone = set(range(len(many)))
        if few:
            table = self._words.similarities(few, many)
            for _ in few:
                row, column = np.unravel_index(int(np.argmax(table)), table.shape)
                facing.append(float(table[row, column]))
                table[row, :] = table[:, column] = -2.0
                alone.discard(int(column))
        fit = 1.0
        if alone and others:
            fit = float(self._words.similarities([many[at] for at in alone], others).max(axis=1).min())
        elif alone:
            fit = -1.0
        return max(facing, default=1.0), min(facing, default=1.0), fit

    @cached_property
    def _roles(self) -> tuple[int, int]:
        """Words whose prepositions changed, and pairs of them that traded places."""
        a, b = self.a.roles, self.b.roles
        changed = [word for word in a if word in b and not a[word] & b[word]]
        swaps = sum(bool(a[x] & b[y] and a[y] & b[x]) for at, x in enumerate(changed) for y in changed[at + 1 :])
        return len(changed), swaps


def exchanged(a: Sequence[str], b: Sequence[str]) -> bool:
    """Whether two pieces traded places around something that stayed: the cat chased the dog.

    A clause that only moved leaves nothing between the pieces, and around `and`, `or`, `vs` order means nothing.
    """
    if sorted(a) != sorted(b) or a == b:
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


def _bigram_overlap(a: Sequence[str], b: Sequence[str]) -> float:
    left, right = set(pairwise(a)), set(pairwise(b))
    union = len(left | right)
    return len(left & right) / union if union else float(tuple(a) == tuple(b))


def _inversions(a: Sequence[str], b: Sequence[str], words: set[str] | frozenset[str]) -> float:
    """Share of the pairs of `words` that stand in another order in `b` than in `a`."""
    places = {word: at for at, word in enumerate(b)}
    order = [places[word] for word in dict.fromkeys(a) if word in words and word in places]
    pairs = len(order) * (len(order) - 1) // 2
    turned = sum(later < earlier for at, earlier in enumerate(order) for later in order[at + 1 :])
    return turned / pairs if pairs else 0.0
