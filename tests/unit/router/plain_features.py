"""The features of an ask by their plain definitions, character by character: what the fast ones are compared with."""

import math
import re
import unicodedata
import zlib
from collections import Counter
from itertools import pairwise

import numpy as np

from core.request import window
from router.characters import CODE, MATH, MONEY, PAUSES, QUOTES
from router.features import _WH, BAG, FEATURE_CHARS, STEMS, Features

_ACCENT = re.compile(r"[\u0300-\u036f\u3099\u309a]")
_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")
_OTHER = re.compile(r"[\u0370-\u1dff\uac00-\ud7af]")
_LETTERS = re.compile(r"[^\W\d_]+")
_CODE_WORDS = {"def", "class", "import", "return", "for", "while", "const", "public", "void", "func", "lambda"}


def fold(text: str) -> str:
    """Case and accents taken away, full-width forms made plain."""
    return _ACCENT.sub("", unicodedata.normalize("NFKD", text.casefold()))


def words_of(folded: str) -> list[str]:
    """Runs of letters that are no ideographs."""
    return [word for run in _LETTERS.findall(folded) for word in _IDEOGRAPH.split(run) if word]


def grams_of(folded: str) -> set[str]:
    """Ideographs and pairs of neighbours."""
    pairs = {a + b for a, b in pairwise(folded) if _IDEOGRAPH.match(a) and _IDEOGRAPH.match(b)}
    return set(_IDEOGRAPH.findall(folded)) | pairs


def count(stem: str, words: list[str], folded: str) -> int:
    """How often a stem of the lexicon is met."""
    if _IDEOGRAPH.search(stem):
        return int(stem in folded)
    if "|" in stem:
        return sum(pair == tuple(stem.split("|")) for pair in pairwise(words))
    if stem.endswith(".") or len(stem) < 4:
        return words.count(stem.removesuffix("."))
    return sum(word.startswith(stem) for word in words)


def bag(words: list[str], grams: set[str]) -> Features:
    """Words and ideographs, hashed with a sign."""
    hashes = [zlib.crc32(stem.encode()) for stem in {word[:7] for word in words}]
    for gram in grams:
        key = ord(gram[0]) << 16 | ord(gram[1]) if len(gram) == 2 else ord(gram)
        hashes.append(key * 2654435769 % 2**32)
    found = np.zeros(BAG)
    for value in hashes:
        found[value * BAG >> 32] += 1 if value * 2 * BAG >> 32 & 1 else -1
    norm = math.sqrt(float(found @ found))
    return found / norm if norm else found


def extract(text: str) -> Features:
    """The features, in order."""
    seen, _ = window(text, FEATURE_CHARS)
    folded = fold(seen)
    words, grams = words_of(folded), grams_of(folded)
    counts = [sum(count(fold(stem), words, folded) for stem in different(stems)) for stems in STEMS.values()]
    first = words[0] if words else None
    named = [
        *shape(text, seen, folded),
        *(float(first in known.split()) for known in _WH.values()),
        *(float(number > 0) for number in counts),
        *(math.log1p(number) for number in counts),
    ]
    return np.concatenate([named, bag(words, grams)])


def different(stems: str) -> list[str]:
    """The stems that folding leaves different."""
    return list({fold(stem): stem for stem in stems.split()}.values())


def legible(text: str) -> bool:
    """Whether most letters are Latin, Han or kana."""
    folded = fold(window(text, FEATURE_CHARS)[0])
    letters = sum(map(len, words_of(folded))) + len(_IDEOGRAPH.findall(folded))
    return letters > 0 and len(_OTHER.findall(folded)) < 0.3 * letters


def shape(text: str, seen: str, folded: str) -> list[float]:
    """Length, form and symbols."""
    size, chars, words = max(len(seen), 1), Counter(seen), words_of(folded)
    ideographs = len(_IDEOGRAPH.findall(folded))
    effective = len(text) + 2 * ideographs
    numbers = re.findall(r"[0-9]+(?:[.,][0-9]+)*", folded)
    stripped = seen.strip()

    def share(of: frozenset[str]) -> int:
        return sum(number for char, number in chars.items() if char in of)

    return [
        math.log1p(effective) / 3,
        math.log1p(len(words) + ideographs / 1.7) / 3,
        float(effective < 60),
        float(60 <= effective < 300),
        float(effective >= 1200),
        math.log1p(len(re.findall(r"[.!?\u3002](?=\s|$|[\u4e00-\u9fff])", seen))),
        math.log1p(folded.count("?")),
        math.log1p(chars["\n"]),
        math.log1p(len(numbers)),
        math.log1p(len(set(numbers))),
        sum(number for char, number in chars.items() if char.isdigit()) / size * 5,
        share(MATH) / size * 10,
        math.log1p(len(re.findall(r"\\[a-zA-Z]+", seen))),
        share(CODE) / size * 10,
        math.log1p(sum(word in _CODE_WORDS for word in words) + seen.count("SELECT") + seen.count("FROM")),
        math.log1p(len(re.findall(r"(?m)^(?: {4}|\t)", seen))),
        float("```" in seen),
        float(len(re.findall(r"(?m)^\s*\(?[A-E][).:]", seen)) >= 3),
        float(stripped[-8:].lower().endswith("answer:")),
        math.log1p(share(QUOTES)),
        sum(number for char, number in chars.items() if char.isupper()) / size * 5,
        (sum(map(len, words)) / len(words) if words else 4.5) / 5,
        sum(len(word) >= 9 for word in words) / max(len(words), 1) * 3,
        (len(set(words)) + len(grams_of(folded))) / max(len(words) + 2 * ideographs, 1),
        sum(number for char, number in chars.items() if not char.isascii()) / size,
        float(ideographs > 0),
        float(stripped[-1:] in ("?", "\uff1f")),
        float(stripped[:1].islower()),
        math.log1p(share(MONEY)),
        float(re.search(r"\bo\([^)]{1,20}\)", folded) is not None),
        float(size < 80 and re.search(r"\d\s*[-+*/x\u00d7\u00f7]\s*\d", folded) is not None),
        math.log1p(chars[":"]),
        math.log1p(share(PAUSES)),
    ]
