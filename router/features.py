"""What an ask looks like, as numbers: length, form, symbols, the kinds of work its words name, the words themselves.

Only the user's own text is read. The work is linear in a head-and-tail window, so the size of a prompt cannot slow a
request down.
"""

import hashlib
import re
import zlib
from collections import Counter
from dataclasses import dataclass, replace
from math import log1p, sqrt
from typing import Self

import numpy as np
from numpy.typing import NDArray

from core.request import window
from router.characters import IDEOGRAPH, Points, Read, count_classes, read
from router.lexicon import STEMS as _WORK
from router.stakes import STAKES

Features = NDArray[np.float64]
# Keys of ideographs and of pairs of neighbours.
Grams = Points

STEMS = _WORK | STAKES
# Enough to see what a prompt asks (the ask stands at its head or its tail) at a cost of well under a millisecond.
FEATURE_CHARS = 640
# Stems are looked up by their first letters; a shorter stem matches a whole word only.
_PREFIX = 4

_NUMBER = re.compile(r"[0-9]+(?:[.,][0-9]+)*")
_OTHER_SHARE = 0.3
_SENTENCE = re.compile(r"[.!?\u3002](?=\s|$|[\u4e00-\u9fff])")
_OPTION = re.compile(r"(?m)^[^\S\n]*\(?[A-E][).:]")
_LATEX = re.compile(r"\\[a-zA-Z]+")
_CODE_WORDS = ("def", "class", "import", "return", "for", "while", "const", "public", "void", "func", "lambda")
_INDENTED = re.compile(r"(?m)^(?: {4}|\t)")
# It begins with letters, so that the search runs at the speed of a comparison.
_BIG_O = re.compile(r"o\((?<=\bo\()[^)]{1,20}\)")
_SMALL_SUM = re.compile(r"\d\s*[-+*/x\u00d7\u00f7]\s*\d")

_WH = {
    "what": "what was que qu quel quelle cual 什么",
    "who": "who wer quien qui",
    "when": "when wann cuando quand",
    "where": "where wo donde ou",
    "why": "why warum weshalb wieso porque pourquoi",
    "how": "how wie como comment",
    "which": "which welche welcher welches cuales quels quelles",
}
_FIRST = {word: name for name, words in _WH.items() for word in words.split()}


@dataclass(frozen=True)
class _Lexicon:
    """The stems, for lookup; each number is a position in STEMS (a word may stand for several kinds of work).

    `stems`: by their first letters; True: the whole word only. `pairs`: by the first word. `heads`: the keys (see
    `_grams`) of what the stems of ideographs begin with, ascending, and `ideographs` those stems in that order.
    """

    stems: dict[str, list[tuple[str, bool, int]]]
    pairs: dict[str, list[tuple[str, int]]]
    heads: Grams
    ideographs: list[tuple[str, int]]

    @classmethod
    def build(cls) -> Self:
        lexicon = cls({}, {}, np.zeros(0, dtype=np.uint32), [])
        for at, stems in enumerate(STEMS.values()):
            for stem in dict.fromkeys(read(stem).folded for stem in stems.split()):
                if IDEOGRAPH.search(stem):
                    lexicon.ideographs.append((stem, at))
                elif "|" in stem:
                    first, _, second = stem.partition("|")
                    lexicon.pairs.setdefault(first, []).append((second, at))
                else:
                    letters = stem.removesuffix(".")
                    whole = letters != stem or len(stem) < _PREFIX
                    lexicon.stems.setdefault(letters[:_PREFIX], []).append((letters, whole, at))
        lexicon.ideographs.sort(key=lambda known: _head(known[0]))
        return replace(lexicon, heads=np.array([_head(stem) for stem, _ in lexicon.ideographs], dtype=np.uint32))

    def count(self, words: list[str], times: Counter[str], grams: Grams, folded: str) -> list[int]:
        """How many words name each kind of work; of ideographs, how many different stems are there."""
        counts = [0] * len(STEMS)
        known = self.stems.get
        for word, often in times.items():
            for stem, whole, at in known(word[:_PREFIX], ()):
                if word == stem if whole else word.startswith(stem):
                    counts[at] += often
        pairs = self.pairs
        for place, first in enumerate(words[:-1] if not pairs.keys().isdisjoint(times) else ()):
            if first in pairs:
                for following, at in pairs[first]:
                    if following == words[place + 1]:
                        counts[at] += 1
        if len(grams):
            places = np.minimum(np.searchsorted(grams, self.heads), len(grams) - 1)
            for place in np.flatnonzero(grams[places] == self.heads).tolist():
                stem, at = self.ideographs[place]
                counts[at] += len(stem) <= 2 or stem in folded
        return counts


def _head(stem: str) -> int:
    """The key of the first ideographs of a stem."""
    return ord(stem) if len(stem) == 1 else ord(stem[0]) << 16 | ord(stem[1])


def _grams(seen: Read) -> Grams:
    """Keys of the different ideographs and of the different pairs of neighbours, ascending."""
    points = seen.ideographs
    if not len(points):
        return points
    pairs = (points[:-1] << np.uint32(16) | points[1:])[~seen.apart[1:]]
    keys = np.sort(np.concatenate([points, pairs]))
    different: Grams = keys[np.concatenate([[True], keys[1:] != keys[:-1]])]
    return different


_LEXICON = _Lexicon.build()
_SHAPES = (
    "log_length",
    "log_words",
    "short",
    "medium",
    "long",
    "sentences",
    "questions",
    "lines",
    "numbers",
    "distinct_numbers",
    "digit_share",
    "math_share",
    "latex",
    "code_share",
    "code_words",
    "indented",
    "fence",
    "options",
    "answer_cue",
    "quotes",
    "upper_share",
    "mean_word",
    "long_words",
    "variety",
    "non_ascii",
    "cjk",
    "ends_question",
    "lower_start",
    "percent_money",
    "big_o",
    "small_sum",
    "colons",
    "commas",
)
NAMES: tuple[str, ...] = (
    *_SHAPES,
    *(f"first_{name}" for name in _WH),
    *(f"has_{kind}" for kind in STEMS),
    *(f"log_{kind}" for kind in STEMS),
)
# Places for the words: each counts in one of them, by a hash of its first letters, so that endings do not matter.
BAG = 512
_WORD_PREFIX = 7
COUNT = len(NAMES) + BAG
# Of a hash of 32 bits the highest say the place, the next one the sign.
_PLACE = 32 - (BAG - 1).bit_length()
_SIGN, _BITS = _PLACE - 1, 2**32 - 1
# Knuth's multiplier: 2^32 over the golden ratio, odd.
_GOLDEN = 2654435769
# With fewer words than this, one after the other.
_FEW = 200
# The meaning of a feature is fixed by all of this: a classifier trained on other features must not be used.
VERSION = hashlib.sha256(repr((2, NAMES, STEMS, BAG, _WORD_PREFIX, FEATURE_CHARS)).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Look:
    """What is seen of an ask.

    `features`: those of NAMES in order, then the words; shape (COUNT,), finite, roughly within -1..3. `legible`:
    whether it is written in letters that the training data and the default embedder know (Latin, Han, kana): other
    scripts all look alike to such an embedder, so its vector says nothing about them.
    """

    features: Features
    legible: bool


def look(text: str) -> Look:
    """Reads an ask once."""
    seen, _ = window(text, FEATURE_CHARS)
    folded = read(seen)
    words, times, grams = folded.words, Counter(folded.words), _grams(folded)
    letters = sum(map(len, words)) + len(folded.ideographs)
    counts = _LEXICON.count(words, times, grams, folded.folded)
    first = _FIRST.get(words[0]) if words else None
    features = np.zeros(COUNT)
    features[: len(NAMES)] = [
        *_shape(text, seen, folded, times, len(grams)),
        *[1.0 if first == name else 0.0 for name in _WH],
        *[1.0 if count else 0.0 for count in counts],
        *map(log1p, counts),
    ]
    _fill(features[len(NAMES) :], {word[:_WORD_PREFIX] for word in times}, grams)
    return Look(features, letters > 0 and folded.other < _OTHER_SHARE * letters)


def extract(text: str) -> Features:
    """The features of an ask."""
    return look(text).features


def legible(text: str) -> bool:
    """Whether the ask is written in letters that the embedder knows."""
    return look(text).legible


def _fill(bag: Features, stems: set[str], grams: Grams) -> None:
    """Hash the different words and ideographs with a sign into the places of the bag, which then has norm 1."""
    if len(stems) + len(grams) < _FEW:
        # What numpy costs to be called is more than these few additions.
        for value in (*map(zlib.crc32, map(str.encode, stems)), *(gram * _GOLDEN & _BITS for gram in grams.tolist())):
            bag[value >> _PLACE] += 1.0 if value >> _SIGN & 1 else -1.0
    else:
        hashes = np.fromiter(map(zlib.crc32, " ".join(stems).encode().split()), dtype=np.uint32, count=len(stems))
        # No spaces between ideographs: single ones and neighbouring pairs stand for words.
        hashes = np.concatenate([hashes, grams * np.uint32(_GOLDEN)])
        bag += np.bincount(hashes >> _PLACE, weights=(hashes >> _SIGN & 1) * 2.0 - 1.0, minlength=BAG)
    norm = sqrt(float(bag @ bag))
    if norm:
        bag /= norm


def length(text: str) -> float:
    """The baseline every classifier must beat: the ask's length in characters, as log."""
    return log1p(len(text))


def _shape(text: str, seen: str, folded: Read, times: Counter[str], grams: int) -> list[float]:
    size, words, ideographs = max(len(seen), 1), folded.words, len(folded.ideographs)
    digit, upper, math, code, money, pause, quote, newline, colon, non_ascii = count_classes(seen)
    sizes = list(map(len, words))
    # An ideograph says about as much as three letters, and more than half of a word.
    effective, spoken = len(text) + 2 * ideographs, len(words) + ideographs / 1.7
    # Full-width and circled digits become plain ones when folded.
    numbers = _NUMBER.findall(folded.folded) if digit or non_ascii else []
    stripped = seen.strip()
    return [
        log1p(effective) / 3,
        log1p(spoken) / 3,
        float(effective < 60),
        float(60 <= effective < 300),
        float(effective >= 1200),
        log1p(len(_SENTENCE.findall(seen))),
        log1p(folded.folded.count("?")),
        log1p(newline),
        log1p(len(numbers)),
        log1p(len(set(numbers))),
        digit / size * 5,
        math / size * 10,
        log1p(len(_LATEX.findall(seen)) if "\\" in seen else 0),
        code / size * 10,
        log1p(sum(times[word] for word in _CODE_WORDS if word in times) + seen.count("SELECT") + seen.count("FROM")),
        log1p(len(_INDENTED.findall(seen)) if "    " in seen or "\t" in seen else 0),
        float("```" in seen),
        float(newline >= 2 and len(_OPTION.findall(seen)) >= 3),
        float(stripped[-8:].lower().endswith("answer:")),
        log1p(quote),
        upper / size * 5,
        (sum(sizes) / len(sizes) if sizes else 4.5) / 5,
        len([1 for size in sizes if size >= 9]) / max(len(sizes), 1) * 3,
        (len(times) + grams) / max(len(words) + 2 * ideographs, 1),
        non_ascii / size,
        float(ideographs > 0),
        float(stripped[-1:] in ("?", "\uff1f")),
        float(stripped[:1].islower()),
        log1p(money),
        float("o(" in folded.folded and _BIG_O.search(folded.folded) is not None),
        float(size < 80 and _SMALL_SUM.search(folded.folded) is not None),
        log1p(colon),
        log1p(pause),
    ]
