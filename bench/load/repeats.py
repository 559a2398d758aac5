"""Several runs of the same load as one document: means, with intervals over the repeats."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

# Counts that add up; everything else is averaged.
SUMMED = {
    "requests", "errors", "done", "exact", "semantic", "miss", "bypass", "chunks", "output_tokens", "without_usage",
    "not_as_wanted", "cached_prompt", "preemptions",
}  # fmt: skip


def merged(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One document. Of a single run it is that run's own, whose intervals are from within the run."""
    if len(documents) == 1:
        return documents[0]
    whole: dict[str, Any] = _merge(documents)
    whole["setup"] = documents[0]["setup"]
    whole["warnings"] = list(dict.fromkeys(note for one in documents for note in one["warnings"]))
    whole["invalid_because"] = list(dict.fromkeys(note for one in documents for note in one["invalid_because"]))
    whole["valid"] = all(one["valid"] for one in documents)
    for name in ("goodput", "throughput_rps", "throughput_tok_s"):
        whole[f"{name}_ci95"] = interval([one[name] for one in documents])
    whole["repeats"] = [
        {key: one[key] for key in ("requests", "throughput_rps", "throughput_tok_s", "ttft", "tpot", "e2e", "goodput")}
        for one in documents
    ]
    return whole


def interval(values: Sequence[float | None]) -> list[float] | None:
    """95 % interval of the mean of independent values (Student); None for fewer than two, or where one is missing."""
    known = [value for value in values if value is not None]
    if len(known) < 2 or len(known) < len(values):
        return None
    half = float(stdtrit(len(known) - 1, 0.975) * np.std(known, ddof=1) / np.sqrt(len(known)))
    mean = float(np.mean(known))
    return [mean - half, mean + half]


def _merge(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in parts[0]:
        values = [part.get(key) for part in parts]
        if key == "ci95":
            continue
        found[key] = _one(key, values)
    if "ci95" in parts[0]:
        names = [key for key in parts[0] if key not in ("ci95", "max")]
        found["ci95"] = {name: interval([part.get(name) for part in parts]) for name in names}
    return found


def _one(key: str, values: Sequence[Any]) -> Any:
    if all(isinstance(value, Mapping) for value in values):
        return _merge(values)
    if all(isinstance(value, list) for value in values) and values[0] and isinstance(values[0][0], Mapping):
        names = list(dict.fromkeys(part["name"] for value in values for part in value if "name" in part))
        rows = [[part for value in values for part in value if part.get("name") == name] for name in names]
        return [_merge(row) for row in rows]
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if numbers and len(numbers) == len(values):
        return sum(numbers) if key in SUMMED else float(np.mean(numbers))
    if isinstance(values[0], bool):
        return all(values)
    return values[0]
