"""Quality against cost of a ranking of asks, as RouteLLM measures it, with its controls.

The asks are sorted by complexity; sending the first share s of them to the strong model gives a quality q(s), from the
weak model's mean at s = 0 to the strong model's at s = 1. The performance gap recovered is (q(s) - weak) / (strong -
weak); APGR is its mean over s (RouteLLM, arXiv 2406.18665, section 2.3), here over every threshold by the trapezoid
rule. Asks with one score move together, which a straight line between the two ends describes. CPT(x) is the least share
at which the curve reaches x of the gap; where the curve is not monotone, that is its first crossing. A random router
has APGR 1/2 on average. Where the strong model is not better on the whole there is no gap to recover: None.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.chart import BLUE, GREY, Line, chart
from router.labels import Labelled

Numbers = NDArray[np.float64]
RESAMPLES = 1000
BAND_RESAMPLES = 200
CURVE_POINTS = 51


@dataclass(frozen=True)
class Curve:
    """A quality-cost curve: shares of asks to the strong model (ascending from 0 to 1) and the mean quality there."""

    shares: Numbers
    quality: Numbers

    @property
    def gap(self) -> float:
        """Quality of the strong model above the weak one's."""
        return float(self.quality[-1] - self.quality[0])

    def apgr(self) -> float | None:
        """The average performance gap recovered; None without a gap."""
        if self.gap <= 0:
            return None
        recovered = (self.quality - self.quality[0]) / self.gap
        return float(np.trapezoid(recovered, self.shares))

    def cpt(self, part: float) -> float | None:
        """The least share that recovers `part` of the gap; None without a gap."""
        if self.gap <= 0:
            return None
        goal = self.quality[0] + part * self.gap
        at = int(np.argmax(self.quality >= goal - 1e-12))
        if at == 0:
            return 0.0
        low, high = self.quality[at - 1], self.quality[at]
        inside = (goal - low) / (high - low)
        return float(self.shares[at - 1] + inside * (self.shares[at] - self.shares[at - 1]))

    def at(self, shares: Numbers) -> Numbers:
        """The quality at given shares."""
        return np.interp(shares, self.shares, self.quality)


@dataclass(frozen=True)
class Measured:
    """A ranking's figures, its controls', and 95 % bootstrap intervals over the rows (None without a gap).

    `band`: the interval of what the ranking gains over a random router of the same cost, low and high, at CURVE_POINTS
    shares from 0 to 1.
    """

    rows: int
    auc: float | None
    apgr: float | None
    apgr_ci: tuple[float, float] | None
    apgr_random: float | None
    apgr_random_ci: tuple[float, float] | None
    apgr_length: float | None
    apgr_length_ci: tuple[float, float] | None
    over_length_ci: tuple[float, float] | None
    cpt50: float | None
    cpt80: float | None
    curve: Curve
    band: tuple[Numbers, Numbers]


def curve(scores: Numbers, weak: Numbers, strong: Numbers) -> Curve:
    """The quality-cost curve of asks with these scores (higher goes to the strong model first)."""
    order, ends = _ranking(scores)
    gains = np.concatenate([[0.0], np.cumsum((strong - weak)[order])])[ends]
    return Curve(ends / len(scores), weak.mean() + gains / len(scores))


def auc(scores: Numbers, positive: NDArray[np.bool_]) -> float | None:
    """The chance that a positive scores above a negative, ties counted half; None where one kind is missing."""
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[inverse]
    return float((ranks[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def measure(
    rows: Sequence[Labelled], scores: Numbers, lengths: Numbers, seed: int = 0, resamples: int = RESAMPLES
) -> Measured:
    """Figures of a ranking over labelled asks; `lengths` is the control that ranks by prompt length alone."""
    weak = np.array([row.weak for row in rows])
    strong = np.array([row.strong for row in rows])
    generator = np.random.default_rng(seed)
    drawn = bootstrap({"own": scores, "length": lengths}, weak, strong, generator, resamples)
    found = curve(scores, weak, strong)
    shuffled = [curve(generator.permutation(len(rows)).astype(float), weak, strong).apgr() for _ in range(200)]
    chance = np.array([value for value in shuffled if value is not None])
    return Measured(
        rows=len(rows),
        auc=auc(scores, strong > weak),
        apgr=found.apgr(),
        apgr_ci=_interval(drawn["own"]),
        apgr_random=float(chance.mean()) if len(chance) else None,
        apgr_random_ci=_interval(chance),
        apgr_length=curve(lengths, weak, strong).apgr(),
        apgr_length_ci=_interval(drawn["length"]),
        over_length_ci=_interval(drawn["own"] - drawn["length"]),
        cpt50=found.cpt(0.5),
        cpt80=found.cpt(0.8),
        curve=found,
        band=_band(scores, weak, strong, generator),
    )


def _band(scores: Numbers, weak: Numbers, strong: Numbers, generator: np.random.Generator) -> tuple[Numbers, Numbers]:
    shares, count = np.linspace(0, 1, CURVE_POINTS), len(scores)
    over = np.empty((BAND_RESAMPLES, CURVE_POINTS))
    for at in range(BAND_RESAMPLES):
        drawn = generator.integers(0, count, count)
        found = curve(scores[drawn], weak[drawn], strong[drawn])
        over[at] = found.at(shares) - found.quality[0] - shares * found.gap
    low, high = np.percentile(over, [2.5, 97.5], axis=0)
    return low, high


def bootstrap(
    rankings: dict[str, Numbers], weak: Numbers, strong: Numbers, generator: np.random.Generator, resamples: int
) -> dict[str, Numbers]:
    """APGR of each ranking over the same resamples of the rows; resamples without a gap are left out."""
    count = len(weak)
    gains = strong - weak
    ranked = {name: _ranking(scores) for name, scores in rankings.items()}
    values: dict[str, list[float]] = {name: [] for name in rankings}
    for _ in range(resamples):
        times = np.bincount(generator.integers(0, count, count), minlength=count)
        gap = float(times @ gains)
        if gap <= 0:
            continue
        for name, (order, ends) in ranked.items():
            shares = np.concatenate([[0.0], np.cumsum(times[order])])[ends] / count
            recovered = np.concatenate([[0.0], np.cumsum((times * gains)[order])])[ends] / gap
            values[name].append(float(np.trapezoid(recovered, shares)))
    return {name: np.array(found) for name, found in values.items()}


def _ranking(scores: Numbers) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows from the highest score down, and after how many of them a threshold can stand (0 and all included)."""
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    cuts = np.flatnonzero(np.diff(ranked)) + 1
    return order, np.concatenate([[0], cuts, [len(scores)]]).astype(np.intp)


def _interval(values: Numbers) -> tuple[float, float] | None:
    if not len(values):
        return None
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def summary(measured: Measured) -> dict[str, Any]:
    """The figures without the curve, under the names of the machine-readable result, rounded to four digits."""
    figures = {
        field.name: getattr(measured, field.name) for field in fields(measured) if field.name not in ("curve", "band")
    }
    return {name: _rounded(value) for name, value in figures.items()}


def document(measured: Measured) -> dict[str, Any]:
    """The machine-readable result of an evaluation: the figures, and the curve beside that of a random router."""
    shares = np.linspace(0, 1, CURVE_POINTS)
    quality = measured.curve.at(shares)
    chance = measured.curve.quality[0] + shares * measured.curve.gap
    points = [
        {
            "frontier_share": _rounded(share),
            "quality": _rounded(own),
            "random_quality": _rounded(random),
            "over_random_ci": [_rounded(low), _rounded(high)],
        }
        for share, own, random, low, high in zip(
            shares.tolist(), quality.tolist(), chance.tolist(), *(part.tolist() for part in measured.band), strict=True
        )
    ]
    return {**summary(measured), "curve": points}


def picture(name: str, measured: Measured) -> bytes:
    """The curve beside a random router of the same cost, with the 95 % interval of the difference, as PNG."""
    shares = np.linspace(0, 1, CURVE_POINTS)
    chance = measured.curve.quality[0] + shares * measured.curve.gap
    low, high = measured.band
    figure = "no gap" if measured.apgr is None else f"apgr {measured.apgr:.3f}"
    own = Line(f"classifier, {figure}", shares, measured.curve.at(shares), BLUE, chance + low, chance + high)
    random = Line("random, apgr 0.500", shares, chance, GREY)
    return chart(f"{name}, {measured.rows} rows", "share to frontier", "quality", [random, own])


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    return [round(part, 4) for part in value] if isinstance(value, tuple) else value
