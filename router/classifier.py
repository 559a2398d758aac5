"""From an ask to its complexity: how likely the small tier's answer is not good enough."""

import importlib.resources
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from router.artefact import Artefact, Recipe, mark, read
from router.features import look
from router.mixture import Array, joined, scaled


@dataclass(frozen=True)
class Score:
    """`complexity`: probability, 0..1, that the small tier is not good enough for the ask.

    `familiar`: False where the classifier knows that it does not know, and falls back to a stated rule. An ask without
    a vector, or in a script that the embedder cannot read, is scored by its words and form alone. An ask whose vector
    is far from all training data gets the mean of that score and the usual one, in log odds.
    """

    complexity: float
    familiar: bool


class Classifier:
    """A trained artefact, ready to score. Stateless and without I/O after construction; safe to share."""

    def __init__(self, artefact: Artefact) -> None:
        self._artefact = artefact
        # In the precision of the features: to convert them costs more than to scale.
        self._mean, self._scale = artefact.mean.astype(np.float64), artefact.scale.astype(np.float64)
        # The first look at letters beyond ASCII makes the tables that all later ones use.
        look("\u00e9")

    @classmethod
    def load(cls, path: Path | None) -> Self:
        """The classifier in a file, None for the shipped one. Raises ConfigError for a file that cannot be trusted."""
        if path is not None:
            return cls(read(path))
        with importlib.resources.as_file(importlib.resources.files("router") / "default.json") as shipped:
            return cls(read(shipped))

    @property
    def artefact(self) -> Artefact:
        """What it was made of."""
        return self._artefact

    @property
    def embedder(self) -> str:
        """Name of the embedding model whose vectors this classifier reads."""
        return self._artefact.embedder

    @property
    def dim(self) -> int:
        """Length of that model's vectors."""
        return self._artefact.dim

    @property
    def recipe(self) -> Recipe:
        """How it was trained and what it reached."""
        return self._artefact.recipe

    @property
    def deciles(self) -> Array:
        """The complexities that cut the training sample into ten equal parts: shape (9,), ascending."""
        return self._artefact.deciles

    def seen(self, prompt: str) -> bool:
        """Whether the prompt was in the training sample; wrong for one prompt in some hundred thousand."""
        marks, own = self._artefact.trained_on, mark(prompt)
        at = int(np.searchsorted(marks, own))
        return at < len(marks) and int(marks[at]) == own

    def score(self, text: str, vector: Array | None) -> Score:
        """The complexity of an ask.

        `text`: the user's ask alone. `vector`: its embedding, shape (dim,), norm 1, of the model named by `embedder`;
        None where it is not at hand. Raises ValueError for a vector of another length.
        """
        model, seen = self._artefact, look(text)
        features = scaled(seen.features, self._mean, self._scale)
        if vector is not None and vector.shape != (model.dim,):
            raise ValueError(f"the vector has shape {vector.shape}; the classifier reads {model.dim} values")
        if vector is None or not seen.legible:
            return Score(_probability(model.plain.logit(features)), familiar=False)
        full = model.full.logit(joined(vector, features))
        if self.nearness(vector) < model.familiar_at:
            return Score(_probability((full + model.plain.logit(features)) / 2), familiar=False)
        return Score(_probability(full), familiar=True)

    def nearness(self, vector: Array) -> float:
        """The best cosine between a vector and what stands for the training data."""
        return float(np.vecdot(self._artefact.prototypes, vector).max())


def _probability(logit: float) -> float:
    return 1 / (1 + math.exp(-max(min(logit, 30.0), -30.0)))
