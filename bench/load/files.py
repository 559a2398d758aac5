"""The result as CSV, and its requests as lines of JSON."""

import csv
import io
import math
from collections.abc import Iterator
from typing import Any

import orjson

from bench.load.measures import METRICS, PERCENTS, Run

_KEYS = ("mean", *(f"p{percent}" for percent in PERCENTS), "max")


def rows_of(document: dict[str, Any]) -> str:
    """One line per part (all, classes, cache, …) and metric, in seconds; rates and shares are lines of their own."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["part", "metric", "requests", *_KEYS, "p50_low", "p50_high"])
    parts = [("all", document), *((f"class {one['name']}", one) for one in document["classes"])]
    for key in ("by_cache", "by_tier", "by_kind", "by_turn"):
        parts += [(f"{key.removeprefix('by_')} {one['name']}", one) for one in document[key]]
    parts += [(f"rate {one['rate']:g}", one) for one in document.get("sweep", ())]
    for name, part in parts:
        for metric in METRICS:
            found = part.get(metric)
            if found is not None:
                ends = (found.get("ci95") or {}).get("p50") or ("", "")
                writer.writerow([name, metric, part["requests"], *(found.get(key) for key in _KEYS), *ends])
    for key in (
        "throughput_rps",
        "throughput_tok_s",
        "goodput",
        "goodput_rps",
        "success",
        "errors",
        "littles_law_ratio",
    ):
        writer.writerow(["all", key, document["requests"], document[key]])
    return out.getvalue()


def lines_of(run: Run) -> Iterator[bytes]:
    """A document per request, times in seconds after the start."""
    found = run.found
    for place in range(len(run)):
        row = found[place]
        times = {f"{name}_s": _known(row[name]) for name in ("due", "begun", "sent", "byte", "first", "last", "ended")}
        yield (
            orjson.dumps(
                {
                    "id": int(row["index"]),
                    "turn": int(row["turn"]),
                    **times,
                    "ttft_s": _known(run.ttft[place]),
                    "tpot_s": _known(run.tpot[place]) if run.rows["tpot"][place] else None,
                    "e2e_s": _known(run.e2e[place]),
                    "prompt_tokens": int(run.prompt[place]),
                    "output_tokens": int(run.tokens[place]),
                    "chunks": int(row["chunks"]),
                    "status": int(row["status"]),
                    "error": str(row["error"]) or None,
                    "cache": str(row["cache"]) or None,
                    "tier": str(row["tier"]) or None,
                }
            )
            + b"\n"
        )


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
