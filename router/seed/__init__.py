"""Asks that everyone would call easy or hard, in five languages: what chat traffic looks like.

Most are written by hand. The others are made from sentences with gaps (`made.txt`), for kinds of work that are rarely
written about but dear to get wrong, with easy asks of the same words beside them.

Public routing labels are exam questions; these asks anchor the classifier on what people ask a chat model, and set what
complexity 1/2 means there.
"""

import importlib.resources
import random
from dataclasses import dataclass
from itertools import product, zip_longest

import numpy as np
import orjson
from numpy.typing import NDArray

from router.features import length

_LENGTH_BANDS = 5
# How many asks a block makes. There are more blocks of hard ones.
_MADE_HARD, _MADE_EASY = 20, 70


@dataclass(frozen=True)
class SeedAsk:
    """One ask; `language` is an ISO 639-1 code, `kind` names the sort of work."""

    prompt: str
    hard: bool
    language: str
    kind: str
    made: bool = False


def read_seed() -> list[SeedAsk]:
    """The shipped asks: easy ones, hard ones, and those that are made."""
    asks: list[SeedAsk] = []
    for name in ("easy", "hard"):
        lines = (importlib.resources.files("router.seed") / f"{name}.jsonl").read_bytes().splitlines()
        asks += [SeedAsk(row["prompt"], name == "hard", row["lang"], row["kind"]) for row in map(orjson.loads, lines)]
    return asks + made((importlib.resources.files("router.seed") / "made.txt").read_text(encoding="utf-8"))


def made(text: str) -> list[SeedAsk]:
    """The asks that a text of blocks makes: of every block so many, the sentences in turn, the same in every run."""
    asks: list[SeedAsk] = []
    for block in text.split("\n[")[1:]:
        head, _, body = block.partition("]\n")
        language, level, kind = head.split()
        chosen = random.Random(head)  # noqa: S311  # a choice of examples
        most = _MADE_EASY if level == "easy" else _MADE_HARD
        found = [ask for turn in zip_longest(*_sentences(body, chosen)) for ask in turn if ask is not None]
        asks += [SeedAsk(ask, level == "hard", language, kind, made=True) for ask in found[:most]]
    return asks


def _sentences(body: str, chosen: random.Random) -> list[list[str]]:
    """Per sentence of a block everything it can become, shuffled."""
    parts = {name: values.split(" | ") for name, _, values in (line.partition(" = ") for line in body.splitlines())}
    found = []
    for sentence in (line.removeprefix("- ") for line in body.splitlines() if line.startswith("- ")):
        names = [name for name in parts if f"{{{name}}}" in sentence]
        filled = [
            sentence.format(**dict(zip(names, values, strict=True)))
            for values in product(*(parts[name] for name in names))
        ]
        chosen.shuffle(filled)
        found.append([ask[0].upper() + ask[1:] for ask in filled])
    return found


def balanced_weights(asks: list[SeedAsk]) -> NDArray[np.float64]:
    """Weights under which easy and hard asks of a language are equally many and, as far as they overlap, equally long.

    Hard asks are longer by nature; without this the classifier would learn length instead of work. Shape (len(asks),).
    """
    hard = np.array([ask.hard for ask in asks])
    lengths = np.array([length(ask.prompt) for ask in asks])
    weights = np.zeros(len(asks))
    for language in sorted({ask.language for ask in asks}):
        own = np.array([ask.language == language for ask in asks])
        edges = np.quantile(lengths[own], np.arange(1, _LENGTH_BANDS) / _LENGTH_BANDS)
        bands = np.digitize(lengths, edges)
        for band in range(_LENGTH_BANDS):
            counts = [(own & (bands == band) & (hard == kind)).sum() for kind in (False, True)]
            for kind in (False, True):
                cell = own & (bands == band) & (hard == kind)
                weights[cell] = min((min(counts) + 2) / max(counts[kind], 1), 1.5)
        for kind in (False, True):
            cell = own & (hard == kind)
            weights[cell] *= own.sum() / 2 / max(weights[cell].sum(), 1e-9)
    return weights
