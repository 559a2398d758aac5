"""Plots as SVG text: lines and points in a frame with ticks."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

WIDTH, HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 30, 44
COLORS = ("#d95f02", "#1b6ca8", "#4a4a4a", "#2a9d4e", "#8e44ad", "#b8860b")
# Points beyond this many are thinned out: nobody sees them, and the page would be large.
MOST = 1500


@dataclass(frozen=True)
class Series:
    """A line or points; `low` and `high` draw a band around it."""

    name: str
    x: Values
    y: Values
    points: bool = False
    low: Values | None = None
    high: Values | None = None


def plot(title: str, x_label: str, y_label: str, series: Sequence[Series], *, log: bool = False) -> str:
    """A figure; `log`: the vertical axis. Values that are not finite are left out."""
    shown = [one for one in (_clean(one, log=log) for one in series) if len(one.x)]
    if not shown:
        return ""
    x0, x1 = min(float(one.x.min()) for one in shown), max(float(one.x.max()) for one in shown)
    lows = [one.y if one.low is None else np.minimum(one.y, one.low) for one in shown]
    highs = [one.y if one.high is None else np.maximum(one.y, one.high) for one in shown]
    y0, y1 = min(float(one.min()) for one in lows), max(float(one.max()) for one in highs)
    y0 = max(y0, y1 / 1e4) if log else min(0.0, y0)
    x1, y1 = (x1 if x1 > x0 else x0 + 1), (y1 if y1 > y0 else y0 + 1)
    frame = _Frame(x0, x1, y0, y1, log)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}">',
        f'<text x="{_LEFT}" y="18" class="title">{html.escape(title)}</text>',
        *_axes(frame, x_label, y_label),
    ]
    for place, one in enumerate(shown):
        parts += _drawn(frame, one, COLORS[place % len(COLORS)])
    parts += _legend(shown)
    return "\n".join([*parts, "</svg>"])


@dataclass(frozen=True)
class _Frame:
    x0: float
    x1: float
    y0: float
    y1: float
    log: bool

    def x(self, value: float) -> float:
        return _LEFT + (value - self.x0) / (self.x1 - self.x0) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        if self.log:
            share = math.log(max(value, self.y0) / self.y0) / math.log(self.y1 / self.y0)
        else:
            share = (value - self.y0) / (self.y1 - self.y0)
        return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)


def _clean(one: Series, *, log: bool) -> Series:
    keep = np.isfinite(one.x) & np.isfinite(one.y)
    if log:
        keep &= one.y > 0
    rows = np.flatnonzero(keep)
    if len(rows) > MOST:
        rows = rows[np.linspace(0, len(rows) - 1, MOST).astype(int)]
    low, high = (None if band is None else band[rows] for band in (one.low, one.high))
    return Series(one.name, one.x[rows], one.y[rows], one.points, low, high)


def _axes(frame: _Frame, x_label: str, y_label: str) -> list[str]:
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    parts = [f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" class="axis"/>']
    for value in _ticks(frame.x0, frame.x1):
        x = frame.x(value)
        parts.append(f'<path d="M{x:.1f} {bottom}v4" class="axis"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" class="tick" text-anchor="middle">{value:g}</text>')
    values = _decades(frame.y0, frame.y1) if frame.log else _ticks(frame.y0, frame.y1)
    for value in values:
        y = frame.y(value)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{right}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="tick" text-anchor="end">{value:g}</text>')
    middle = (_LEFT + right) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 8}" class="label" text-anchor="middle">{html.escape(x_label)}</text>'
    )
    turned = f'transform="rotate(-90 14 {(_TOP + bottom) / 2})"'
    label = html.escape(y_label)
    parts.append(f'<text x="14" y="{(_TOP + bottom) / 2}" class="label" text-anchor="middle" {turned}>{label}</text>')
    return parts


def _drawn(frame: _Frame, one: Series, color: str) -> list[str]:
    places = [(frame.x(x), frame.y(y)) for x, y in zip(one.x.tolist(), one.y.tolist(), strict=True)]
    if one.points:
        return [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.6" fill="{color}" fill-opacity=".55"/>' for x, y in places]
    parts = []
    if one.low is not None and one.high is not None:
        above = [(frame.x(x), frame.y(y)) for x, y in zip(one.x.tolist(), one.high.tolist(), strict=True)]
        below = [(frame.x(x), frame.y(y)) for x, y in zip(one.x.tolist(), one.low.tolist(), strict=True)]
        band = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*above, *reversed(below)] if math.isfinite(y))
        parts.append(f'<polygon points="{band}" fill="{color}" fill-opacity=".15"/>')
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.8"/>')
    if len(places) <= 20:
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{color}"/>' for x, y in places]
    return parts


def _legend(series: Sequence[Series]) -> list[str]:
    parts, x = [], WIDTH - _RIGHT
    for place, one in reversed(list(enumerate(series))):
        x -= 7 * len(one.name) + 20
        color = COLORS[place % len(COLORS)]
        parts.append(f'<rect x="{x}" y="10" width="10" height="10" fill="{color}"/>')
        parts.append(f'<text x="{x + 14}" y="19" class="tick">{html.escape(one.name)}</text>')
    return parts


def _ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / 5
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw)
    first = math.ceil(low / step - 1e-9)
    return [round(place * step, 12) for place in range(first, math.floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [
        float(f"{factor}e{power}")
        for power in powers
        for factor in (1, 2, 5)
        if low <= float(f"{factor}e{power}") <= high
    ]
