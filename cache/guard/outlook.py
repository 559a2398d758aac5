"""What can be said of a pair before its embeddings are made: whether the guard could ever serve it.

The hard rules need no vector, so what they refuse has no outlook at all. Of the rest a logistic regression over the
guard's own features, with the likeness of cheap static vectors in the place of the cosine, says how likely it is that
the cosine reaches the threshold and the guard agrees. A wrong guess costs a miss, never a wrong answer. The file is
made by `bench.first_look`, for one embedder and one table of static vectors.
"""

import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import orjson
from numpy.typing import NDArray

from cache.guard.model import GuardFileError, checksum
from cache.guard.pairing import FEATURES
from cache.guard.verifier import Guard
from cache.verdict import Foresight, Notes, Verifier

FILE = "outlook.json"
SCHEMA = 1
# Standard deviations from the mean at which a feature says no more, and the features whose squares count.
FAR = 4.0
SHARED = slice(1, 5)


@dataclass(frozen=True)
class Outlook:
    """The regression in an outlook file: `weights` of the terms, `mean` and `scale` of the guard's features; and by
    threshold what pairs have that are served: the least sum, that nearly all of them reach, and the least likeness,
    that next to all have.
    """

    embedder: str
    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    weights: NDArray[np.float64]
    least: Mapping[float, tuple[float, float]]

    def sum(self, features: NDArray[np.float64]) -> float:
        """The log-odds of the regression, up to a constant."""
        standard = _standard(features, self.mean, self.scale)
        shared, count = standard[SHARED], len(standard)
        plain, crossed, squared = self.weights[:count], self.weights[count : 2 * count], self.weights[2 * count :]
        return float(standard @ plain + standard[0] * (standard @ crossed) + (shared * shared) @ squared)

    def at(self, threshold: float) -> tuple[float, float] | None:
        """Sum and likeness for the highest measured threshold that is not above this one."""
        below = [at for at in self.least if at <= threshold + 1e-9]
        return self.least[max(below)] if below else None


def terms(features: NDArray[np.float64], mean: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """What the regression adds up, shape (..., terms): standardised features, each also times the likeness, and the
    squares of those that say how much the texts share. `features`: shape (..., len(FEATURES)), the likeness first.
    """
    standard = _standard(features, mean, scale)
    return np.concatenate((standard, standard * standard[..., :1], standard[..., SHARED] ** 2), axis=-1)


def _standard(
    features: NDArray[np.float64], mean: NDArray[np.float64], scale: NDArray[np.float64]
) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.minimum(np.maximum((features - mean) / scale, -FAR), FAR)
    return found


class Foreseeing:
    """The guard without vectors. `rules_only`: leave the regression out, where more than the guard decides."""

    def __init__(self, guard: Guard, outlook: Outlook, least: tuple[float, float], *, rules_only: bool = False) -> None:
        self._guard, self._outlook = guard, outlook
        self._least, self.likeness = least
        self._rules_only = rules_only

    def hopeful(self, asked: str, stored: str, likeness: float, notes: Notes | None = None) -> bool:
        """Whether the stored answer may be served, for all that the texts say."""
        pair = self._guard.compared(asked, stored, notes)
        if pair is None:
            return True
        if pair.refusal() is not None:
            return False
        return self._rules_only or self._outlook.sum(pair.features(likeness)) >= self._least


def foresight_for(verifier: Verifier | None, threshold: float, *, judge: bool) -> Foresight | None:
    """The foresight for a verifier at a threshold; None where nothing was measured. Raises GuardFileError.

    `judge`: what the verifier refuses may be served all the same, but for the hard rules.
    """
    if not isinstance(verifier, Guard):
        return None
    outlook = parse_outlook(importlib.resources.files("cache.guard").joinpath(FILE).read_bytes(), FILE)
    least = outlook.at(threshold)
    if outlook.embedder != verifier.embedder or least is None:
        return None
    return Foreseeing(verifier, outlook, least, rules_only=judge)


def parse_outlook(data: bytes, name: str) -> Outlook:
    """Checks the content of an outlook file; `name` is for messages. Raises GuardFileError."""
    try:
        document = orjson.loads(data)
        if document["schema"] != SCHEMA or document["checksum"] != checksum(document):
            raise GuardFileError(f"{name}: damaged, or not an outlook file of schema {SCHEMA}")
        if tuple(document["features"]) != FEATURES:
            raise GuardFileError(f"{name}: made for other features; make it again")
        mean, scale, weights = (np.array(document[key], dtype=np.float64) for key in ("mean", "scale", "weights"))
        if weights.shape != terms(mean, mean, scale).shape or not np.isfinite(weights).all():
            raise GuardFileError(f"{name}: one weight per term")
        least = {float(at): (float(total), float(likeness)) for at, total, likeness in document["least"]}
        return Outlook(str(document["embedder"]), mean, scale, weights, least)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise GuardFileError(f"{name}: not an outlook file: {error!r}") from error
