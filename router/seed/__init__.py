"""Hand-written asks that everyone would call easy or hard, in five languages: what chat traffic looks like.

Public routing labels are exam questions; these asks anchor the classifier on what people ask a chat model, and set what
complexity 1/2 means there.
"""

import importlib.resources
from dataclasses import dataclass

import numpy as np
import orjson
from numpy.typing import NDArray

from router.features import length

_LENGTH_BANDS = 5


@dataclass(frozen=True)
class SeedAsk:
    """One ask; `language` is an ISO 639-1 code, `kind` names the sort of work."""

    prompt: str
    hard: bool
    language: str
    kind: str


def read_seed() -> list[SeedAsk]:
    """The shipped asks, easy ones first."""
    asks: list[SeedAsk] = []
    for name in ("easy", "hard"):
        lines = (importlib.resources.files("router.seed") / f"{name}.jsonl").read_bytes().splitlines()
        asks += [SeedAsk(row["prompt"], name == "hard", row["lang"], row["kind"]) for row in map(orjson.loads, lines)]
    return asks


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
