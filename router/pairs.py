"""For which two of many models routing pays: every pair of a file with scores per model, measured in one go.

Each pair has its own ridge regression on what the stronger model's answer is worth more, on the classifier's inputs. It
predicts rows that it did not see (five parts), and its penalty is chosen inside the rows that it saw. All pairs share
their inputs, so one factorization serves them all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from router.evaluate import Measured, curve, measure
from router.features import length
from router.fit import folds
from router.labels import Labelled, Scored
from router.mixture import Array

Numbers = NDArray[np.float64]
Verdict = Literal["pays", "as length", "no signal", "no gap"]

_PARTS, _INNER = 5, 4
_PENALTIES = (30.0, 100.0, 300.0, 1000.0)
_EMPHASES = (1.0, 0.5)
_RESAMPLES = 500


@dataclass(frozen=True)
class Pair:
    """Two models, the weaker first by mean score, their means, and how well a classifier routes between them."""

    weak: str
    strong: str
    weak_mean: float
    strong_mean: float
    measured: Measured

    @property
    def verdict(self) -> Verdict:
        """`pays`: better than random and than length, each with its whole interval; `as length`: than random only."""
        found = self.measured
        if found.apgr_ci is None or found.over_length_ci is None:
            return "no gap"
        if found.apgr_ci[0] <= 0.5:
            return "no signal"
        return "pays" if found.over_length_ci[0] > 0 else "as length"


def measure_pairs(
    rows: Sequence[Scored], inputs: Array, width: int, note: Callable[[str], None], random_state: int = 0
) -> list[Pair]:
    """Every pair of models that all rows have a score of.

    `inputs`: the classifier's, shape (len(rows), d), the first `width` of them from the vector. Deterministic for one
    `random_state`.
    """
    models = sorted(set.intersection(*(set(row.scores) for row in rows)))
    scores = {name: np.array([row.scores[name] for row in rows]) for name in models}
    ordered = sorted(models, key=lambda name: float(scores[name].mean()))
    named = list(combinations(ordered, 2))
    gains = np.stack([scores[strong] - scores[weak] for weak, strong in named], axis=1)
    note(f"{len(named)} pairs of {len(models)} models")
    predicted = _unseen(inputs.astype(np.float64), width, gains, np.random.default_rng(random_state))
    lengths = np.array([length(row.prompt) for row in rows])
    found = []
    for at, (weak, strong) in enumerate(named):
        labelled = [Labelled(row.prompt, row.scores[weak], row.scores[strong], "") for row in rows]
        measured = measure(labelled, predicted[:, at], lengths, resamples=_RESAMPLES)
        found.append(Pair(weak, strong, float(scores[weak].mean()), float(scores[strong].mean()), measured))
    return found


def _unseen(inputs: Numbers, width: int, gains: Numbers, generator: np.random.Generator) -> Numbers:
    """The predicted gains, shape (rows, pairs), each row by regressions on the other parts."""
    count = len(inputs)
    outer, inner = folds(count, _PARTS, generator), folds(count, _INNER, generator)
    columns = np.concatenate([inputs, np.ones((count, 1)), gains], axis=1)
    cells = {
        (part, fold): (own := columns[(outer == part) & (inner == fold)]).T @ own
        for part in range(_PARTS)
        for fold in range(_INNER)
    }
    whole = np.sum(list(cells.values()), axis=0)
    size = inputs.shape[1] + 1
    stretches = [np.append(np.where(np.arange(size - 1) < width, 1.0, emphasis), 1.0) for emphasis in _EMPHASES]
    settings = [(stretch, penalty) for stretch in stretches for penalty in _PENALTIES]
    found = np.empty_like(gains)
    for part in range(_PARTS):
        known = whole - np.sum([cells[part, fold] for fold in range(_INNER)], axis=0)
        best = _choice(
            columns, outer != part, inner, known, {f: _inside(cells, part, f) for f in range(_INNER)}, settings
        )
        for at, (stretch, penalty) in enumerate(settings):
            pairs = best == at
            if pairs.any():
                solved = _solve(known, size, stretch, penalty)[:, pairs]
                found[np.ix_(outer == part, pairs)] = columns[outer == part, :size] @ solved
    return found


def _inside(cells: dict[tuple[int, int], Numbers], part: int, fold: int) -> Numbers:
    """The moments of one inner fold without the rows of `part`."""
    moments: Numbers = np.sum([cells[other, fold] for other in range(_PARTS) if other != part], axis=0)
    return moments


def _choice(
    columns: Numbers,
    seen: NDArray[np.bool_],
    inner: NDArray[np.intp],
    known: Numbers,
    inside: dict[int, Numbers],
    settings: list[tuple[Numbers, float]],
) -> NDArray[np.intp]:
    """Per pair the setting whose predictions inside the seen rows rank them best."""
    size = len(settings[0][0])
    pairs = columns.shape[1] - size
    quality = np.zeros((len(settings), pairs))
    for at, (stretch, penalty) in enumerate(settings):
        predicted = np.zeros((len(columns), pairs))
        for fold, own in inside.items():
            rows = seen & (inner == fold)
            predicted[rows] = columns[rows, :size] @ _solve(known - own, size, stretch, penalty)
        for pair in range(pairs):
            gains = columns[seen, size + pair]
            quality[at, pair] = curve(predicted[seen, pair], np.zeros(len(gains)), gains).apgr() or 0.0
    best: NDArray[np.intp] = quality.argmax(axis=0)
    return best


def _solve(moments: Numbers, size: int, stretch: Numbers, penalty: float) -> Numbers:
    """Ridge weights and bias for every target, shape (size, targets); the bias is not penalized."""
    gram = moments[:size, :size] * stretch[:, np.newaxis] * stretch
    gram[np.diag_indices(size - 1)] += penalty
    gram[-1, -1] += 1e-9
    solved: Numbers = np.linalg.solve(gram, moments[:size, size:] * stretch[:, np.newaxis]) * stretch[:, np.newaxis]
    return solved
