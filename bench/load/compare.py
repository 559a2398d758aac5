"""Two results held against each other: the difference of each figure, its interval, and a verdict."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# What is compared, and whether less is better.
FIGURES: tuple[tuple[str, str, bool], ...] = (
    ("ttft", "p50", True), ("ttft", "p99", True), ("ttft", "mean", True),
    ("tpot", "p50", True), ("tpot", "p99", True), ("tpot", "mean", True),
    ("e2e", "p50", True), ("e2e", "p99", True), ("e2e", "mean", True),
)  # fmt: skip
BETTER, WORSE, SAME, UNKNOWN = "better", "worse", "no difference", "unknown"


@dataclass(frozen=True)
class Difference:
    """B less A of one figure. `low` and `high`: its 95 % interval; None where a run gives none. `share`: over A.

    `verdict` is about B: `better` or `worse` where the interval excludes 0 (and the `margin`), `no difference` where it
    does not, `unknown` without one.
    """

    part: str
    figure: str
    a: float
    b: float
    low: float | None
    high: float | None
    verdict: str

    @property
    def difference(self) -> float:
        """B less A."""
        return self.b - self.a

    @property
    def share(self) -> float | None:
        """The difference over A."""
        return None if self.a == 0 else self.difference / self.a


def compared(a: Mapping[str, Any], b: Mapping[str, Any], margin: float = 0.0) -> list[Difference]:
    """Every figure that both have, of all requests and of each class. `margin`: a share of A that does not matter."""
    found = []
    for name, one, other in _parts(a, b):
        for metric, key, less in FIGURES:
            left, right = one.get(metric) or {}, other.get(metric) or {}
            if left.get(key) is None or right.get(key) is None:
                continue
            ends = ((left.get("ci95") or {}).get(key), (right.get("ci95") or {}).get(key))
            found.append(difference(name, f"{metric} {key}", (left[key], right[key]), ends, less=less, margin=margin))
        for key in ("throughput_rps", "throughput_tok_s", "goodput"):
            if one.get(key) is None or other.get(key) is None:
                continue
            ends = (one.get(f"{key}_ci95"), other.get(f"{key}_ci95"))
            found.append(difference(name, key, (one[key], other[key]), ends, less=False, margin=margin))
    return found


def difference(
    part: str,
    figure: str,
    values: tuple[float, float],
    ends: tuple[Sequence[float] | None, Sequence[float] | None],
    *,
    less: bool,
    margin: float = 0.0,
) -> Difference:
    """One figure. The runs are independent, so their half widths add as squares."""
    a, b = values
    if ends[0] is None or ends[1] is None or None in (*ends[0], *ends[1]):
        return Difference(part, figure, a, b, None, None, UNKNOWN)
    half = math.hypot((ends[0][1] - ends[0][0]) / 2, (ends[1][1] - ends[1][0]) / 2)
    low, high = b - a - half, b - a + half
    slack = margin * abs(a)
    if low > slack:
        verdict = WORSE if less else BETTER
    elif high < -slack:
        verdict = BETTER if less else WORSE
    else:
        verdict = SAME
    return Difference(part, figure, a, b, low, high, verdict)


def unlike(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """What of the two set-ups differs beside the address: a comparison is of one thing."""
    notes: list[str] = []
    one, other = a.get("setup") or {}, b.get("setup") or {}
    notes += [
        f"{key}: {one.get(key)!r} against {other.get(key)!r}"
        for key in sorted({*one, *other} - {"url", "salt"})
        if one.get(key) != other.get(key)
    ]
    for name, document in (("A", a), ("B", b)):
        if document.get("valid") is False:
            notes.append(f"{name} is not a valid run: {'; '.join(document.get('invalid_because') or ())}")
    return notes


def _parts(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    yield "all", a, b
    others = {one["name"]: one for one in b.get("classes") or ()}
    classes = [one for one in a.get("classes") or () if one["name"] in others]
    if len(classes) > 1 or len(a.get("classes") or ()) > 1:
        for one in classes:
            yield one["name"], one, others[one["name"]]
