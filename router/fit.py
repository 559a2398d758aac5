"""How a mixture is learned: a ridge expert per kind, its odds calibrated, a gate between kinds, and one scale for all.

Each expert predicts what the frontier model's answer is worth more (for hand-labelled asks: 1 hard, 0 easy) and is
turned into log odds by Platt's method on predictions that were made for rows it had not seen. Penalty, emphasis on
features against the vector, and how much an ask's length counts on top are chosen by the quality-cost curve of such
predictions: for rows of seen groups and, where the data has groups, for groups that were left out as a whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from router.evaluate import curve
from router.features import NAMES
from router.mixture import Array, Mixture

Numbers = NDArray[np.float64]

_PENALTIES = (30.0, 100.0, 300.0, 1000.0)
_EMPHASES = (1.0, 0.5)
# Hand-written asks are few and in languages that the embedder may not know: there words may count for more.
_CHAT_EMPHASES = (2.0, 1.0, 0.5)
# What an expert gets of the length baseline, in standard deviations of its own predictions. Length is a weak signal,
# but one that carries over to groups of asks that the expert has not seen.
_LENGTH_PARTS = (0.0, 0.3, 0.6)
_LENGTH_COLUMN = NAMES.index("log_length")
_INNER_FOLDS = 4
_LEAST_GROUPS = 8
# How much predictions for seen groups count in choosing a setting, against those for groups that were left out.
_SEEN_GROUPS_COUNT = 2.0
_GATE_STRENGTH = 1.0
# How firmly the kinds' own scales are kept when the experts are made to agree where kinds overlap.
_ANCHOR = 0.1
# An ask is worth the frontier tier where that one's answer is better in one case of four: complexity 1/2.
WORTH = 0.25


@dataclass(frozen=True)
class Kind:
    """The training rows of one kind of traffic.

    `inputs`: shape (n, d). Per row, shape (n,): `weak` and `strong`, the qualities; `weights`; `groups`, empty texts
    where there are none. `worth`: the probability that the strong answer is better at which complexity is 1/2.
    `by_length`: whether length may count beyond what the regression finds.
    """

    name: str
    inputs: Array
    weak: Numbers
    strong: Numbers
    weights: Numbers
    groups: NDArray[np.str_]
    worth: float
    by_length: bool
    apart: bool = False

    def take(self, rows: NDArray[np.bool_]) -> "Kind":
        """The kind with a part of its rows."""
        parts = (self.inputs[rows], self.weak[rows], self.strong[rows], self.weights[rows], self.groups[rows])
        return Kind(self.name, *parts, worth=self.worth, by_length=self.by_length, apart=self.apart)


@dataclass(frozen=True)
class _Expert:
    weights: Numbers
    bias: float


def fit(kinds: Sequence[Kind], width: int, generator: np.random.Generator) -> Mixture:
    """A mixture over `kinds`; `width` is how many of the inputs come from the vector."""
    experts = [_fit_expert(kind, width, generator) for kind in kinds]
    gate, gate_bias = _fit_gate(kinds)
    mixture = Mixture(
        tuple(kind.name for kind in kinds),
        gate,
        gate_bias,
        np.array([expert.weights for expert in experts], dtype=np.float32),
        np.array([expert.bias for expert in experts], dtype=np.float32),
    )
    free = np.array([not kind.apart for kind in kinds])
    return _agreed(mixture, np.concatenate([kind.inputs for kind in kinds]), free)


def folds(
    count: int, parts: int, generator: np.random.Generator, groups: NDArray[np.str_] | None = None
) -> NDArray[np.intp]:
    """A part for each row, shape (count,); rows of one group stay together."""
    if groups is None:
        return generator.permutation(count) % parts
    names, at = np.unique(groups, return_inverse=True)
    return (generator.permutation(len(names)) % parts)[at]


def _fit_expert(kind: Kind, width: int, generator: np.random.Generator) -> _Expert:
    inputs = kind.inputs.astype(np.float64)
    gains = np.clip(kind.strong - kind.weak, -1, 1)
    rows = _Rows(inputs, gains, kind.weights)
    together = kind.groups if kind.apart else None
    cuts = [_Cut(rows, folds(len(gains), _INNER_FOLDS, generator, together))]
    if not kind.apart and len(np.unique(kind.groups)) >= _LEAST_GROUPS:
        cuts.append(_Cut(rows, folds(len(gains), _INNER_FOLDS, generator, kind.groups)))
    column = width + _LENGTH_COLUMN
    lengths = _standard(inputs[:, column]) * np.sign(np.corrcoef(inputs[:, column], gains)[0, 1])
    best: tuple[float, Numbers, Numbers, float, float] | None = None
    for emphasis in _CHAT_EMPHASES if kind.apart else _EMPHASES:
        stretch = np.where(np.arange(inputs.shape[1]) < width, 1.0, emphasis)
        for penalty, *unseen in zip(_PENALTIES, *(cut.unseen(stretch) for cut in cuts), strict=True):
            for part in _LENGTH_PARTS if kind.by_length else (0.0,):
                rankings = [_standard(own) + part * lengths for own in unseen]
                found = [curve(ranking, kind.weak, kind.strong).apgr() or 0.0 for ranking in rankings]
                quality = _SEEN_GROUPS_COUNT * found[0] + sum(found[1:])
                if best is None or quality > best[0]:
                    best = (quality, unseen[0], stretch, penalty, part)
    assert best is not None  # noqa: S101  # the loops above are never empty
    _, unseen_rows, stretch, penalty, part = best
    solved = cuts[0].whole(stretch, penalty)
    spread = float(unseen_rows.std())
    solved[column] += (
        part * spread * float(lengths @ inputs[:, column]) / max(float(inputs[:, column].var()), 1e-9) / len(gains)
    )
    blended = unseen_rows + part * spread * lengths
    slope, offset = _platt(blended, gains > 0, kind.weights)
    return _Expert(slope * solved[:-1], float(slope * solved[-1] + offset - np.log(kind.worth / (1 - kind.worth))))


@dataclass(frozen=True)
class _Rows:
    """Weighted rows of inputs, shape (n, d), and targets, shape (n,), for ridge regressions on parts of them.

    Inputs are stretched before they are penalized; the bias, last of what is found, is free.
    """

    inputs: Numbers
    targets: Numbers
    weights: Numbers

    def moments(self, chosen: NDArray[np.bool_]) -> Numbers:
        """The weighted second moments of (inputs, 1, target): all that a regression needs, and they add up."""
        inputs, targets = self.inputs[chosen], self.targets[chosen]
        columns = np.concatenate([inputs, np.ones((len(inputs), 1)), targets[:, np.newaxis]], axis=1)
        found: Numbers = (columns * self.weights[chosen][:, np.newaxis]).T @ columns
        return found

    def by_products(self, chosen: NDArray[np.bool_], stretch: Numbers, penalties: Sequence[float]) -> list[Numbers]:
        """Weights and bias per penalty by way of the rows' products: many times faster for fewer rows than inputs.

        Saunders et al. 1998, "Ridge regression learning algorithm in dual variables".
        """
        roots = np.sqrt(self.weights[chosen])[:, np.newaxis]
        whole = max(float((roots**2).sum()), 1e-9)
        inputs, targets = self.inputs[chosen] * stretch, self.targets[chosen, np.newaxis]
        middle, level = (roots**2 * inputs).sum(axis=0) / whole, float((roots**2 * targets).sum() / whole)
        inputs, targets = roots * (inputs - middle), roots * (targets - level)
        products = inputs @ inputs.T
        found = []
        for penalty in penalties:
            slopes = inputs.T @ np.linalg.solve(products + penalty * np.eye(len(products)), targets)[:, 0]
            found.append(np.append(slopes * stretch, level - middle @ slopes))
        return found


class _Cut:
    """A cut of rows into folds, `part`, and what regressions on each fold's complement need."""

    def __init__(self, rows: _Rows, part: NDArray[np.intp]) -> None:
        self._rows, self._part = rows, part
        few = len(rows.inputs) < rows.inputs.shape[1]
        self._moments = [] if few else [rows.moments(part == fold) for fold in range(_INNER_FOLDS)]

    def whole(self, stretch: Numbers, penalty: float) -> Numbers:
        """Weights and bias from all rows."""
        if self._moments:
            return _solve(np.sum(self._moments, axis=0), stretch, penalty)
        return self._rows.by_products(np.ones(len(self._part), dtype=bool), stretch, (penalty,))[0]

    def unseen(self, stretch: Numbers) -> list[Numbers]:
        """Per penalty the prediction for each row by a regression on the other folds."""
        found = [np.empty(len(self._part)) for _ in _PENALTIES]
        whole = np.sum(self._moments, axis=0) if self._moments else None
        for fold in range(_INNER_FOLDS):
            own = self._part == fold
            if whole is None:
                solutions = self._rows.by_products(~own, stretch, _PENALTIES)
            else:
                solutions = [_solve(whole - self._moments[fold], stretch, penalty) for penalty in _PENALTIES]
            for predicted, solved in zip(found, solutions, strict=True):
                predicted[own] = self._rows.inputs[own] @ solved[:-1] + solved[-1]
        return found


def _solve(moments: Numbers, stretch: Numbers, penalty: float) -> Numbers:
    """Weights and bias from moments."""
    stretch = np.append(stretch, 1.0)
    gram = moments[:-1, :-1] * stretch[:, np.newaxis] * stretch
    gram[np.diag_indices(len(gram) - 1)] += penalty
    gram[-1, -1] += 1e-9
    solved: Numbers = np.linalg.solve(gram, moments[:-1, -1] * stretch) * stretch
    return solved


def _standard(values: Numbers) -> Numbers:
    found: Numbers = (values - values.mean()) / max(float(values.std()), 1e-9)
    return found


def _platt(scores: Numbers, positive: NDArray[np.bool_], weights: Numbers) -> tuple[float, float]:
    """Slope and offset of the log odds of `positive` as a line in the score, by Newton's method.

    A slope below zero would turn the ranking around on noise, so it is held at a small positive value.
    """
    line = np.array([1.0, 0.0])
    columns = np.stack([scores, np.ones_like(scores)])
    for _ in range(50):
        chance = _sigmoid(line @ columns)
        slope = columns @ (weights * (chance - positive)) + 1e-6 * line
        bend = (columns * (weights * chance * (1 - chance))) @ columns.T + 1e-6 * np.eye(2)
        step = np.linalg.solve(bend, slope)
        line = line - np.clip(step, -5, 5)
        if float(np.abs(step).max()) < 1e-9:
            break
    return max(float(line[0]), 1e-3), float(line[1])


def _fit_gate(kinds: Sequence[Kind]) -> tuple[Array, Array]:
    """Weights and biases that tell the kinds apart; a row of a rare kind counts more than one of a common kind."""
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415  # heavy, and only training needs it

    counts = np.array([len(kind.weak) for kind in kinds])
    which = np.repeat(np.arange(len(kinds)), counts)
    weights = np.sqrt(1 / counts)[which]
    model = LogisticRegression(C=_GATE_STRENGTH, max_iter=300)
    model.fit(np.concatenate([kind.inputs for kind in kinds]), which, sample_weight=weights / weights.mean())
    found, bias = np.asarray(model.coef_), np.asarray(model.intercept_)
    if len(kinds) == 2:
        found, bias = np.stack([np.zeros_like(found[0]), found[0]]), np.array([0.0, bias[0]])
    return found.astype(np.float32), bias.astype(np.float32)


def _agreed(mixture: Mixture, inputs: Array, free: NDArray[np.bool_]) -> Mixture:
    """The mixture with its experts' biases moved so that they agree where kinds overlap.

    Qualities of two data sets are in different units: the same ask may look worth little in one and much in the other.
    The moves minimize the spread of the experts' log odds, each weighed by its share; only the free kinds move.
    """
    shares = mixture.shares(inputs).astype(np.float64)
    said = (inputs @ mixture.experts.T + mixture.expert_bias).astype(np.float64)
    apart = said - (shares * said).sum(axis=1, keepdims=True)
    mass = shares.sum(axis=0)
    system = np.diag(mass * (1 + _ANCHOR)) - shares.T @ shares
    moves = np.zeros(len(mixture.kinds))
    moves[free] = np.linalg.solve(system[np.ix_(free, free)], -(shares * apart).sum(axis=0)[free])
    bias = (mixture.expert_bias + moves).astype(np.float32)
    return Mixture(mixture.kinds, mixture.gate, mixture.gate_bias, mixture.experts, bias)


def _sigmoid(values: Numbers) -> Numbers:
    found: Numbers = 1 / (1 + np.exp(-np.clip(values, -30, 30)))
    return found
