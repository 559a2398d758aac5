"""The review for people: Markdown, and one HTML page with plots that needs nothing else."""

import base64
import html
from collections.abc import Mapping
from typing import Any

import numpy as np

from core.chart import BLUE, GREY, ORANGE, Line, chart
from forebay.review.finding import Case, Document
from forebay.review.samples import Numbers, Samples

# Points of a plot.
POINTS = 60


def markdown(document: Document, pictures: Mapping[str, str]) -> str:
    """One page. `pictures`: file names by title."""
    window = document["window"]
    load = f"{_number(window['requests'])} requests, {_number(window['rate_rps'])}/s"
    lines = [
        "# Forebay review",
        "",
        f"{window['start']} to {window['end']}: {load}",
        "",
        "Nothing to act on." if document["healthy"] else "To act on:",
        "",
    ]
    lines += _findings(document["findings"])
    lines += _questions(document)
    for title, path in pictures.items():
        lines += [f"![{title}]({path})", ""]
    lines += _latency(document["latency"])
    lines += _queueing(document["queueing"])
    lines += _plan(document["plan"])
    return "\n".join(lines).rstrip() + "\n"


def _findings(findings: list[Document]) -> list[str]:
    lines = []
    for found in findings:
        mark = "**" if found["severity"] == "problem" else ""
        follows = "" if found["because"] is None else f" (follows from {found['because']})"
        lines += [f"* {mark}{found['title']}.{mark}{follows} `{found['code']}`", f"  {found['advice']}"]
        lines += [f"  Evidence: {_inline(found['evidence'])}."]
    return [*lines, ""] if lines else []


def _questions(document: Document) -> list[str]:
    cache, router = document["questions"]["cache"], document["questions"]["router"]
    lines = ["## Do we cache predictable requests?", ""]
    lines += _table(
        ("looked up", "hit rate", "exact", "semantic", "τ", "similarity p50, p90", "saved tokens"),
        [
            (
                _number(cache["looked_up"]),
                _percent(cache["hit_rate"]),
                _percent(cache["hit_rate_exact"]),
                _percent(cache["hit_rate_semantic"]),
                _number(cache["threshold"]),
                f"{_number(cache['similarity']['p50'])}, {_number(cache['similarity']['p90'])}",
                _inline(cache["saved_tokens"]) or "-",
            )
        ],
    )
    rows = cache["repeated_misses"]
    if rows is None:
        lines += ["Which questions are asked again and miss is in the gateway's log: give it with --log.", ""]
    elif rows:
        lines += ["Asked again, answered before, and missed, by fingerprint:", ""]
        cells = [(f"`{r['fingerprint']}`", _number(r["requests"]), _number(r["missed_again"]), r["why"]) for r in rows]
        lines += _table(("fingerprint", "requests", "missed again", "why"), cells)
    return lines + _routing(router) + _decode(document["questions"]["decode"])


def _routing(router: Document) -> list[str]:
    lines = ["## Do we send easy requests to the small tier?", ""]
    return lines + _table(
        (
            "free choices",
            "to the frontier tier",
            "complexity below 0.5",
            "threshold",
            "drift",
            "easy on the frontier tier",
        ),
        [
            (
                _number(router["free_choices"]),
                _percent(router["frontier_share"]),
                _percent(router["easy_share"]),
                _number(router["threshold"]),
                _number(router["drift"]),
                _number(router["easy_on_frontier"]["requests"]),
            )
        ],
    )


def _decode(decode: Document) -> list[str]:
    lines = ["## Is decode compute-bound, or does it wait for memory?", ""]
    models = decode["models"]
    if not models:
        return [*lines, decode["why_unknown"] + ".", ""]
    rows = [
        (
            name,
            one["regime"],
            one["why"],
            _number(one["batch_mean"]),
            _percent(one["kv_usage_peak"]),
            _number(one["preemptions_per_request"]),
            _milliseconds(one["seconds_per_token"]),
        )
        for name, one in models.items()
    ]
    return lines + _table(("model", "regime", "why", "batch", "KV peak", "preemptions", "per token"), rows)


def _latency(latency: Document) -> list[str]:
    lines = ["## Latency", ""]
    rows = []
    for name in ("ttft", "tpot"):
        found = latency[name]
        before = found["before"] or {}
        rows.append(
            (
                name.upper(),
                *(_milliseconds(found[key]) for key in ("p50", "p95", "p99")),
                _milliseconds(before.get("p95")),
            )
        )
    lines += _table(("", "p50", "p95", "p99", "p95 before"), rows)
    for name in ("ttft", "tpot"):
        lines += [f"Checks of {name.upper()}, in order:", ""]
        for place, check in enumerate(latency[name]["checks"], 1):
            shown = {key: value for key, value in check.items() if key not in ("check", "verdict")}
            lines.append(f"{place}. {check['check']}: {check['verdict']} ({_inline(shown)})")
        lines.append("")
    return lines


def _queueing(queueing: Document) -> list[str]:
    lines = [f"## Little's law and utilization (ceiling {queueing['ceiling']:.0%})", ""]
    rows = [
        (
            tier,
            _number(one["rate_rps"]),
            _number(one["service_s"]),
            _number(one["inside_expected"]),
            _number(one["inside_seen"]),
            _percent(one["utilization"]),
            _percent(one["utilization_peak"]),
            _number(one["wait_p95_s"]),
            _percent(one["refused"]),
        )
        for tier, one in queueing["tiers"].items()
    ]
    head = (
        "tier",
        "λ per s",
        "time inside, s",
        "λ · T",
        "seen inside",
        "utilization",
        "peak",
        "wait p95, s",
        "refused",
    )
    return lines + _table(head, rows)


def _plan(plan: Document) -> list[str]:
    lines = ["## What the planner would change", "", f"Load: {_inline(plan['load'])}.", ""]
    rows = [(one["change"], one["why"], _number(one["cost_per_week"])) for one in plan["changes"]]
    lines += _table(("change", "why", "cost per week"), rows) if rows else ["Nothing.", ""]
    fleet = plan["fleet"]
    if fleet is not None:
        verdict = "keeps the objective" if fleet["meets_slo"] else "does not keep the objective"
        lines += [f"`forebay plan fleet` for this load {verdict}:", ""]
        rows = [
            (tier, *(_number(one[key]) if key != "bottleneck" else str(one[key]) for key in one))
            for tier, one in fleet["tiers"].items()
        ]
        lines += _table(("tier", "replicas", "GPUs", "utilization", "bottleneck", "cost per hour"), rows)
    return lines


def plots(case: Case) -> dict[str, bytes]:
    """Requests per second, hit rate and utilization over the time, as PNG by title."""
    now = case.now
    found = {"requests per second": _plot(now, "1/s", {"all": (_smooth(now.rate("forebay_requests_total")), BLUE)})}
    hits = now.rate("forebay_requests_total", lambda **one: one.get("cache", "").startswith("hit"))
    looked = hits + now.rate("forebay_requests_total", lambda **one: one.get("cache") == "miss")
    rate = np.divide(_smooth(hits), _smooth(looked), out=np.zeros_like(hits), where=_smooth(looked) > 0)
    found["hit rate"] = _plot(now, "share", {"hits": (rate, BLUE)})
    used = {}
    for tier, color in (("small", ORANGE), ("frontier", BLUE)):
        inside, limit = (_of_tier(now, f"forebay_{name}", tier) for name in ("inflight", "inflight_limit"))
        if np.isfinite(limit).any():
            used[tier] = (_smooth(np.nan_to_num(inside / limit)), color)
    if used:
        used["ceiling"] = (np.full(len(now.times), 0.7), GREY)
        found["utilization"] = _plot(now, "share", used)
    return found


def _of_tier(samples: Samples, name: str, tier: str) -> Numbers:
    return samples.gauge(name, lambda **one: one.get("tier") == tier)


def _plot(samples: Samples, unit: str, lines: Mapping[str, tuple[Numbers, tuple[int, int, int]]]) -> bytes:
    hours = (samples.times - samples.times[-1]) / 3600
    return chart("", "hours", unit, [Line(name, hours, values, color) for name, (values, color) in lines.items()])


def _smooth(values: Numbers) -> Numbers:
    width = max(1, len(values) // POINTS)
    return np.asarray(np.convolve(values, np.ones(width) / width, mode="same"), dtype=np.float64)


def page(document: Document, pictures: Mapping[str, bytes]) -> str:
    """One HTML file that needs nothing else."""
    body: list[str] = []
    table = False
    for line in markdown(document, {title: title for title in pictures}).splitlines():
        cells = [_html(cell.strip()) for cell in line.strip("|").split("|")] if line.startswith("|") else []
        rule = bool(cells) and set("".join(cells)) <= {"-"}
        if table and not cells:
            body.append("</table>")
        if cells and not rule:
            body.append("" if table else "<table>")
            body.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        elif line.startswith("!["):
            title = line[2:].split("]")[0]
            data = base64.b64encode(pictures[title]).decode()
            body.append(
                f'<h3>{html.escape(title)}</h3><img alt="{html.escape(title)}" src="data:image/png;base64,{data}">'
            )
        elif line.startswith("#"):
            level = len(line) - len(line.lstrip("#"))
            body.append(f"<h{level}>{_html(line.lstrip('# '))}</h{level}>")
        elif line and not rule:
            body.append(f"<p>{_html(line)}</p>")
        table = bool(cells)
    style = "body{font:15px sans-serif;max-width:70em;margin:2em auto}td{border:1px solid #ccc;padding:.3em .6em}"
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Forebay review</title><style>{style}</style>'
    return head + "\n".join(part for part in body if part) + "</html>\n"


def _html(text: str) -> str:
    return html.escape(text).replace("**", "").replace("`", "")


def _table(head: tuple[str, ...], rows: list[Any]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows), ""]


def _inline(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {_shown(value)}" for name, value in values.items() if value is not None)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({_inline(value)})"
    if isinstance(value, list):
        return "; ".join(_shown(one) for one in value) or "none"
    return _number(value) if isinstance(value, int | float) else str(value)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1000:.1f} ms"
