"""Which part of a run is its steady state: by rule, not by eye.

The start is cut by the rule of marginal standard error (MSER-5; White, 1997): where the standard error of the mean of
what is left is smallest, over batches of five requests. A cut in the second half of the run means that there is no
steady state. The end is cut where requests stop coming: rates are counted up to there.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

BATCH = 5


@dataclass(frozen=True)
class Steady:
    """Rows `begin` to `end` (in order of being due), and the seconds at which they begin and end.

    `settled` False: the rule found no steady state; the rows are then those of the whole run.
    """

    begin: int
    end: int
    from_s: float
    to_s: float
    settled: bool


def warm_up(values: Values) -> int | None:
    """How many of the first values to leave out; None where that would be half of them or more, or they are too few."""
    batches = len(values) // BATCH
    if batches < 10:
        return None
    means = values[: batches * BATCH].reshape(batches, BATCH).mean(axis=1)
    # Sums from each batch to the end give every candidate's variance at once; the last five are too few to judge.
    left = np.arange(batches, 0, -1, dtype=float)
    centred = means - means.mean()
    ones, squares = np.cumsum(centred[::-1])[::-1], np.cumsum(centred[::-1] ** 2)[::-1]
    error = np.maximum(squares - ones**2 / left, 0.0)[:-5] / left[:-5] ** 2
    cut = int(np.argmin(error))
    return None if cut >= batches // 2 else cut * BATCH


def steady(due: Values, e2e: Values, answered: NDArray[np.bool_]) -> Steady:
    """The steady part. `due` ascends; `e2e` where `answered`. At least one request."""
    rows = np.flatnonzero(answered)
    cut = warm_up(e2e[rows]) if len(rows) else None
    whole = Steady(0, len(due), float(due[0]), float(due[-1]), settled=False)
    if cut is None:
        return whole
    begin = int(rows[cut]) if cut else 0
    return Steady(begin, len(due), float(due[begin]), float(due[-1]), settled=True)
