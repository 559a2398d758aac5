"""The live view as a terminal shows it."""

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forebay.recent import Figures, Recent, Spread

NONE = "-"
State = Mapping[str, Any]


def screen(recent: Recent, said: str, rows: int) -> RenderableType:
    """Figures, tiers and the last `rows` decisions; `said`: how the connection is."""
    state = recent.state
    if state is None:
        return Text(said)
    return Group(
        Text(f"forebay  {said}  {time.strftime('%H:%M:%S', time.localtime(state['time']))}", style="bold"),
        _figures(recent.figures(), state),
        _tiers(state),
        *_around(state),
        _decisions(recent, rows),
    )


def _figures(figures: Figures, state: State) -> Table:
    table = Table.grid(padding=(0, 3))
    totals = state["totals"]
    shed = ", ".join(f"{reason} {count:.0f}" for reason, count in figures.shed.items())
    table.add_row("requests/s", f"{figures.rate:.1f}", "in the last minute", f"{figures.requests:.0f}")
    table.add_row("hits exact", _share(figures.exact), "semantic", _share(figures.semantic))
    table.add_row("tier small", _share(figures.small), "frontier", _share(figures.frontier))
    table.add_row("TTFT p50 / p95", _spread(figures.ttft_ms), "TPOT p50 / p95", _spread(figures.tpot_ms))
    table.add_row("refused", shed or "0", "errors", f"{figures.errors:.0f}")
    tokens, cost = sum(totals["saved_tokens"].values()), sum(totals["saved_cost"].values())
    table.add_row("saved tokens", f"{tokens:,.0f}", "saved cost", f"{cost:,.4f}")
    return table


def _tiers(state: State) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("tier", "model", "inside", "waiting", "servers"):
        table.add_column(title)
    for name, tier in state["tiers"].items():
        servers = Text()
        for server in tier["servers"]:
            well = server["health"] == "up" and server["breaker"] == "closed"
            text = f"{server['url']} {server['health']}, breaker {server['breaker']}  "
            servers.append(text, style="green" if well else "red")
        inside, waiting = (f"{tier[n]}/{tier[f'max_{n}']}" for n in ("inflight", "waiting"))
        table.add_row(name, tier["model"], inside, waiting, servers)
    return table


def _around(state: State) -> list[Text]:
    """What else is there, and what is not as it should be."""
    cache, breakers = state["cache"], state["breakers"]
    parts = [f"cache in {cache['store']['kind']}: {cache.get('exact', 0)} exact, {cache.get('semantic', 0)} semantic"]
    parts += [f"{name.replace('_', ' ')} breaker {breaker}" for name, breaker in breakers.items()]
    lines = [Text(" · ".join(parts), style="dim")]
    return lines + [Text(line, style="red") for line in state["degraded"]]


def _decisions(recent: Recent, rows: int) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("time", "tenant", "route", "cache", "tier"):
        table.add_column(title, no_wrap=True)
    for title in ("sim.", "compl.", "queue", "TTFT", "total"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("status", justify="right")
    table.add_column("reason", no_wrap=True)
    for row in list(recent.rows)[: max(rows, 1)]:
        status = row["status"]
        table.add_row(
            time.strftime("%H:%M:%S", time.localtime(row["time"])),
            row["tenant"],
            row["route"],
            row["cache"],
            row["tier"],
            *(NONE if row[name] is None else f"{row[name]:.3f}" for name in ("similarity", "complexity")),
            *(NONE if row[name] is None else f"{row[name]:.0f}" for name in ("queue_ms", "ttft_ms", "duration_ms")),
            Text(str(status), style="red" if status >= 500 else "yellow" if status >= 400 else ""),
            row["reason"] or row["route_reason"] or NONE,
        )
    return table


def _share(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f} %"


def _spread(value: Spread | None) -> str:
    return NONE if value is None else f"{value.p50:.0f} / {value.p95:.0f} ms"
