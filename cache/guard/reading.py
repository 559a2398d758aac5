"""What the guard reads in one text: words, numbers, names, codes, quotes, polarity, kind of question."""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise

from cache.guard.asking import CONSUMED, asks
from cache.guard.lexicon import Lexicon
from cache.guard.writing import identity_of, plain_text, quotes_of, tokens_of

# What is longer is not judged: reading must stay well under a millisecond.
MAX_CHARS = 1500
# Tokens of which is remembered what they are, and the longest of them, in characters: 10 MB at most.
REMEMBERED, LONGEST = 10_000, 32
# Tokens behind a negator that it may turn: why is my phone not charging, why isn't my phone charging.
REACH_OF_NOT = 5
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
    it follows, "" for none. `kind`: see `asks`. `moment`: about the present moment. `judged`: there are words, all of
    them read, and they are English.
    """

    identity: str
    tokens: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    numbers: tuple[str, ...] = ()
    measures: frozenset[tuple[str, str]] = frozenset()
    codes: frozenset[str] = frozenset()
    quotes: frozenset[str] = frozenset()
    negations: int = 0
    negated: frozenset[str] = frozenset()
    roles: Mapping[str, frozenset[str]] = field(default_factory=dict)
    kind: str = "say"
    moment: bool = False
    judged: bool = False

    @cached_property
    def bigrams(self) -> frozenset[tuple[str, str]]:
        """Neighbours in `tokens`."""
        return frozenset(pairwise(self.tokens))


@dataclass(slots=True)
class _Found:
    """Tokens under way: words in lower case, and which of them were written as names or codes."""

    tokens: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    codes: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Word:
    """What the lexicon and the vocabulary say of a token. `native`, `foreign`: a word of English, of other languages;
    `known`: in the vocabulary, or native.
    """

    lemma: str
    number: bool
    content: bool
    preposition: bool
    article: bool
    letters: bool
    native: bool
    foreign: bool
    known: bool


class Reader:
    """Reads texts with a lexicon and a vocabulary of known English words (lower case)."""

    def __init__(self, lexicon: Lexicon, vocabulary: Container[str]) -> None:
        self._lexicon, self._vocabulary = lexicon, vocabulary
        self._longest = max(map(len, lexicon.aliases))
        # First words of aliases, and what may follow: "" where nothing needs to.
        self._openings: dict[str, set[str]] = {}
        for alias in lexicon.aliases:
            self._openings.setdefault(alias[0], set()).add(alias[1] if len(alias) > 1 else "")
        self._alone = {role: frozenset((role,)) for role in ("", *lexicon.prepositions)}
        self._words = lru_cache(REMEMBERED)(self._word_of)
        self._sorted = lru_cache(REMEMBERED)(self._sort_alone)

    def read(self, text: str) -> Reading:
        """The reading of `text`; of one that is too long, its identity only. Pure; well under 0.1 ms for a sentence."""
        plain = plain_text(text)
        if len(text) > MAX_CHARS:
            return Reading(identity_of(plain))
        found = _Found()
        for token, opens in tokens_of(plain):
            part = self._sorted(token, opens) if len(token) <= LONGEST else self._sort_alone(token, opens)
            found.tokens += part.tokens
            if part.names:
                found.names |= part.names
            if part.codes:
                found.codes |= part.codes
        tokens = self._counted(self._spelled(found.tokens))
        words = [self._about(token) for token in tokens]
        written = words if tokens == found.tokens else [self._about(token) for token in found.tokens]
        kind = asks(tokens)
        consumed = CONSUMED.get(kind, ())
        numbers = [token for token, word in zip(tokens, words, strict=True) if word.number]
        negators = self._lexicon.negators
        negations = 0 if negators.isdisjoint(tokens) else sum(token in negators for token in tokens)
        return Reading(
            identity=identity_of(plain),
            tokens=tuple(tokens),
            words=tuple([word.lemma for word in words if word.content and word.lemma not in consumed]),
            names=self._names(found.names, written) if found.names else frozenset(),
            numbers=tuple(sorted(numbers)),
            measures=frozenset(pair for pair in pairwise(tokens) if pair[0][0].isdigit()) if numbers else frozenset(),
            codes=frozenset(found.codes),
            quotes=quotes_of(plain),
            negations=negations,
            negated=self._negated(tokens, words) if negations else frozenset(),
            roles=self._roles(tokens, words),
            kind=kind,
            moment=self._moment(tokens),
            judged=bool(tokens) and _english(plain, written),
        )

    def _about(self, token: str) -> _Word:
        return self._words(token) if len(token) <= LONGEST else self._word_of(token)

    def _word_of(self, token: str) -> _Word:
        lexicon, lemma = self._lexicon, self._lemma(token)
        number, native = token[0].isdigit(), token in lexicon.stop
        return _Word(
            lemma=lemma,
            number=number,
            content=not (number or native or lemma in lexicon.stop),
            preposition=token in lexicon.prepositions,
            article=token in lexicon.articles,
            letters=token.isalpha(),
            native=native,
            foreign=token in lexicon.foreign,
            known=native or lemma in self._vocabulary,
        )

    def _sort_alone(self, token: str, opens: bool) -> _Found:
        found = _Found()
        self._sort(token, opens, found)
        return found

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
        openings = self._openings
        if openings.keys().isdisjoint(tokens):
            return list(tokens)
        out: list[str] = []
        at = 0
        while at < len(tokens):
            following = openings.get(tokens[at])
            beside = tokens[at + 1] if at + 1 < len(tokens) else ""
            if following is None or not ("" in following or beside in following):
                out.append(tokens[at])
                at += 1
                continue
            for length in range(min(self._longest, len(tokens) - at), 0, -1):
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
        numbers = self._lexicon.numbers
        if numbers.keys().isdisjoint(tokens) and not any(token[0].isdigit() for token in tokens):
            return list(tokens)
        out: list[str] = []
        for at, token in enumerate(tokens):
            digits = numbers.get(token)
            counting = bool(out) and out[-1][0].isdigit()
            scale_alone = digits in _SCALE_WORDS and not counting
            if digits is not None and not scale_alone:
                _append_number(out, digits, spoken=at > 0 and tokens[at - 1] in numbers)
            elif counting and token in self._lexicon.units:
                if out[-1] == "1":
                    out.pop()
                out.append(self._lexicon.units[token])
            else:
                out.append(token)
        return out

    def _names(self, names: set[str], written: Sequence[_Word]) -> frozenset[str]:
        if len(names) > max(4, 0.6 * sum(word.letters for word in written)):
            return frozenset()  # the whole text is shouted
        spelled = (self._lexicon.aliases.get((name,), (name,)) for name in names)
        return frozenset(
            self._about(word).lemma for words in spelled for word in words if word not in self._lexicon.stop
        )

    def _roles(self, tokens: Sequence[str], words: Sequence[_Word]) -> dict[str, frozenset[str]]:
        roles: dict[str, frozenset[str]] = {}
        role, room = "", 0
        for token, word in zip(tokens, words, strict=True):
            if word.preposition:
                role, room = token, 4
            elif word.content or word.number:
                alone = self._alone[role if room > 0 else ""]
                held = roles.get(word.lemma)
                roles[word.lemma] = alone if held is None else held | alone
                room -= 1
            elif not word.article:
                role, room = "", 0
        return roles

    def _moment(self, tokens: Sequence[str]) -> bool:
        moment = self._lexicon.moment
        if moment.isdisjoint(tokens):
            return False
        # A current account is no matter of time.
        following = [*tokens[1:], ""]
        return any(
            word in moment and after not in ("account", "accounts")
            for word, after in zip(tokens, following, strict=True)
        )

    def _negated(self, tokens: Sequence[str], words: Sequence[_Word]) -> frozenset[str]:
        turned: set[str] = set()
        for at, token in enumerate(tokens):
            if token in self._lexicon.negators:
                turned |= {word.lemma for word in words[at + 1 : at + 1 + REACH_OF_NOT] if word.content}
        return frozenset(turned)


def _english(plain: str, written: Sequence[_Word]) -> bool:
    if plain.isascii():
        if plain.lower() == plain.upper():
            return True
    else:
        letters = [char for char in plain if char.isalpha()]
        if not letters:
            return True
        if sum(not char.isascii() for char in letters) > 0.1 * len(letters):
            return False
    count = native = foreign = shared = known = 0
    for word in written:
        if word.letters:
            count += 1
            native += word.native
            foreign += word.foreign and not word.native
            shared += word.foreign and word.native
            known += word.known
    # Words that English shares with others count for English only where nothing else is foreign.
    if foreign and foreign + shared >= native:
        return False
    return known >= (0.5 if native >= 0.2 * count else 0.75) * count


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
