"""Hit rate, router share and mean lengths from a gateway's `/metrics` text, summed over the files given."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_SAMPLE = re.compile(r"^(\w+?)(?:_total)?\{([^}]*)\}\s+([0-9.eE+-]+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Observed:
    """What the counters say; None where they say nothing."""

    hit_rate: float | None
    frontier_share: float | None
    prompt_tokens: float | None
    output_tokens: float | None


def observed(text: str) -> Observed:
    """The figures in Prometheus text. Counters since the start of the gateway: take a difference for a week."""
    answered = [(labels, value) for name, labels, value in _samples(text.splitlines()) if name == "forebay_requests"]
    good = [(labels, value) for labels, value in answered if labels.get("status", "200").startswith("2")]
    hits = sum(value for labels, value in good if labels.get("cache", "").startswith("hit"))
    tiers = {tier: sum(value for labels, value in good if labels.get("tier") == tier) for tier in ("small", "frontier")}
    total, missed = hits + sum(tiers.values()), sum(tiers.values())
    tokens = {"input": 0.0, "output": 0.0}
    for name, labels, value in _samples(text.splitlines()):
        if name == "forebay_tokens" and labels.get("kind") in tokens:
            tokens[labels["kind"]] += value
    return Observed(
        hits / total if total else None,
        tiers["frontier"] / missed if missed else None,
        tokens["input"] / missed if missed and tokens["input"] else None,
        tokens["output"] / missed if missed and tokens["output"] else None,
    )


def _samples(lines: Iterable[str]) -> Iterable[tuple[str, dict[str, str], float]]:
    for line in lines:
        found = _SAMPLE.match(line)
        if found:
            yield found[1], dict(_LABEL.findall(found[2])), float(found[3])
