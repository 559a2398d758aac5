"""The guard's word lists, read from `lexicon.txt`: stop words, synonyms, opposites, classes, spellings, units."""

import importlib.resources
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property


@dataclass(frozen=True)
class Lexicon:
    """Word lists. Every word is lower case.

    `synonyms`, `opposites`: word to the words it may stand for, or is the opposite of. `classes`: word to (class,
    member) pairs; two members of one class never stand for each other. `aliases`: phrase (tuple of words) to words.
    `units`: form to unit. `numbers`: word to digits. `irregular`: form to lemma.
    """

    stop: frozenset[str]
    prepositions: frozenset[str]
    articles: frozenset[str]
    negators: frozenset[str]
    turning: frozenset[str]
    moment: frozenset[str]
    foreign: frozenset[str]
    synonyms: Mapping[str, frozenset[str]]
    opposites: Mapping[str, frozenset[str]]
    classes: Mapping[str, frozenset[tuple[str, str]]]
    aliases: Mapping[tuple[str, ...], tuple[str, ...]]
    units: Mapping[str, str]
    numbers: Mapping[str, str]
    irregular: Mapping[str, str]

    @cached_property
    def counted(self) -> frozenset[str]:
        """What can be counted: the values of `units`."""
        return frozenset(self.units.values())


@cache
def lexicon() -> Lexicon:
    """The packaged lexicon."""
    text = importlib.resources.files("cache.guard").joinpath("lexicon.txt").read_text(encoding="utf-8")
    sections = _sections(text)
    return Lexicon(
        stop=_words(sections["stop"]),
        prepositions=_words(sections["prepositions"]),
        articles=_words(sections["articles"]),
        negators=_words(sections["negators"]),
        turning=_words(sections["turning"]),
        moment=_words(sections["moment"]),
        foreign=_words(sections["foreign"]),
        synonyms=_groups(sections["synonyms"]),
        opposites=_opposites(sections["antonyms"]),
        classes=_classes(sections["classes"]),
        aliases=_aliases(sections["aliases"]),
        units={form: unit for unit, forms in _named(sections["units"]) for form in forms.split()},
        numbers=_pairs(sections["numbers"]),
        irregular=_pairs(sections["irregular"]),
    )


def _sections(text: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for raw in text.splitlines():
        line = raw.strip()
        if match := re.fullmatch(r"\[(\w+)\]", line):
            lines = sections.setdefault(match[1], [])
        elif line and not line.startswith("#"):
            lines.append(line)
    return sections


def _words(lines: Iterable[str]) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


def _groups(lines: Iterable[str]) -> dict[str, frozenset[str]]:
    groups: dict[str, set[str]] = {}
    for line in lines:
        words = line.split()
        for word in words:
            groups.setdefault(word, set()).update(other for other in words if other != word)
    return {word: frozenset(others) for word, others in groups.items() if others}


def _opposites(lines: Iterable[str]) -> dict[str, frozenset[str]]:
    opposites: dict[str, set[str]] = {}
    for line in lines:
        left, right = (side.split() for side in line.split("|"))
        for one, other in ((left, right), (right, left)):
            for word in one:
                opposites.setdefault(word, set()).update(other)
    return {word: frozenset(others) for word, others in opposites.items()}


def _classes(lines: Iterable[str]) -> dict[str, frozenset[tuple[str, str]]]:
    classes: dict[str, set[tuple[str, str]]] = {}
    for name, members in _named(lines):
        for member in members.split():
            for word in member.split("/"):
                classes.setdefault(word, set()).add((name, member))
    return {word: frozenset(found) for word, found in classes.items()}


def _aliases(lines: Iterable[str]) -> dict[tuple[str, ...], tuple[str, ...]]:
    sides = (line.split("=") for line in lines)
    return {tuple(phrase.split()): tuple(name.split()) for phrase, name in sides}


def _named(lines: Iterable[str]) -> list[tuple[str, str]]:
    return [(name.strip(), rest) for name, _, rest in (line.partition(":") for line in lines)]


def _pairs(lines: Iterable[str]) -> dict[str, str]:
    return dict(line.split() for line in lines)
