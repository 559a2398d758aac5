"""The learned half of the guard: a checked file of numbers, evaluated with numpy.

The score is a weighted mean, in log-odds, of a logistic regression and of a sum of small decision trees: the first
carries over to texts unlike those it was trained on, the second knows which differences count together.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import JsonValue

from cache.guard.pairing import FEATURES
from core.errors import ForebayError

SCHEMA = 1
# Inner nodes of a tree: their answers fit in a byte.
MOST_INNER = 8
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class GuardFileError(ForebayError):
    """The guard's file cannot be used: damaged, of another version, or made for another embedder."""


@dataclass(frozen=True)
class Trees:
    """Decision trees, one row each; node 0 is the root. A node with feature -1 is a leaf.

    `feature`, `left`, `right`: int64, `threshold`, `value`: float64, all of shape (trees, nodes). `value` of an inner
    node is the mean of its leaves, so that each step down says what it was worth.
    """

    feature: Integers
    threshold: Floats
    left: Integers
    right: Integers
    value: Floats
    base: float

    def total(self, features: Floats) -> float:
        """The sum of the leaves that features of shape (features,) lead to."""
        # What all nodes of a tree say is one number, and the leaf is looked up: small steps cost more than large ones.
        feature, threshold, rows, leaves = self._answers
        said = np.packbits(features.take(feature) > threshold, bitorder="little")
        return float(self.base + np.add.reduce(leaves.take(rows + said)))

    @cached_property
    def _answers(self) -> "tuple[Integers, Floats, Integers, Floats]":
        """The inner nodes, MOST_INNER of each tree, all trees in one row; what is added to a tree's answers to find its
        leaf; and the leaves by the answers, all trees in one row.
        """
        trees = len(self.feature)
        inner = self.feature >= 0
        # The number of an inner node among those of its tree, which is the bit of its answer.
        bit = np.cumsum(inner, axis=1) - 1
        at = np.argsort(~inner, axis=1, kind="stable")[:, :MOST_INNER]
        row = np.arange(trees)[:, np.newaxis]
        used = inner[row, at]
        feature = np.where(used, self.feature[row, at], 0)
        threshold = np.where(used, self.threshold[row, at], np.inf)
        answers = np.arange(2**MOST_INNER)[np.newaxis, :]
        node = np.zeros((trees, answers.size), dtype=np.int64)
        for _ in range(MOST_INNER):
            beyond = answers >> np.maximum(bit[row, node], 0) & 1
            below = np.where(beyond == 1, self.right[row, node], self.left[row, node])
            node = np.where(inner[row, node], below, node)
        return feature.ravel(), threshold.ravel(), np.arange(trees) * answers.size, self.value[row, node].ravel()

    def contributions(self, features: Floats) -> Floats:
        """What each feature adds on the way down; shape of `features`."""
        way = self._way
        beyond = features[way.feature] > way.threshold
        below = np.where(beyond, way.right, way.left)
        node, path = way.roots, []
        for _ in range(way.depth):
            path.append(node)
            node = below[node]
        inner = np.concatenate(path) if path else way.roots[:0]
        gained = way.value[below[inner]] - way.value[inner]
        worth: Floats = np.bincount(way.feature[inner], gained, len(features)).astype(np.float64)
        return worth

    @cached_property
    def _way(self) -> "Way":
        trees, nodes = self.feature.shape
        own = np.arange(trees * nodes).reshape(trees, nodes)
        inner, roots = self.feature >= 0, own[:, :1]
        left = np.where(inner, roots + self.left, own).ravel()
        right = np.where(inner, roots + self.right, own).ravel()
        depth, reached = 0, roots.ravel()
        while inner.ravel()[reached].any():
            reached = np.unique(np.concatenate([left[reached], right[reached]]))
            depth += 1
        feature = np.where(inner, self.feature, 0).ravel()
        return Way(feature, self.threshold.ravel(), left, right, self.value.ravel(), roots.ravel(), depth)


@dataclass(frozen=True)
class Way:
    """The nodes of all trees in one row, a leaf below itself; `depth`: steps from a root to the lowest leaf."""

    feature: Integers
    threshold: Floats
    left: Integers
    right: Integers
    value: Floats
    roots: Integers
    depth: int


@dataclass(frozen=True)
class PairModel:
    """The model in a guard file. `cut`: least score that is served. `recipe`: how it was made, for people."""

    embedder: str
    mean: Floats
    scale: Floats
    weights: Floats
    bias: float
    trees: Trees
    tree_share: float
    cut: float
    recipe: Mapping[str, JsonValue]

    def score(self, features: Floats) -> float:
        """Probability that one answer serves both, 0 to 1."""
        share, (slope, rise) = self.tree_share, self._line
        odds = share * self.trees.total(features) + (1 - share) * (float(features @ slope) + rise)
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, odds))))

    def worth(self, features: Floats) -> Floats:
        """What each feature adds to the score, in log-odds; shape of `features`."""
        share = self.tree_share
        return share * self.trees.contributions(features) + (1 - share) * self._linear(features)

    @cached_property
    def _line(self) -> tuple[Floats, float]:
        """The logistic regression as one product with the features, and what is added to it."""
        slope = self.weights / self.scale
        return slope, self.bias - float(slope @ self.mean)

    def _linear(self, features: Floats) -> Floats:
        return self.weights * (features - self.mean) / self.scale


def load_model(path: Path) -> PairModel:
    """Reads and checks a guard file. Raises GuardFileError."""
    return parse_model(path.read_bytes(), str(path))


def parse_model(data: bytes, name: str) -> PairModel:
    """Checks the content of a guard file; `name` is for messages. Raises GuardFileError."""
    try:
        document = orjson.loads(data)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise GuardFileError(f"{name}: not a guard file of schema {SCHEMA}")
        if document.get("checksum") != checksum(document):
            raise GuardFileError(f"{name}: the checksum does not match; the file is damaged")
        if tuple(document["features"]) != FEATURES:
            raise GuardFileError(f"{name}: made for other features; train it again")
        return _model(document)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise GuardFileError(f"{name}: not a guard file: {error!r}") from error


def _model(document: Mapping[str, JsonValue]) -> PairModel:
    linear = cast("Mapping[str, JsonValue]", document["linear"])
    trees = cast("Mapping[str, JsonValue]", document["trees"])
    mean, scale, weights = (_floats(linear[key], 1) for key in ("mean", "scale", "weights"))
    if not len(mean) == len(scale) == len(weights) == len(FEATURES):
        raise ValueError("one mean, scale and weight per feature")
    feature = _integers(trees["feature"])
    if (feature >= 0).sum(axis=1).max(initial=0) > MOST_INNER:
        raise ValueError(f"at most {MOST_INNER} inner nodes per tree")
    return PairModel(
        embedder=str(document["embedder"]),
        mean=mean,
        scale=scale,
        weights=weights,
        bias=float(cast("float", linear["bias"])),
        trees=Trees(
            feature=feature,
            threshold=_floats(trees["threshold"], 2),
            left=_integers(trees["left"]),
            right=_integers(trees["right"]),
            value=_floats(trees["value"], 2),
            base=float(cast("float", trees["base"])),
        ),
        tree_share=float(cast("float", document["tree_share"])),
        cut=float(cast("float", document["cut"])),
        recipe=cast("Mapping[str, JsonValue]", document["recipe"]),
    )


def _floats(value: JsonValue, dimensions: int) -> Floats:
    array = np.array(value, dtype=np.float64)
    if array.ndim != dimensions or not np.isfinite(array).all():
        raise ValueError("numbers expected")
    return array


def _integers(value: JsonValue) -> Integers:
    array = np.array(value, dtype=np.int64)
    if array.ndim != 2 or array.max(initial=0) >= max(array.shape[1], len(FEATURES)):
        raise ValueError("node and feature numbers expected")
    return array


def checksum(document: Mapping[str, JsonValue]) -> str:
    """SHA-256 over everything else in the document, canonically written."""
    rest = {name: value for name, value in document.items() if name != "checksum"}
    return hashlib.sha256(orjson.dumps(rest, option=orjson.OPT_SORT_KEYS)).hexdigest()


def deciding(worth: Floats, served: bool, names: Sequence[str] = FEATURES) -> str:
    """The feature that spoke loudest for the verdict."""
    return names[int(np.argmax(worth if served else -worth))]
