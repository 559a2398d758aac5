"""Labelled pairs that the project makes itself: wordings of one question, and questions that only look like it.

Sources: the groups of `questions.txt`, frames that put one request in many ways, and corruptions that change what is
asked by one word (entity, number, unit, opposite, negation, name, kind of question, who does what, scope).
"""

import importlib.resources
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from cache.guard.lexicon import Lexicon
from cache.guard.words import WordTable

# Wordings that are made of one filling.
WORDINGS = 6
# The section of changes that fit any request.
TWISTS = "twists"


@dataclass(frozen=True)
class MadePair:
    """Two texts, whether one answer serves both, how they were made, and a group that must not be split."""

    a: str
    b: str
    same: bool
    kind: str
    group: str


def made_pairs(lexicon: Lexicon, seed: int) -> list[MadePair]:
    """All pairs, in an order that depends on `seed` only."""
    rng = random.Random(seed)  # noqa: S311  # reproducible training data, no secret
    pairs = [*_grouped(), *_framed(rng), *_swapped()]
    same = [pair for pair in pairs if pair.same]
    texts = sorted({(pair.a, pair.group) for pair in same} | {(pair.b, pair.group) for pair in same})
    rng.shuffle(texts)
    for text, group in texts:
        pairs += _corrupted(text, group, lexicon, rng)
        pairs += _reworded(text, group, lexicon, rng)
    return pairs


def _grouped() -> Iterator[MadePair]:
    lines = _resource("questions.txt")
    for same, other in zip(lines[::2], lines[1::2], strict=True):
        wordings = [part.strip() for part in same[2:].split("|")]
        traps = [part.strip() for part in other[2:].split("|")]
        group = wordings[0]
        for at, a in enumerate(wordings):
            for b in wordings[at + 1 :]:
                yield MadePair(a, b, True, "wording", group)
            for trap in traps:
                yield MadePair(a, trap, False, "neighbour", group)
        for at, a in enumerate(traps):
            for b in traps[at + 1 :]:
                yield MadePair(a, b, False, "neighbour", group)


def _framed(rng: random.Random) -> Iterator[MadePair]:
    for name, family in _families().items():
        if name == TWISTS:
            continue
        frames, traps, fills = family["frame"], family["trap"], family["fill"]
        for fill in fills:
            texts = _texts(frames, fill, rng, WORDINGS)
            for at, a in enumerate(texts):
                for b in texts[at + 1 :]:
                    yield MadePair(a, b, True, "frame", fill)
            asked = rng.sample(texts, len(texts))
            for a, b in zip(asked, _texts(traps, fill, rng, len(texts)), strict=False):
                yield MadePair(a, b, False, "kind", fill)
            for other in rng.sample(fills, min(2, len(fills))):
                if other != fill:
                    frame = rng.choice(frames)
                    a, b = (frame.format(*_names(one, rng)) for one in (fill, other))
                    yield MadePair(a, b, False, "thing", fill)


@cache
def _families() -> dict[str, dict[str, list[str]]]:
    """Section name to its lines by key."""
    families: dict[str, dict[str, list[str]]] = {}
    lines: dict[str, list[str]] = {}
    for line in _resource("families.txt"):
        if match := re.fullmatch(r"\[(\w+)\]", line):
            lines = families.setdefault(match[1], {})
        else:
            key, _, value = line.partition(": ")
            lines.setdefault(key, []).append(value)
    return families


def _resource(name: str) -> list[str]:
    text = importlib.resources.files("cache.guard").joinpath(name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def _texts(frames: Sequence[str], fill: str, rng: random.Random, count: int) -> list[str]:
    return [frame.format(*_names(fill, rng)) for frame in rng.sample(frames, min(count, len(frames)))]


def _names(fill: str, rng: random.Random) -> list[str]:
    return [rng.choice(slot.split(" ~ ")) for slot in fill.split(" | ")]


def _swapped() -> Iterator[MadePair]:
    for line in _families()[TWISTS]["swap"]:
        frame, *fillings = line.split(" ; ")
        for filling in fillings:
            one, two = filling.split(",")
            yield MadePair(frame.format(one, two), frame.format(two, one), False, "who_does_what", filling)
            wrapped = f"Can you help me? {frame.format(one, two)}"
            yield MadePair(frame.format(one, two), wrapped, True, "wrapped", filling)
            yield MadePair(frame.format(two, one), wrapped, False, "who_does_what", filling)


def _reworded(text: str, group: str, lexicon: Lexicon, rng: random.Random) -> Iterator[MadePair]:
    """Changes that keep the question: courtesy, case, a synonym, a slip of the keyboard."""
    kind = rng.randrange(4)
    changed = text
    if kind == 0:
        changed = rng.choice(_families()[TWISTS]["wrap"]).format(text)
    elif kind == 1:
        changed = text.lower().rstrip("?")
    elif kind == 2:
        changed = _replaced(text, rng, lambda word: sorted(lexicon.synonyms.get(word, ())))
    else:
        words = [word for word in re.findall(r"[a-z]{6,}", text) if word not in lexicon.stop]
        if words:
            word = rng.choice(words)
            at = rng.randrange(1, len(word) - 2)
            changed = text.replace(word, word[:at] + word[at + 1] + word[at] + word[at + 2 :], 1)
    if changed and changed != text:
        yield MadePair(text, changed, True, ("courtesy", "case", "synonym", "slip")[kind], group)


def _corrupted(text: str, group: str, lexicon: Lexicon, rng: random.Random) -> Iterator[MadePair]:
    """Changes of one word, or one phrase, that ask something else."""
    members, scopes = _members(lexicon), _families()[TWISTS]["scope"]
    changes: tuple[tuple[str, Callable[[], str]], ...] = (
        ("entity", lambda: _replaced(text, rng, lambda word: members.get(word, []))),
        ("opposite", lambda: _replaced(text, rng, lambda word: sorted(lexicon.opposites.get(word, ())))),
        ("number", lambda: re.sub(r"\d+", lambda found: str(int(found[0]) + rng.randint(1, 9)), text, count=1)),
        ("negation", lambda: _negated(text)),
        ("scope", lambda: f"{text.rstrip('?. ')} {rng.choice(scopes)}{'?' if text.endswith('?') else ''}"),
    )
    for kind, change in rng.sample(changes, 3):
        changed = change()
        if changed and changed != text:
            yield MadePair(text, changed, False, kind, group)


def substituted(texts: Sequence[tuple[str, str]], words: WordTable, lexicon: Lexicon, seed: int) -> Iterator[MadePair]:
    """One content word of each (text, group) replaced by a word of its neighbourhood that is no synonym of it."""
    rng = random.Random(seed)  # noqa: S311  # reproducible training data, no secret
    for text, group in texts:
        spots = [
            found
            for found in re.finditer(r"[a-z]{4,}", text)
            if found[0] in words and found[0] not in lexicon.stop and found[0] not in lexicon.negators
        ]
        if not spots:
            continue
        found = rng.choice(spots)
        known = lexicon.synonyms.get(found[0], frozenset())
        near = [word for word in words.neighbours(found[0], 40)[3:] if word not in known and word[:4] != found[0][:4]]
        if near:
            changed = text[: found.start()] + rng.choice(near) + text[found.end() :]
            yield MadePair(text, changed, False, "substitution", group)


def _members(lexicon: Lexicon) -> dict[str, list[str]]:
    classes: dict[str, set[str]] = {}
    for found in lexicon.classes.values():
        for name, member in found:
            classes.setdefault(name, set()).add(member.split("/")[0])
    return {
        word: sorted({other for name, mine in found for other in classes[name] if other not in mine.split("/")})
        for word, found in lexicon.classes.items()
    }


def _replaced(text: str, rng: random.Random, choices: Callable[[str], Sequence[str]]) -> str:
    """The text with one word replaced by one of its `choices`, or "" where no word has any."""
    spots = [(found, choices(found[0].lower())) for found in re.finditer(r"[A-Za-z]+", text)]
    spots = [(found, options) for found, options in spots if options and len(found[0]) > 1]
    if not spots:
        return ""
    found, options = rng.choice(spots)
    word = rng.choice(options)
    word = word.capitalize() if found[0][0].isupper() else word
    return text[: found.start()] + word + text[found.end() :]


def _negated(text: str) -> str:
    for pattern, negated in (
        (r"^(How|Why|What|When|Where) (do|does|can|should|is|are) (I|you|my|the|it) ", r"\1 \2 \3 not "),
        (r"^(Can|Should|Do|Does|Is|Are|Will) (\w+) ", r"\1 \2 not "),
        (r"\b(is|are|was|can|should|will|do|does) (?!not)", r"\1 not "),
        (r"\bwith\b", "without"),
    ):
        changed, count = re.subn(pattern, negated, text, count=1)
        if count:
            return changed
    return ""
