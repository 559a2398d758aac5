"""What an ask looks like, as numbers: length, form, symbols, the kinds of work its words name, the words themselves.

Only the user's own text is read. The work is linear in a head-and-tail window, so the size of a prompt cannot slow a
request down.
"""

import hashlib
import math
import re
import unicodedata
import zlib
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from core.request import window
from router.lexicon import STEMS

Features = NDArray[np.float64]

# Enough to see what a prompt asks (the ask stands at its head or its tail) at a cost of well under a millisecond.
FEATURE_CHARS = 1600
# Stems are looked up by their first letters; a shorter stem matches a whole word only.
_PREFIX = 4

_WORD = re.compile(r"[^\W\d_]+")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_ACCENT = re.compile(r"[\u0300-\u036f]")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")
# Greek to the end of the Asian alphabets before kana, and Hangul; a decomposed Hangul syllable is three letters here.
_OTHER_SCRIPT = re.compile(r"[\u0370-\u1dff\uac00-\ud7af]")
_OTHER_SHARE = 0.3
_SENTENCE = re.compile(r"[.!?\u3002](?=\s|$|[\u4e00-\u9fff])")
_OPTION = re.compile(r"(?m)^\s*\(?[A-E][).:]")
_LATEX = re.compile(r"\\[a-zA-Z]+")
_CODE_WORD = re.compile(r"\b(?:def|class|import|return|for|while|SELECT|FROM|const|public|void|func|lambda)\b")
_INDENTED = re.compile(r"(?m)^(?: {4}|\t)")
_BIG_O = re.compile(r"\bo\([^)]{1,20}\)")
_SMALL_SUM = re.compile(r"\d\s*[-+*/x\u00d7\u00f7]\s*\d")

_MATH_CHARS = frozenset("=<>^$\\∑∫∏√≤≥≠≡∈∉⊂⊆\u222a∩∀∃→∞±≈∂∇πλθμσεδ")
_CODE_CHARS = frozenset("{}[]();_`|&#@")
_MONEY = frozenset("%$€£¥")
_PAUSES = frozenset(",;\uff0c\u3001\uff1b")
_QUOTES = frozenset("\"'\u201c\u201d\u2018\u2019\u00ab\u00bb\u300c\u300d\u201e")

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


def _fold(text: str) -> str:
    """Case and accents taken away, full-width forms made plain."""
    text = text.casefold()
    return text if text.isascii() else _ACCENT.sub("", unicodedata.normalize("NFKD", text))


@dataclass(frozen=True)
class _Lexicon:
    """The stems, for lookup; each value is a position in STEMS (a word may stand for several kinds of work)."""

    whole: dict[str, list[int]]
    prefixes: dict[str, list[tuple[str, int]]]
    pairs: dict[str, list[tuple[str, int]]]
    ideographs: list[tuple[str, int]]

    @classmethod
    def build(cls) -> Self:
        lexicon = cls({}, {}, {}, [])
        for at, stems in enumerate(STEMS.values()):
            for stem in dict.fromkeys(map(_fold, stems.split())):
                if _CJK.search(stem):
                    lexicon.ideographs.append((stem, at))
                elif "|" in stem:
                    first, _, second = stem.partition("|")
                    lexicon.pairs.setdefault(first, []).append((second, at))
                elif stem.endswith(".") or len(stem) < _PREFIX:
                    lexicon.whole.setdefault(stem.removesuffix("."), []).append(at)
                else:
                    lexicon.prefixes.setdefault(stem[:_PREFIX], []).append((stem, at))
        return lexicon

    def count(self, words: list[str], ideographs: str) -> list[int]:
        """How many words name each kind of work; `ideographs` is the text where it holds any, else empty."""
        counts = [0] * len(STEMS)
        for word, times in Counter(words).items():
            for at in self.whole.get(word, ()):
                counts[at] += times
            for stem, at in self.prefixes.get(word[:_PREFIX], ()):
                if word.startswith(stem):
                    counts[at] += times
        for first, second in pairwise(words):
            for following, at in self.pairs.get(first, ()):
                if following == second:
                    counts[at] += 1
        if ideographs:
            for stem, at in self.ideographs:
                counts[at] += ideographs.count(stem)
        return counts


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
# The meaning of a feature is fixed by all of this: a classifier trained on other features must not be used.
VERSION = hashlib.sha256(repr((NAMES, STEMS, BAG, _WORD_PREFIX, FEATURE_CHARS)).encode()).hexdigest()[:16]


def extract(text: str) -> Features:
    """The features of an ask: those of NAMES in order, then the words. Shape (COUNT,), finite, roughly within -1..3."""
    seen, _ = window(text, FEATURE_CHARS)
    folded = _fold(seen)
    words = _WORD.findall(folded)
    ideographs = len(_CJK.findall(folded))
    counts = _LEXICON.count(words, folded if ideographs else "")
    first = _FIRST.get(words[0]) if words else None
    named = [
        *_shape(text, seen, folded, words, ideographs),
        *(1.0 if first == name else 0.0 for name in _WH),
        *(1.0 if count else 0.0 for count in counts),
        *(math.log1p(count) for count in counts),
    ]
    return np.concatenate([named, _bag(set(words))])


def _bag(words: set[str]) -> Features:
    """The distinct words, hashed with a sign into BAG places, as a vector of norm 1 (0 without words)."""
    stems: set[str] = set()
    for word in words:
        if _CJK.match(word):
            # No spaces between words: single characters and neighbouring pairs stand for them.
            stems.update(word, map("".join, pairwise(word)))
        else:
            stems.add(word[:_WORD_PREFIX])
    bag = np.zeros(BAG)
    for stem in stems:
        place = zlib.crc32(stem.encode())
        bag[place % BAG] += 1 if place >> 16 & 1 else -1
    norm = math.sqrt(float(bag @ bag))
    return bag / norm if norm else bag


def legible(text: str) -> bool:
    """Whether the ask is written in letters that the training data and the default embedder know: Latin, Han, kana.

    Other scripts all look alike to such an embedder, so its vector says nothing about them.
    """
    folded = _fold(window(text, FEATURE_CHARS)[0])
    letters = sum(map(len, _WORD.findall(folded)))
    return letters > 0 and len(_OTHER_SCRIPT.findall(folded)) < _OTHER_SHARE * letters


def length(text: str) -> float:
    """The baseline every classifier must beat: the ask's length in characters, as log."""
    return math.log1p(len(text))


def _shape(text: str, seen: str, folded: str, words: list[str], ideographs: int) -> list[float]:
    size = max(len(seen), 1)
    chars = Counter(seen)
    letters = [len(word) for word in words if not (ideographs and _CJK.match(word))]
    spoken = len(letters) + ideographs / 1.7
    # An ideograph says about as much as three letters.
    effective = len(text) + 2 * ideographs
    numbers = _NUMBER.findall(folded)
    stripped = seen.strip()
    return [
        math.log1p(effective) / 3,
        math.log1p(spoken) / 3,
        float(effective < 60),
        float(60 <= effective < 300),
        float(effective >= 1200),
        math.log1p(len(_SENTENCE.findall(seen))),
        math.log1p(folded.count("?")),
        math.log1p(chars["\n"]),
        math.log1p(len(numbers)),
        math.log1p(len(set(numbers))),
        sum(n for c, n in chars.items() if c.isdigit()) / size * 5,
        _count(chars, _MATH_CHARS) / size * 10,
        math.log1p(len(_LATEX.findall(seen))),
        _count(chars, _CODE_CHARS) / size * 10,
        math.log1p(len(_CODE_WORD.findall(seen))),
        math.log1p(len(_INDENTED.findall(seen))),
        float("```" in seen),
        float(len(_OPTION.findall(seen)) >= 3),
        float(stripped[-8:].lower().endswith("answer:")),
        math.log1p(_count(chars, _QUOTES)),
        sum(n for c, n in chars.items() if c.isupper()) / size * 5,
        (sum(letters) / len(letters) if letters else 4.5) / 5,
        sum(n >= 9 for n in letters) / max(len(letters), 1) * 3,
        len(set(words)) / max(len(words), 1),
        sum(n for c, n in chars.items() if not c.isascii()) / size,
        float(ideographs > 0),
        float(stripped[-1:] in ("?", "\uff1f")),
        float(stripped[:1].islower()),
        math.log1p(_count(chars, _MONEY)),
        float(_BIG_O.search(folded) is not None),
        float(size < 80 and _SMALL_SUM.search(folded) is not None),
        math.log1p(chars[":"]),
        math.log1p(_count(chars, _PAUSES)),
    ]


def _count(chars: Counter[str], of: frozenset[str]) -> int:
    return sum(n for char, n in chars.items() if char in of)
