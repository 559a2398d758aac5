"""Samples of a stretch of time on one grid, and what counters, histograms and gauges say over it."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import ForebayError

Numbers = NDArray[np.float64]
Key = tuple[str, ...]
FORMAT = "forebay-review-1"


@dataclass(frozen=True)
class Series:
    """One time series. `values` are on the grid of its samples, NaN where there is none."""

    labels: Mapping[str, str]
    values: Numbers

    @property
    def process(self) -> tuple[str, str]:
        """Which target it was scraped from."""
        return self.labels.get("job", ""), self.labels.get("instance", "")


@dataclass(frozen=True)
class Histogram:
    """Counts per bucket (not cumulative) below ascending bounds, the last of which is infinite; the sum of values."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float

    @property
    def count(self) -> float:
        """How many values."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """None where there are no values."""
        return self.total / self.count if self.count > 0 else None

    def upto(self, bound: float) -> float:
        """How many values are at most `bound`; in a bucket that it divides, in proportion."""
        seen, low = 0.0, 0.0
        for high, count in zip(self.bounds, self.counts, strict=True):
            if high <= bound:
                seen += count
            elif low < bound and np.isfinite(high):
                seen += count * (bound - low) / (high - low)
            low = high
        return seen

    def quantile(self, q: float) -> float | None:
        """As Prometheus does it: within a bucket in proportion; the last finite bound above it. None without values."""
        if self.count <= 0:
            return None
        rank, seen, low = q * self.count, 0.0, 0.0
        for high, count in zip(self.bounds, self.counts, strict=True):
            if count > 0 and seen + count >= rank:
                return low if not np.isfinite(high) else low + (high - low) * (rank - seen) / count
            seen, low = seen + count, high if np.isfinite(high) else low
        return low


@dataclass(frozen=True)
class Samples:
    """Series by metric name. `times` are Unix seconds, ascending, a constant step apart."""

    times: Numbers
    series: Mapping[str, Sequence[Series]]

    @property
    def step(self) -> float:
        """Seconds between two points."""
        return float(self.times[1] - self.times[0]) if len(self.times) > 1 else 1.0

    def part(self, first: int, last: int) -> "Samples":
        """The points from `first` up to but not `last`."""
        cut = {name: [Series(one.labels, one.values[first:last]) for one in many] for name, many in self.series.items()}
        return Samples(self.times[first:last], cut)

    def seen(self, name: str) -> tuple[int, int] | None:
        """First and last point with a sample of this metric."""
        there = [np.flatnonzero(~np.isnan(one.values)) for one in self.series.get(name, ())]
        points = [point for point in there if len(point)]
        if not points:
            return None
        return min(int(point[0]) for point in points), max(int(point[-1]) for point in points)

    def increase(self, name: str, by: Sequence[str] = (), where: Callable[..., bool] | None = None) -> dict[Key, float]:
        """How much counters have grown, by the values of labels. `where` is given the labels by keyword."""
        found: dict[Key, float] = defaultdict(float)
        for one in self.series.get(name, ()):
            if where is not None and not where(**one.labels):
                continue
            key = tuple(one.labels.get(label, "") for label in by)
            found[key] += float(np.sum(self._growth(one)))
        return dict(found)

    def sum(self, name: str, where: Callable[..., bool] | None = None) -> float:
        """The growth of all of them together."""
        return sum(self.increase(name, (), where).values())

    def rate(self, name: str, where: Callable[..., bool] | None = None) -> Numbers:
        """Growth per second at every point, summed."""
        total = np.zeros(len(self.times))
        for one in self.series.get(name, ()):
            if where is None or where(**one.labels):
                total += self._growth(one)
        return total / self.step

    def histogram(self, name: str, where: Callable[..., bool] | None = None) -> Histogram:
        """All values that came in between, of every series that fits."""
        grown = self.increase(f"{name}_bucket", ("le",), where)
        edges = sorted((float(key[0].replace("+Inf", "inf")), count) for key, count in grown.items())
        counts = np.diff([0.0, *(count for _, count in edges)]).clip(min=0)
        return Histogram(tuple(bound for bound, _ in edges), tuple(map(float, counts)), self.sum(f"{name}_sum", where))

    def gauge(self, name: str, where: Callable[..., bool] | None = None) -> Numbers:
        """A gauge summed over processes at every point; NaN where none has a sample."""
        rows = [one.values for one in self.series.get(name, ()) if where is None or where(**one.labels)]
        if not rows:
            return np.full(len(self.times), np.nan)
        table = np.vstack(rows)
        return np.where(np.isnan(table).all(axis=0), np.nan, np.nansum(table, axis=0))

    def highest(self, name: str, where: Callable[..., bool] | None = None) -> float | None:
        """The highest value of a gauge that every process sees for itself; None where none has a sample."""
        rows = [one.values for one in self.series.get(name, ()) if where is None or where(**one.labels)]
        known = [float(np.nanmax(row)) for row in rows if np.isfinite(row).any()]
        return max(known, default=None)

    def values(self, name: str, label: str) -> list[str]:
        """The values of a label, sorted."""
        return sorted({one.labels[label] for one in self.series.get(name, ()) if label in one.labels})

    @cached_property
    def _births(self) -> dict[tuple[str, str], int]:
        """The first point of every process."""
        born: dict[tuple[str, str], int] = {}
        for many in self.series.values():
            for one in many:
                there = np.flatnonzero(~np.isnan(one.values))
                if len(there):
                    born[one.process] = min(born.get(one.process, len(self.times)), int(there[0]))
        return born

    def _growth(self, one: Series) -> Numbers:
        """Growth at every point. A counter that falls has begun again at 0, and one that appears while others are
        already watched has begun at 0."""
        grown = np.zeros(len(self.times))
        there = np.flatnonzero(~np.isnan(one.values))
        if not len(there):
            return grown
        known = one.values[there]
        steps = np.diff(known)
        grown[there[1:]] = np.where(steps < 0, known[1:], steps)
        first, born = int(there[0]), self._births
        if first > born[one.process] or born[one.process] > min(born.values()):
            grown[first] = known[0]
        return grown


def read_export(document: Any) -> Samples:
    """Samples from an export: see docs/review.md. Raises ForebayError where it is none."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ForebayError(f"not an export of forebay review: its format is not {FORMAT!r}")
    try:
        answers = document["answers"]
        start, end, step = (float(document[name]) for name in ("start", "end", "step"))
        return on_grid(start, end, step, [one for answer in answers for one in answer["data"]["result"]])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ForebayError(f"not an export of forebay review ({FORMAT}): {error!r}") from None


def on_grid(start: float, end: float, step: float, results: Sequence[Mapping[str, Any]]) -> Samples:
    """Prometheus' range results (`metric`, `values`) on one grid. Raises ValueError, KeyError or TypeError."""
    if not step > 0 or end <= start:
        raise ValueError("start, end and step do not span a time")
    times: Numbers = np.arange(start, end + step / 2, step, dtype=np.float64)
    series: dict[str, list[Series]] = defaultdict(list)
    for one in results:
        labels = {str(name): str(value) for name, value in one["metric"].items()}
        values = np.full(len(times), np.nan)
        for at, value in one["values"]:
            place = round((float(at) - start) / step)
            if 0 <= place < len(times):
                values[place] = float(value)
        name = labels.pop("__name__")
        series[_plain(name)].append(Series(labels, values))
    return Samples(times, dict(series))


def _plain(name: str) -> str:
    """Engines' metrics under vLLM's own names, whatever Ray calls them."""
    return name.replace("ray_vllm_", "vllm:", 1) if name.startswith("ray_vllm_") else name
