"""A threshold for a wanted share of frontier traffic, from a sample of asks without labels."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Calibrated:
    """`threshold`: asks of at least this complexity go to the frontier tier. `achieved`: their share in the sample."""

    threshold: float
    wanted: float
    achieved: float


def calibrate(complexities: Numbers, share: float) -> Calibrated:
    """The threshold whose share of frontier traffic in the sample is nearest to `share` (0..1).

    Asks of one complexity cannot be told apart, so the achieved share may differ from the wanted one; of two equally
    near, the cheaper one is taken.
    """
    if not 0 <= share <= 1:
        raise ValueError("a share lies between 0 and 1")
    values = np.unique(complexities)
    # Between neighbouring complexities, so that rounding does not decide; a threshold lies within 0..1.
    thresholds = np.concatenate([[0.0], (values[1:] + values[:-1]) / 2, [1.0]])
    shares = 1 - np.searchsorted(np.sort(complexities), thresholds) / len(complexities)
    best = int(np.lexsort((shares, np.abs(shares - share)))[0])
    return Calibrated(float(thresholds[best]), share, float(shares[best]))


def calibrate_confidence(confidences: Numbers, share: float) -> Calibrated:
    """The mean log-probability below which the share of answers nearest to `share` (0..1) lies: those are escalated."""
    if not 0 <= share <= 1:
        raise ValueError("a share lies between 0 and 1")
    values = np.unique(confidences)
    # Below all of them none is escalated; at 0, the most a log-probability can be, all that are not certain.
    thresholds = np.concatenate([values[:1], (values[1:] + values[:-1]) / 2, [0.0]])
    shares = np.searchsorted(np.sort(confidences), thresholds) / len(confidences)
    best = int(np.lexsort((shares, np.abs(shares - share)))[0])
    return Calibrated(float(thresholds[best]), share, float(shares[best]))
