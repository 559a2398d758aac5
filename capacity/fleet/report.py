"""The plan as Markdown and as one HTML file, with a plot of latency against rate per tier."""

import base64
import html
from dataclasses import replace
from typing import Any

import numpy as np

from capacity.fleet.ask import FleetAsk
from capacity.fleet.sizing import simulate
from capacity.fleet.tier import TierPlan
from core.chart import BLUE, GREY, ORANGE, Line, chart

_POINTS = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 0.97)


def picture(plan: TierPlan, ask: FleetAsk) -> bytes | None:
    """Time to the first token and per token against the rate of one replica, as PNG; None without a chosen engine."""
    if plan.chosen is None:
        return None
    own = replace(ask, demand=plan.demand)
    rates = [share * plan.chosen.capacity.saturation for share in _POINTS]
    results = [simulate(plan.chosen.setting, own, rate) for rate in rates]
    percent = 100 * ask.objective.percentile

    def line(name: str, metric: str, at: float, color: tuple[int, int, int]) -> Line:
        values = [result.percentile(metric, at).value if len(result.values(metric)) else 0.0 for result in results]
        return Line(name, np.array(rates), np.array(values), color)

    lines = [
        line(f"ttft p{percent:g}", "ttft", percent, ORANGE),
        line("ttft p50", "ttft", 50, GREY),
        line(f"tpot p{percent:g}", "tpot", percent, BLUE),
    ]
    return chart(f"{plan.ask.name}: one replica", "requests/s", "seconds", lines)


def markdown(document: dict[str, Any], pictures: dict[str, str]) -> str:
    """The plan for people. `pictures`: a path or data URL per tier."""
    verdict = "keeps the objective" if document["meets_slo"] else "does not keep the objective"
    load = f"{document['rate_rps']:.4g} requests/s, cache hit rate {document['hit_rate']:.0%}, "
    load += f"frontier share {document['frontier_share']:.0%} of the rest"
    heads = ("tier", "model", "replicas", "GPUs", "batch", "token budget", "chunked", "utilization", "TTFT", "TPOT")
    lines = [
        "# Fleet plan",
        "",
        f"{load}. The plan {verdict} ({_objective(document['objective'])}).",
        "",
        "| " + " | ".join((*heads, "cost per hour")) + " |",
        "|" + "---|" * (len(heads) + 1),
    ]
    lines += [_row(name, tier) for name, tier in document["tiers"].items() if "gpus" in tier]
    for name, tier in document["tiers"].items():
        lines += ["", f"## {name}", ""]
        if "gpus" not in tier:
            lines.append(tier["bottleneck"])
            continue
        lines.append(f"Bottleneck: {tier['bottleneck_text']}. Step times: {tier['source']}.")
        if tier["disaggregation"] is not None:
            word = "pays" if tier["disaggregation"]["pays"] else "does not pay"
            lines.append(f"Prefill apart {word}: {tier['disaggregation']['why']}.")
        if tier["nearest"] is not None:
            alone = {name: _milliseconds(tier["nearest"][f"{name}_s"]) for name in ("ttft", "tpot", "e2e")}
            lines.append(
                f"Nearest, one request at a time: TTFT {alone['ttft']}, TPOT {alone['tpot']}, E2E {alone['e2e']}."
            )
        lines += ["", "| change | replicas | GPUs saved |", "|---|---|---|"] if tier["fixes"] else []
        lines += [f"| {fix['text']} | {fix['replicas']} | {fix['gpus_saved']} |" for fix in tier["fixes"]]
        if name in pictures:
            lines += ["", f"![{name}]({pictures[name]})"]
    if document["warnings"]:
        lines += ["", "## Limits of this plan", ""] + [f"* {warning}" for warning in document["warnings"]]
    return "\n".join(lines) + "\n"


def page(document: dict[str, Any], pictures: dict[str, bytes]) -> str:
    """One HTML file that needs nothing else."""
    body: list[str] = []
    table = False
    for line in markdown(document, {name: name for name in pictures}).splitlines():
        cells = [html.escape(cell.strip()) for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if table and not cells:
            body.append("</table>")
        if cells and set("".join(cells)) <= {"-"}:
            continue
        if cells:
            body.append("" if table else "<table>")
            body.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        elif line.startswith("!["):
            name = line[2:].split("]")[0]
            data = base64.b64encode(pictures[name]).decode()
            body.append(f'<img alt="{html.escape(name)}" src="data:image/png;base64,{data}">')
        elif line.startswith("#"):
            level = len(line) - len(line.lstrip("#"))
            body.append(f"<h{level}>{html.escape(line.lstrip('# '))}</h{level}>")
        elif line:
            body.append(f"<p>{html.escape(line.removeprefix('* '))}</p>")
        table = bool(cells)
    style = "body{font:15px sans-serif;max-width:70em;margin:2em auto}td{border:1px solid #ccc;padding:.3em .6em}"
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Fleet plan</title><style>{style}</style>'
    return head + "\n".join(part for part in body if part) + "</html>\n"


def _row(name: str, tier: dict[str, Any]) -> str:
    found = tier["percentiles"]
    cells = [
        name,
        tier["model"],
        _replicas(tier),
        _or_dash(tier["gpus"]),
        str(tier["max_num_seqs"]),
        str(tier["max_num_batched_tokens"]),
        "yes" if tier["chunked_prefill"] else "no",
        "-" if tier["utilization"] is None else f"{tier['utilization']:.0%}",
        _milliseconds(found.get("ttft_s")),
        _milliseconds(found.get("tpot_s")),
        "-" if tier["cost_per_hour"] is None else f"{tier['cost_per_hour']:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def _replicas(tier: dict[str, Any]) -> str:
    low, high = tier["replicas_interval"]
    if tier["replicas"] is None:
        return "none is enough"
    return str(tier["replicas"]) if low == high else f"{tier['replicas']} ({low} to {high or 'none is enough'})"


def _objective(objective: dict[str, Any]) -> str:
    targets = [
        f"{name[:-2].upper()} {objective[name]:g} s" for name in ("ttft_s", "tpot_s", "e2e_s") if objective[name]
    ]
    return f"{', '.join(targets)} at p{100 * objective['percentile']:g}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1000:.0f} ms"


def _or_dash(value: Any) -> str:
    return "-" if value is None else str(value)
