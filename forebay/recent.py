"""What the gateway's events add up to: the figures of the last minute, for `forebay top`."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

# Seconds that the figures speak of, and decisions kept at most: beyond that the oldest of the minute are left out.
WINDOW, KEPT = 60.0, 20_000
Row = Mapping[str, Any]
HITS = ("hit-exact", "hit-semantic")


class Spread(NamedTuple):
    """Median and 95th percentile, milliseconds."""

    p50: float
    p95: float


class Figures(NamedTuple):
    """The last minute: `rate` per second over ten seconds of it, counts, and shares as fractions or None."""

    rate: float
    requests: float
    exact: float | None
    semantic: float | None
    small: float | None
    frontier: float | None
    errors: float
    shed: Mapping[str, float]
    ttft_ms: Spread | None
    tpot_ms: Spread | None


class Recent:
    """Takes events as they come; `rows` are the last decisions, the newest first, and `state` the last state."""

    def __init__(self, shown: int = 200) -> None:
        self.rows: deque[Row] = deque(maxlen=shown)
        self.state: Mapping[str, Any] | None = None
        self._minute: deque[tuple[Row, float]] = deque(maxlen=KEPT)
        self._now = 0.0

    def take(self, name: str, data: Mapping[str, Any]) -> None:
        """One event."""
        if name == "state":
            self.state, self._now = data, data["time"]
        elif name == "decisions":
            rows: list[Row] = data["decisions"]
            # Of those that were not sent, only the number is known: each of the others stands for some of them.
            weight = (len(rows) + data["missed"]) / len(rows) if rows else 1.0
            for row in rows:
                self.rows.appendleft(row)
                self._minute.append((row, weight))
                self._now = max(self._now, row["time"])

    def figures(self) -> Figures:
        """The figures at the time of the last event."""
        while self._minute and self._minute[0][0]["time"] < self._now - WINDOW:
            self._minute.popleft()
        cache: Counter[str] = Counter()
        tier: Counter[str] = Counter()
        shed: Counter[str] = Counter()
        errors = late = 0.0
        for row, weight in self._minute:
            cache[row["cache"]] += weight  # type: ignore[assignment]  # a weight is a count
            tier[row["tier"]] += weight  # type: ignore[assignment]  # as above
            if row["shed"]:
                shed[row["reason"] or "refused"] += weight  # type: ignore[assignment]  # as above
            errors += weight if row["status"] >= 500 else 0
            late += weight if row["time"] >= self._now - 10 else 0
        looked = sum(cache[name] for name in (*HITS, "miss"))
        asked = tier["small"] + tier["frontier"]
        streams = [
            row for row, _ in self._minute if row["stream"] and row["tier"] != "none" and row["cache"] not in HITS
        ]
        return Figures(
            late / 10,
            sum(weight for _, weight in self._minute),
            cache["hit-exact"] / looked if looked else None,
            cache["hit-semantic"] / looked if looked else None,
            tier["small"] / asked if asked else None,
            tier["frontier"] / asked if asked else None,
            errors,
            dict(shed),
            spread(row["ttft_ms"] for row in streams),
            spread(row["tpot_ms"] for row in streams),
        )


def spread(values: Iterable[float | None]) -> Spread | None:
    """Of the values that are known; None where there are none."""
    known = sorted(value for value in values if value is not None)
    return Spread(_quantile(known, 0.5), _quantile(known, 0.95)) if known else None


def _quantile(known: list[float], share: float) -> float:
    at = (len(known) - 1) * share
    low = int(at)
    high = min(low + 1, len(known) - 1)
    return known[low] + (known[high] - known[low]) * (at - low)
