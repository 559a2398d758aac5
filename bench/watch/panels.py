"""Whether every panel of every dashboard shows something, asked of a real Prometheus; and its picture."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.watch.prometheus import Prometheus
from helm.dashboards import BOARDS
from helm.dashboards.grafana import HEIGHTS, ROW_HEIGHT, WIDTH
from helm.dashboards.record import Board, Panel

POINTS = 120


@dataclass(frozen=True)
class Silent:
    """A query that returned nothing, or no number. `shown`: also with the fallback that Grafana asks with."""

    board: str
    panel: str
    expr: str
    shown: bool
    why: str


def filled(expr: str, window: str) -> str:
    """The query with the dashboard's variables filled in, as Grafana does it for "All"."""
    expr = expr.replace("$__rate_interval", window)
    return re.sub(r"\$(namespace|model)", ".*", expr)


def silent(prometheus: Prometheus, window: str) -> list[Silent]:
    """Every query without a number at this moment, with and without its fallback."""
    found = []
    for board in BOARDS:
        for panel in board.panels:
            for query in panel.queries:
                for expr, shown in ((query.expr, False), (query.shown, True)):
                    why = _fault(prometheus, filled(expr, window))
                    if why is not None:
                        found.append(Silent(board.name, panel.title, query.expr, shown, why))
    return found


def _fault(prometheus: Prometheus, expr: str) -> str | None:
    try:
        result = prometheus.query(expr)
    except ValueError as error:
        return str(error)
    if not result:
        return "no data"
    if not all(math.isfinite(float(one["value"][1])) for one in result):
        return "not a number"
    return None


def draw(board: Board, prometheus: Prometheus, span: tuple[float, float], window: str, path: Path) -> None:
    """A picture of the dashboard on its own grid, as PNG: each panel's queries over the span of time.

    Needs matplotlib, which nothing else here does: `pip install matplotlib`.
    """
    import matplotlib as mpl  # noqa: PLC0415  # not installed with the project

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415  # as above

    places, height = _grid(board)
    figure = plt.figure(figsize=(16, height * 0.42), dpi=60)
    for panel, (left, top) in places:
        tall = HEIGHTS[panel.kind]
        box = (left / WIDTH + 0.03, 1 - (top + tall - 0.7) / height, panel.width / WIDTH - 0.045)
        axes = figure.add_axes((*box, (tall - 1.9) / height))
        axes.set_title(f"{panel.title}  [{panel.unit}]", fontsize=9, loc="left")
        _lines(axes, panel, prometheus, span, window)
    top = 0
    for row in board.rows:
        figure.text(0.005, 1 - (top + 0.7) / height, row.title, fontsize=10, weight="bold")
        top += ROW_HEIGHT + _tall(row.panels)
    figure.savefig(path, pil_kwargs={"optimize": True})
    plt.close(figure)


def _lines(axes: Any, panel: Panel, prometheus: Prometheus, span: tuple[float, float], window: str) -> None:
    start, end = span
    drawn = False
    for query in panel.queries:
        for one in prometheus.range(filled(query.shown, window), start, end, max(1.0, (end - start) / POINTS)):
            if not one["metric"] and "{{" in query.legend:
                # The fallback, where nothing else was there yet.
                continue
            legend = query.legend
            for label, value in one["metric"].items():
                legend = legend.replace(f"{{{{{label}}}}}", value)
            minutes = [(value[0] - start) / 60 for value in one["values"]]
            axes.plot(
                minutes,
                [float(value[1]) for value in one["values"]],
                label=re.sub(r"\{\{\w+\}\}", "", legend).strip() or "none",
                linewidth=1,
            )
            drawn = True
    low, high = axes.get_ylim()
    at = panel.limit.at
    if low <= at <= max(high, 1e-9) * 1.6:
        axes.axhline(at, color="red", linestyle="--", linewidth=0.8)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    if drawn:
        axes.legend(fontsize=6, loc="upper left", ncols=2)


def _grid(board: Board) -> tuple[list[tuple[Panel, tuple[int, int]]], int]:
    """Panels with their left upper corner, and the height of the whole."""
    found, top = [], 0
    for row in board.rows:
        top += ROW_HEIGHT
        left = tallest = 0
        for panel in row.panels:
            if left + panel.width > WIDTH:
                top, left, tallest = top + tallest, 0, 0
            found.append((panel, (left, top)))
            left, tallest = left + panel.width, max(tallest, HEIGHTS[panel.kind])
        top += tallest
    return found, top


def _tall(panels: tuple[Panel, ...]) -> int:
    height = left = tallest = 0
    for panel in panels:
        if left + panel.width > WIDTH:
            height, left, tallest = height + tallest, 0, 0
        left, tallest = left + panel.width, max(tallest, HEIGHTS[panel.kind])
    return height + tallest
