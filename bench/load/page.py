"""The result as one HTML file that needs nothing else."""

import html
import json
from typing import Any

import numpy as np

from bench.load.measures import METRICS, Run
from bench.load.order import Outcome
from bench.load.svg import Series, plot
from bench.load.table import table

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1180px; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
pre { background: #f6f6f4; padding: 1em; overflow-x: auto; font-size: 12.5px; line-height: 1.35; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(480px, 1fr)); gap: 12px; }
svg { width: 100%; background: #fff; border: 1px solid #e4e4e0; }
.title { font: 600 13px system-ui, sans-serif; } .label, .tick { font: 11px system-ui, sans-serif; fill: #444; }
.axis { stroke: #888; fill: none; } .grid { stroke: #eee; } .bad { color: #b00020; font-weight: 600; }
table { border-collapse: collapse; } td, th { padding: 3px 10px; border-bottom: 1px solid #e4e4e0; text-align: left; }
"""


def page(outcome: Outcome) -> str:
    """The whole page."""
    document: dict[str, Any] = outcome.document
    setup = document["setup"]
    verdict = (
        "" if document["valid"] else f'<p class="bad">INVALID: {_text("; ".join(document["invalid_because"]))}</p>'
    )
    plots = [*_rates(document), *(figure for run in outcome.runs[:1] for figure in (*_curves(run), *_timeline(run)))]
    rows = "".join(f"<tr><td>{_text(key)}</td><td>{_text(_plain(value))}</td></tr>" for key, value in setup.items())
    notes = "".join(f"<li>{_text(note)}</li>" for note in document["warnings"])
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>forebay bench: {_text(str(setup["model"]))}</title><style>{_STYLE}</style></head><body>
<h1>{_text(str(setup["model"]))} at {_text(str(setup["url"]))}</h1>{verdict}
<pre>{_text(table(document))}</pre>{f"<ul>{notes}</ul>" if notes else ""}
<div class="plots">{"".join(plots)}</div>
<h2>Setup</h2><table>{rows}</table>
</body></html>
"""


def _rates(document: dict[str, Any]) -> list[str]:
    """Latency and throughput against rate, of a sweep."""
    rows = document.get("sweep")
    if not rows:
        return []
    rates = np.array([row["rate"] for row in rows], dtype=float)

    def line(metric: str, key: str) -> Series:
        values = np.array([_number(row[metric][key]) for row in rows])
        ends = [((row[metric].get("ci95") or {}).get(key) or (None, None)) for row in rows]
        low, high = (np.array([_number(end[place]) for end in ends]) for place in (0, 1))
        banded = bool(np.isfinite(low).all() and np.isfinite(high).all())
        return Series(
            f"{metric} {key}",
            rates,
            values * 1000,
            low=low * 1000 if banded else None,
            high=high * 1000 if banded else None,
        )

    lines = [line("ttft", "p50"), line("ttft", "p99"), line("tpot", "p50"), line("tpot", "p99")]
    answered = [
        Series("answered", rates, np.array([_number(row["throughput_rps"]) for row in rows])),
        Series("offered", rates, rates),
    ]
    figures = [
        plot("latency against rate", "requests/s offered", "milliseconds", lines, log=True),
        plot("throughput against rate", "requests/s offered", "requests/s", answered),
    ]
    if rows[0]["goodput"] is not None:
        good = Series("goodput", rates, np.array([_number(row["goodput"]) for row in rows]))
        figures.append(plot("within the targets", "requests/s offered", "share", [good]))
    return figures


def _curves(run: Run) -> list[str]:
    """Distribution functions of the metrics, and of each class's TTFT and TPOT."""
    figures = [
        plot(f"{metric.upper()}: share at or below", "milliseconds", "share", [cdf("all", run, metric)])
        for metric in METRICS
    ]
    classes = list(run.classes())
    if len(classes) > 1:
        figures += [
            plot(
                f"{metric.upper()} by class",
                "milliseconds",
                "share",
                [cdf(name, run, metric, rows) for name, rows in classes],
            )
            for metric in ("ttft", "tpot")
        ]
    return figures


def cdf(name: str, run: Run, metric: str, rows: Any = None) -> Series:
    """The empirical distribution function of a metric in milliseconds."""
    values = np.sort(run.values(metric, rows)) * 1000
    return Series(name, values, np.arange(1, len(values) + 1) / max(len(values), 1))


def _timeline(run: Run) -> list[str]:
    found = run.found
    due = found["due"]
    ends = np.where(np.isfinite(found["ended"]), found["ended"], due)
    times = np.concatenate([due, ends])
    steps = np.concatenate([np.ones(len(run)), -np.ones(len(run))])
    order = np.argsort(times, kind="stable")
    flying = Series("in flight", times[order], np.cumsum(steps[order]))
    figures = [
        plot("each request", "seconds after the start", "milliseconds", [
            Series("E2E", due, np.where(run.rows["e2e"], run.e2e, np.nan) * 1000, points=True),
            Series("TTFT", due, np.where(run.rows["ttft"], run.ttft, np.nan) * 1000, points=True),
        ]),
        plot("requests in flight", "seconds after the start", "requests", [flying]),
    ]  # fmt: skip
    length = float(times.max())
    if length > 0:
        edges = np.linspace(0, length, 41)
        done, _ = np.histogram(found["last"][run.answered], edges)
        came, _ = np.histogram(due, edges)
        middle, width = (edges[1:] + edges[:-1]) / 2, edges[1] - edges[0]
        rates = [Series("answered", middle, done / width), Series("arrived", middle, came / width)]
        figures.append(plot("rate", "seconds after the start", "requests/s", rates))
    return figures


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _text(value: str) -> str:
    return html.escape(value)
