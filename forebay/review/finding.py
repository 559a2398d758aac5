"""What a review finds, and what it is made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from capacity.devices import Device
from core.config import Config
from forebay.review.log import Repeats
from forebay.review.samples import Samples

Severity = Literal["problem", "note"]
Document = dict[str, Any]
TIERS = ("small", "frontier")


@dataclass(frozen=True)
class Finding:
    """One thing to act on (`problem`) or to know (`note`). `evidence`: figures by name; shares are fractions."""

    code: str
    severity: Severity
    title: str
    evidence: Mapping[str, Any]
    advice: str
    # The code of the problem that this one follows from.
    because: str | None = None

    def document(self) -> Document:
        """As JSON takes it."""
        return {
            "code": self.code,
            "severity": self.severity,
            "title": self.title,
            "evidence": dict(self.evidence),
            "advice": self.advice,
            "because": self.because,
        }


@dataclass(frozen=True)
class Case:
    """What is looked at. `before`: the stretch of the same length before, None where too little happened in it."""

    now: Samples
    before: Samples | None
    repeats: Repeats | None = None
    config: Config | None = None
    device: Device | None = None
    gpu_price: float | None = None

    @property
    def seconds(self) -> float:
        """How long there was something to see."""
        return seconds_of(self.now)


@dataclass
class Answer:
    """The numbers behind one question, and what was found on the way."""

    figures: Document
    findings: list[Finding] = field(default_factory=list)


def seconds_of(samples: Samples) -> float:
    """How long a gateway was seen, in seconds; at least one step."""
    seen = samples.seen("forebay_inflight_limit") or samples.seen("forebay_requests_total")
    return samples.step if seen is None else max(1, seen[1] - seen[0]) * samples.step


def last(samples: Samples, name: str) -> float | None:
    """The last value of a gauge, the highest over processes; None where it was never seen."""
    known = [one.values[~np.isnan(one.values)] for one in samples.series.get(name, ())]
    return max((float(values[-1]) for values in known if len(values)), default=None)


def share(part: float, whole: float) -> float | None:
    """A fraction; None of nothing."""
    return part / whole if whole > 0 else None


def rounded(value: float | None, digits: int = 4) -> float | None:
    """For a document."""
    return None if value is None else round(float(value), digits)
