"""Reading a text character by character in C: classes by table look-up, folding, and the words.

Classes overlap (`;` is of code and a pause), so each character has one combination of classes; counting combinations is
one pass, and a small matrix turns them into counts per class. Tables hold the basic plane; the few characters beyond it
take the slow way.
"""

import re
import unicodedata
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

MATH = frozenset("=<>^$\\∑∫∏√≤≥≠≡∈∉⊂⊆\u222a∩∀∃→∞±≈∂∇πλθμσεδ")
CODE = frozenset("{}[]();_`|&#@")
MONEY = frozenset("%$€£¥")
PAUSES = frozenset(",;\uff0c\u3001\uff1b")
QUOTES = frozenset("\"'\u201c\u201d\u2018\u2019\u00ab\u00bb\u300c\u300d\u201e")
# Han and kana: scripts that do not separate words.
IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")
# Greek to the end of the Asian alphabets before kana, and Hangul; a decomposed Hangul syllable is three letters here.
OTHER_SCRIPT = re.compile(r"[\u0370-\u1dff\uac00-\ud7af]")
# A word: letters but ideographs.
WORD = re.compile(r"[^\W\d_\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+")
# Marks on Latin and Greek letters, and on kana.
_ACCENT = re.compile(r"[\u0300-\u036f\u3099\u309a]+")

CLASSES = ("digit", "upper", "math", "code", "money", "pause", "quote", "newline", "colon", "non_ascii")
_IDEOGRAPHS = ((0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF))
_OTHER_SCRIPTS = ((0x0370, 0x1DFF), (0xAC00, 0xD7AF))
_LETTER, _IDEOGRAPH, _OTHER = np.uint8(1), np.uint8(2), np.uint8(4)
_SPACE = np.uint32(32)
_BASIC = 0x10000
# Where a character is not the one that it is folded to: the rest of the basic plane stands for itself, but Hangul.
_FOLDING = (range(0x3400), range(0xA000, 0xAC00), range(0xF900, _BASIC))
_HANGUL = range(0xAC00, 0xD7B0)
_GONE, _MANY = 0, 1
# The end of general punctuation.
_DASHES = "\u206f"
# What is no letter separates words.
_GAPS = bytes(code if code < 128 and chr(code).isalpha() else 32 for code in range(256))

Points = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Read:
    """A text in small letters without accents: its words, its ideographs as code points in order, and how many letters
    are of other scripts than these and Latin. `apart`: True where an ideograph does not follow the one before it.
    """

    folded: str
    words: list[str]
    ideographs: Points
    apart: NDArray[np.bool_]
    other: int


_NONE, _NEVER = np.zeros(0, dtype=np.uint32), np.zeros(0, dtype=np.bool_)


def count_classes(text: str) -> list[int]:
    """How many characters of the text are of each of CLASSES, in that order."""
    of, members, of_ascii = _classes()
    if text.isascii():
        combinations = np.frombuffer(text.encode().translate(of_ascii), dtype=np.uint8)
        ascii_found: list[int] = (np.bincount(combinations, minlength=len(members)) @ members).tolist()
        return ascii_found
    points = _points(text)
    basic = points < _BASIC
    whole = bool(basic.all())
    counts = np.bincount(of[points if whole else points[basic]], minlength=len(members))
    found: list[int] = (counts @ members).tolist()
    for char in () if whole else text:
        if ord(char) >= _BASIC:
            found[0] += char.isdigit()
            found[1] += char.isupper()
            found[-1] += 1
    return found


def read(text: str) -> Read:
    """Fold a text and take it apart."""
    text = text.casefold()
    if text.isascii():
        return Read(text, _words(text.encode()), _NONE, _NEVER, 0)
    return _read_latin(text) or _read_points(text)


def _read_latin(text: str) -> Read | None:
    """A text whose letters are all Latin, but for accents; None of any other. Strings are quicker than tables."""
    # Far enough for Latin letters and accents; behind it stand the usual dashes and quotation marks.
    if max(set(text)) > _DASHES:
        return None
    text = _ACCENT.sub("", unicodedata.normalize("NFKD", text))
    if any(char > "\x7f" and char.isalnum() for char in set(text)):
        return None
    # Whatever is beyond ASCII becomes a question mark, which separates words.
    return Read(text, _words(text.encode("ascii", "replace")), _NONE, _NEVER, 0)


def _words(text: bytes) -> list[str]:
    return text.translate(_GAPS).decode().split()


def _read_points(text: str) -> Read:
    points = _points(text)
    folded = _folded(points)
    if folded is None:
        text = _ACCENT.sub("", unicodedata.normalize("NFKD", text))
        folded = _points(text)
    else:
        text = _text(folded)
    if bool((folded >= _BASIC).any()):
        words = WORD.findall(text)
        found = [(place, ord(char)) for place, char in enumerate(text) if IDEOGRAPH.match(char)]
        places = np.array([place for place, _ in found], dtype=np.intp)
        ideographs = np.array([point for _, point in found], dtype=np.uint32)
        return Read(text, words, ideographs, _gaps(places), len(OTHER_SCRIPT.findall(text)))
    kinds = _kinds()[folded]
    letter = kinds & (_LETTER | _IDEOGRAPH) == _LETTER
    words = _text(np.where(letter, folded, _SPACE)).split()
    places = np.flatnonzero(kinds & _IDEOGRAPH)
    return Read(text, words, folded[places], _gaps(places), int(np.count_nonzero(kinds & _OTHER)))


def _gaps(places: NDArray[np.intp]) -> NDArray[np.bool_]:
    apart: NDArray[np.bool_] = np.diff(places, prepend=-2) != 1
    return apart


def _points(text: str) -> Points:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def _text(points: Points) -> str:
    return points.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


def _folded(points: Points) -> Points | None:
    """Each character's folded one; None where one becomes several, or lies beyond the table."""
    if int(points.max()) >= _BASIC:
        return None
    found = _foldings()[points]
    if bool((found == _MANY).any()):
        return None
    kept: Points = found[found != _GONE]
    return kept


@cache
def _foldings() -> Points:
    """Per code point the folded one, _GONE for an accent, _MANY for what the slow way must do."""
    table = np.arange(_BASIC, dtype=np.uint32)
    for point in (point for part in _FOLDING for point in part):
        folded = _ACCENT.sub("", unicodedata.normalize("NFKD", chr(point)))
        if len(folded) > 1 or (folded and (unicodedata.combining(folded) or ord(folded) <= _MANY)):
            table[point] = _MANY
        else:
            table[point] = ord(folded) if folded else _GONE
    table[_HANGUL.start : _HANGUL.stop] = _MANY
    return table


@cache
def _classes() -> tuple[NDArray[np.uint8], NDArray[np.int64], bytes]:
    """Per code point its combination, per combination its classes (shape (combinations, classes)), and the first of
    these for bytes.
    """
    points = list(map(chr, range(_BASIC)))
    sets = {"math": MATH, "code": CODE, "money": MONEY, "pause": PAUSES, "quote": QUOTES, "newline": "\n", "colon": ":"}
    bits = np.zeros((_BASIC, len(CLASSES)), dtype=bool)
    bits[:, CLASSES.index("digit")] = list(map(str.isdigit, points))
    bits[:, CLASSES.index("upper")] = list(map(str.isupper, points))
    for name, members in sets.items():
        bits[[ord(member) for member in members], CLASSES.index(name)] = True
    bits[0x80:, CLASSES.index("non_ascii")] = True
    combinations, of = np.unique(bits @ (1 << np.arange(len(CLASSES))), return_inverse=True)
    table = of.astype(np.uint8)
    return table, (combinations[:, np.newaxis] >> np.arange(len(CLASSES))) & 1, table[:256].tobytes()


@cache
def _kinds() -> NDArray[np.uint8]:
    """Per code point whether it is a letter, an ideograph, and of another script, as bits."""
    found = np.zeros(_BASIC, dtype=np.uint8)
    found[[char.isalnum() and not char.isdecimal() for char in map(chr, range(_BASIC))]] = _LETTER
    for kind, ranges in ((_IDEOGRAPH, _IDEOGRAPHS), (_OTHER, _OTHER_SCRIPTS)):
        for first, last in ranges:
            found[first : last + 1] |= kind
    return found
