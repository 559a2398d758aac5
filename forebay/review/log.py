"""Questions that were asked again and missed, from the gateway's log lines."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass
class Asked:
    """One question by its fingerprint. `missed` counts answers by a tier although it had been answered before."""

    fingerprint: str
    requests: int = 0
    answered: int = 0
    missed: int = 0
    output_tokens: int = 0
    gaps: list[float] = field(default_factory=list)
    why: Counter[str] = field(default_factory=Counter)
    last: float | None = None


@dataclass
class Repeats:
    """What the log says. Of `misses` answers by a tier, `repeated` were to a question that had been answered before."""

    lines: int = 0
    misses: int = 0
    repeated: int = 0
    prompts: list[int] = field(default_factory=list)
    questions: dict[str, Asked] = field(default_factory=dict)

    def top(self, most: int) -> list[Asked]:
        """The questions with the most repeated misses."""
        found = [asked for asked in self.questions.values() if asked.missed]
        return sorted(found, key=lambda asked: (-asked.missed, asked.fingerprint))[:most]


def read_log(lines: Iterable[str], start: float, end: float) -> Repeats:
    """Request lines between two times (Unix seconds); whatever is no request line is passed over."""
    found = Repeats()
    for text in lines:
        line = _request(text)
        if line is None:
            continue
        at = _seconds(line.get("ts"))
        if at is None or not start <= at <= end:
            continue
        found.lines += 1
        _note(found, line, at)
    return found


def _note(found: Repeats, line: dict[str, Any], at: float) -> None:
    name, status, cache = line.get("fingerprint"), line.get("status"), line.get("cache")
    if status != 200 or (line.get("tier") == "none" and not str(cache).startswith("hit")):
        return
    missed = not str(cache).startswith("hit")
    if missed and isinstance(line.get("input_tokens"), int):
        found.prompts.append(line["input_tokens"])
    found.misses += missed
    if not isinstance(name, str):
        return
    asked = found.questions.setdefault(name, Asked(name))
    asked.requests += 1
    if missed and asked.answered:
        asked.missed += 1
        found.repeated += 1
        asked.output_tokens += line.get("output_tokens") or 0
        asked.why[_why(line)] += 1
        if asked.last is not None:
            asked.gaps.append(at - asked.last)
    asked.answered += 1
    asked.last = at


def _why(line: dict[str, Any]) -> str:
    if line.get("cache") == "bypass":
        return "not looked up: a header of the client, or a key without the cache"
    if line.get("semantic") == "guarded":
        return "no exact answer was kept, and the guard refused the nearest"
    return "no answer was kept: expired, evicted, purged, or cut off by max_tokens"


def _request(text: str) -> dict[str, Any] | None:
    if '"event":"request"' not in text:
        return None
    try:
        line = json.loads(text[text.index("{") :])
    except ValueError:
        return None
    return line if isinstance(line, dict) else None


def _seconds(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return None
