"""What the guard reads in one text: words, numbers, names, codes, quotes, polarity, kind of question."""

import re
import unicodedata
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from cache.guard.asking import CONSUMED, asks
from cache.guard.lexicon import Lexicon

# What is longer is not judged: reading must stay well under a millisecond.
MAX_CHARS = 1500
# Words whose lemma is remembered.
LEMMAS = 20_000
# Tokens behind a negator that it may turn: why is my phone not charging, why isn't my phone charging.
REACH_OF_NOT = 5
_QUOTE = re.compile(r'"([^"\n]{1,300})"|`([^`\n]{1,300})`|(?<![\w\'])\'([^\'\n]{2,300})\'(?![\w\'])')
_TOKEN = re.compile(r"[$€£¥#]?\d{1,3}(?:,\d{3})+[^\s,;!?()\[\]{}<>\"`…|=*~]*|[^\s,;!?()\[\]{}<>\"`…|=*~]+")
_NUMBER = re.compile(r"([$€£¥#]?)(-?\d{1,3}(?:,\d{3})+|-?\d+)(\.\d+)?(st|nd|rd|th)?([a-z°%$€£]*)", re.IGNORECASE)
_COUNTED = re.compile(r"\d+(-[A-Za-z]+)+")
_INSIDE = re.compile(r"[_./\\@&:#+\d]")
_CONTRACTIONS = {"'re": "are", "'ll": "will", "'ve": "have", "'d": "would", "'m": "am", "'s": ""}
_VERBS = ("do", "is", "are", "was", "were", "does", "did", "has", "have", "should", "would", "could")
_UNMARKED = {f"{verb}nt": (verb, "not") for verb in _VERBS} | {
    "cant": ("can", "not"),
    "wont": ("will", "not"),
    "cannot": ("can", "not"),
    "whats": ("what",),
    "hows": ("how",),
    "im": ("i",),
    "ive": ("i",),
}
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_SCALE_WORDS = ("100", "1000", "1000000", "1000000000")
_SCALES = {"k": 1_000, "m": 1_000_000, "bn": 1_000_000_000, "b": 1_000_000_000}


@dataclass(frozen=True)
class Reading:
    """One text as the guard sees it. All words are lower case; `words` are lemmas of content words, in order.

    `identity`: equal for texts that differ in case, spacing and final punctuation only. `tokens`: all words, spelled
    out. `names`: lemmas that are capitalised inside a sentence. `numbers`: as digits, sorted. `measures`: numbers with
    the word behind them. `negated`: content words within reach of a negator. `roles`: content word to the prepositions
    it follows, "" for none. `kind`: see `asks`. `moment`: about the present moment. `judged`: English, and short enough
    to be read whole.
    """

    identity: str
    tokens: tuple[str, ...]
    words: tuple[str, ...]
    names: frozenset[str]
    numbers: tuple[str, ...]
    measures: frozenset[tuple[str, str]]
    codes: frozenset[str]
    quotes: frozenset[str]
    negations: int
    negated: frozenset[str]
    roles: dict[str, frozenset[str]]
    kind: str
    moment: bool
    judged: bool


@dataclass
class _Found:
    """Tokens under way: words in lower case, and which of them were written as names or codes."""

    tokens: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    codes: set[str] = field(default_factory=set)


class Reader:
    """Reads texts with a lexicon and a vocabulary of known English words (lower case)."""

    def __init__(self, lexicon: Lexicon, vocabulary: Container[str]) -> None:
        self._lexicon, self._vocabulary = lexicon, vocabulary
        self._longest = max(map(len, lexicon.aliases))
        self._openings = frozenset(alias[0] for alias in lexicon.aliases)
        self.lemma = lru_cache(LEMMAS)(self._lemma)

    def read(self, text: str) -> Reading:
        """The reading of `text`. Pure; about 0.1 ms for a sentence."""
        plain = plain_text(text)
        found = _Found()
        for token, opens in _tokens(plain):
            self._sort(token, opens, found)
        tokens = self._counted(self._spelled(found.tokens))
        lemmas = [self.lemma(token) for token in tokens]
        kind = asks(tokens)
        consumed = CONSUMED.get(kind, frozenset())
        words = [
            lemma
            for token, lemma in zip(tokens, lemmas, strict=True)
            if self._is_content(token, lemma) and lemma not in consumed
        ]
        numbers = [token for token in tokens if token[0].isdigit()]
        alphabetic = [token for token in found.tokens if token.isalpha()]
        shouted = len(found.names) > max(4, 0.6 * len(alphabetic))
        return Reading(
            identity=_identity(plain),
            tokens=tuple(tokens),
            words=tuple(words),
            names=frozenset() if shouted else self._names(found.names),
            numbers=tuple(sorted(numbers)),
            measures=frozenset(pair for pair in pairwise(tokens) if pair[0][0].isdigit()),
            codes=frozenset(found.codes),
            quotes=frozenset(" ".join(filter(None, parts)).strip().casefold() for parts in _QUOTE.findall(plain)),
            negations=sum(token in self._lexicon.negators for token in tokens),
            negated=self._negated(tokens, lemmas),
            roles=self._roles(tokens, lemmas),
            kind=kind,
            moment=self._moment(tokens),
            judged=len(text) <= MAX_CHARS and self._english(plain, found.tokens),
        )

    def _lemma(self, word: str) -> str:
        """The dictionary form of a lower-case word, as far as endings tell."""
        if word in self._lexicon.irregular:
            return self._lexicon.irregular[word]
        if len(word) < 4 or not word.isalpha() or word in self._lexicon.stop:
            return word
        if word.endswith("s"):
            return self._singular(word)
        for ending in ("ing", "ed"):
            if word.endswith(ending) and len(word) > len(ending) + 2:
                return self._verb(word, word[: -len(ending)])
        return word

    def _singular(self, word: str) -> str:
        if word.endswith("ies") and len(word) > 4:
            return word[:-3] + "y"
        if word.endswith(("sses", "shes", "ches", "xes", "zzes")):
            return word[:-2]
        return word if word.endswith(("ss", "us", "is")) else word[:-1]

    def _verb(self, word: str, stem: str) -> str:
        doubled = len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "lsz"
        vowel_inside = (
            len(stem) > 1 and stem[-1] not in "aeiouwxy" and stem[-2] in "aeiou" and stem[-3:-2] not in "aeiou"
        )
        forms = [stem[:-1], stem] if doubled else [stem + "e", stem] if vowel_inside else [stem, stem + "e"]
        return next((form for form in forms if form in self._vocabulary and len(form) > 2), word)

    def _is_content(self, token: str, lemma: str) -> bool:
        return not (token[0].isdigit() or token in self._lexicon.stop or lemma in self._lexicon.stop)

    def _sort(self, token: str, opens: bool, found: _Found) -> None:
        lower = token.lower()
        if (lower,) in self._lexicon.aliases:
            found.tokens.append(lower)
        elif token.isalpha():
            self._word(token, lower, opens, found)
        elif match := _NUMBER.fullmatch(token):
            self._number(match, lower, found)
        elif _COUNTED.fullmatch(token) or ("-" in token and not _INSIDE.search(token)):
            self._hyphenated(token, lower, opens, found)
        elif "/" in token and all(part.isalpha() for part in token.split("/")):
            for part in token.split("/"):
                self._word(part, part.lower(), opens, found)
        elif _INSIDE.search(token) and lower not in self._lexicon.units:
            found.tokens.append(lower)
            found.codes.add(lower)
        else:
            self._word(token, lower, opens, found)

    def _number(self, match: re.Match[str], lower: str, found: _Found) -> None:
        currency, whole, fraction, ordinal, unit = match.groups()
        value = float(whole.replace(",", "") + (fraction or ""))
        unit = unit.lower()
        if unit in _SCALES and (currency or unit == "k"):
            value, unit = value * _SCALES[unit], ""
        if unit and unit not in self._lexicon.units:
            found.tokens.append(lower)
            found.codes.add(lower)
            return
        if ordinal and 1 <= value <= 10:
            found.tokens.append(_ORDINALS[int(value) - 1])
            return
        digits = whole.replace(",", "") + (fraction or "") if value > 10**9 else f"{value:g}"
        if len(digits) > 6 and value < 10**15 and value.is_integer():
            digits = str(int(value))
        found.tokens.append(digits.lstrip("-") or "0")
        counted = self._lexicon.units.get(unit or currency)
        if counted:
            found.tokens.append(counted)

    def _hyphenated(self, token: str, lower: str, opens: bool, found: _Found) -> None:
        lexicon = self._lexicon
        if lower in lexicon.opposites or lower in lexicon.synonyms or lower in lexicon.classes:
            found.tokens.append(lower)
            return
        for part in filter(None, token.split("-")):
            self._sort(part, opens, found)

    def _word(self, written: str, lower: str, opens: bool, found: _Found) -> None:
        if "'" in lower:
            stem, _, ending = lower.rpartition("'")
            if ending == "t" and stem.endswith("n"):
                stem = {"wo": "will", "ca": "can", "sha": "shall"}.get(stem[:-1], stem[:-1])
                found.tokens += [stem, "not"]
                return
            found.tokens += [word for word in (stem.replace("'", ""), _CONTRACTIONS.get(f"'{ending}", "")) if word]
            lower = stem
        elif lower in _UNMARKED:
            found.tokens += _UNMARKED[lower]
            return
        elif written == "US":
            found.tokens.append("america")
        else:
            found.tokens.append(lower)
        inner_capital = any(char.isupper() for char in written[1:])
        if (inner_capital or (written[0].isupper() and not opens)) and lower not in self._lexicon.stop:
            found.names.add(lower)

    def _spelled(self, tokens: Sequence[str]) -> list[str]:
        """The tokens with every alias replaced, longest phrase first."""
        out: list[str] = []
        at = 0
        while at < len(tokens):
            longest = min(self._longest, len(tokens) - at) if tokens[at] in self._openings else 0
            for length in range(longest, 0, -1):
                name = self._lexicon.aliases.get(tuple(tokens[at : at + length]))
                if name is not None:
                    out += name
                    break
            else:
                length = 1
                out.append(tokens[at])
            at += length
        return out

    def _counted(self, tokens: Sequence[str]) -> list[str]:
        """Number words as digits, units after a number by their name, and no `1` where a unit says as much."""
        out: list[str] = []
        for at, token in enumerate(tokens):
            digits = self._lexicon.numbers.get(token)
            counting = bool(out) and out[-1][0].isdigit()
            scale_alone = digits in _SCALE_WORDS and not counting
            if digits is not None and not scale_alone:
                _append_number(out, digits, spoken=at > 0 and tokens[at - 1] in self._lexicon.numbers)
            elif counting and token in self._lexicon.units:
                if out[-1] == "1":
                    out.pop()
                out.append(self._lexicon.units[token])
            else:
                out.append(token)
        return out

    def _names(self, names: set[str]) -> frozenset[str]:
        spelled = (self._lexicon.aliases.get((name,), (name,)) for name in names)
        return frozenset(self.lemma(word) for words in spelled for word in words if word not in self._lexicon.stop)

    def _roles(self, tokens: Sequence[str], lemmas: Sequence[str]) -> dict[str, frozenset[str]]:
        roles: dict[str, set[str]] = {}
        role, room = "", 0
        for token, lemma in zip(tokens, lemmas, strict=True):
            if token in self._lexicon.prepositions:
                role, room = token, 4
            elif self._is_content(token, lemma) or token[0].isdigit():
                roles.setdefault(lemma, set()).add(role if room > 0 else "")
                room -= 1
            elif token not in self._lexicon.articles:
                role, room = "", 0
        return {word: frozenset(found) for word, found in roles.items()}

    def _moment(self, tokens: Sequence[str]) -> bool:
        # A current account is no matter of time.
        following = [*tokens[1:], ""]
        moment = self._lexicon.moment
        return any(
            word in moment and after not in ("account", "accounts")
            for word, after in zip(tokens, following, strict=True)
        )

    def _negated(self, tokens: Sequence[str], lemmas: Sequence[str]) -> frozenset[str]:
        words = set()
        for at, token in enumerate(tokens):
            if token in self._lexicon.negators:
                span = slice(at + 1, at + 1 + REACH_OF_NOT)
                words |= {
                    lemma
                    for word, lemma in zip(tokens[span], lemmas[span], strict=True)
                    if self._is_content(word, lemma)
                }
        return frozenset(words)

    def _english(self, plain: str, tokens: Sequence[str]) -> bool:
        lexicon = self._lexicon
        letters = [char for char in plain if char.isalpha()]
        if not letters:
            return True
        if sum(not char.isascii() for char in letters) > 0.1 * len(letters):
            return False
        alphabetic = [token for token in tokens if token.isalpha()]
        native = sum(token in lexicon.stop for token in alphabetic)
        foreign = sum(token in lexicon.foreign and token not in lexicon.stop for token in alphabetic)
        shared = sum(token in lexicon.foreign and token in lexicon.stop for token in alphabetic)
        known = sum(token in lexicon.stop or self.lemma(token) in self._vocabulary for token in alphabetic)
        # Words that English shares with others count for English only where nothing else is foreign.
        if foreign and foreign + shared >= native:
            return False
        return known >= (0.5 if native >= 0.2 * len(alphabetic) else 0.75) * len(alphabetic)


def plain_text(text: str) -> str:
    """Compatible characters as one (full-width digits, ligatures), typographic quotes as straight ones."""
    if text.isascii():
        return text.replace("``", '"').replace("''", '"').strip()
    folded = unicodedata.normalize("NFKC", text).translate(_QUOTES)
    return folded.replace("``", '"').replace("''", '"').strip()


# Single and double typographic quotes; en dash, em dash, minus sign, soft hyphen.
_QUOTES = str.maketrans("\u2018\u2019\u201c\u201d\u2013\u2014\u2212", "''\"\"- -", "\u00ad")


def _identity(plain: str) -> str:
    if "\n" in plain:
        # Indentation and line breaks can be code; only what is invisible at a line's end goes.
        return "\n".join(line.rstrip() for line in plain.splitlines())
    words = (token.lower() if token.strip(".,:;!?'\"-").isalpha() else token for token in plain.split())
    return " ".join(words).rstrip(" .?!")


def _tokens(plain: str) -> Iterator[tuple[str, bool]]:
    """Each token and whether it opens a sentence."""
    end = 0
    opens = True
    for match in _TOKEN.finditer(plain):
        between = plain[end : match.start()]
        if any(mark in between for mark in "!?\n"):
            opens = True
        token = match[0].strip(".:'-/&")
        if token:
            yield token, opens
            opens = False
        end = match.end()
        if match[0].endswith((".", ":")):
            opens = True


def _append_number(out: list[str], digits: str, spoken: bool) -> None:
    """Adds a spoken number; `two hundred` and `twenty five` are one."""
    value = int(digits)
    if spoken and out and out[-1].isdigit():
        held = int(out[-1])
        if value in (100, 1000, 1000000, 1000000000):
            out[-1] = str(held * value)
            return
        if 20 <= held < 100 and held % 10 == 0 and value < 10:
            out[-1] = str(held + value)
            return
    out.append(digits)
