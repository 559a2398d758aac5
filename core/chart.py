"""Line charts as PNG, drawn without a plotting library: a report's curve needs two axes and a few lines."""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Numbers = NDArray[np.float64]
Color = tuple[int, int, int]

WIDTH, HEIGHT = 760, 520
LEFT, RIGHT, TOP, BOTTOM = 90, 30, 50, 60
BLUE, GREY, ORANGE, GREEN = (31, 99, 181), (120, 120, 120), (214, 120, 20), (40, 140, 80)
_BLACK, _LIGHT, _WHITE = (20, 20, 20), (226, 226, 226), (255, 255, 255)

# Five rows of three pixels for each sign, top row first, a row as an octal digit.
_GLYPHS = dict(
    zip(
        "abcdefghijklmnopqrstuvwxyz0123456789.,-%()/:",
        [
            "25755",
            "65656",
            "34443",
            "65556",
            "74647",
            "74644",
            "34553",
            "55755",
            "72227",
            "11152",
            "55655",
            "44447",
            "57755",
            "65555",
            "25552",
            "65644",
            "25563",
            "65655",
            "34216",
            "72222",
            "55557",
            "55552",
            "55775",
            "55255",
            "55222",
            "71247",
            "75557",
            "26227",
            "71747",
            "71717",
            "55711",
            "74717",
            "74757",
            "71222",
            "75757",
            "75717",
            "00002",
            "00024",
            "00700",
            "51245",
            "24442",
            "21112",
            "11244",
            "02020",
        ],
        strict=True,
    )
)
_SCALE = 2


@dataclass(frozen=True)
class Line:
    """One curve: points (x ascending), and where given the band around it."""

    name: str
    x: Numbers
    y: Numbers
    color: Color = BLUE
    low: Numbers | None = None
    high: Numbers | None = None


def chart(title: str, x_label: str, y_label: str, lines: Sequence[Line]) -> bytes:
    """The PNG file. Raises ValueError where there is nothing to draw."""
    if not lines:
        raise ValueError("a chart needs a line")
    canvas = np.full((HEIGHT, WIDTH, 3), 255, dtype=np.uint8)
    frame = _Frame.around(lines)
    for line in lines:
        if line.low is not None and line.high is not None:
            _band(canvas, frame, line)
    _axes(canvas, frame)
    for line in lines:
        _curve(canvas, frame, line)
    _text(canvas, title, LEFT, 16)
    _text(canvas, x_label, (LEFT + WIDTH - RIGHT) // 2 - 4 * len(x_label), HEIGHT - 22)
    _text(canvas, y_label, 8, TOP - 16)
    for place, line in enumerate(lines):
        y = HEIGHT - BOTTOM - 20 - 16 * (len(lines) - place)
        canvas[y + 4 : y + 7, WIDTH - RIGHT - 200 : WIDTH - RIGHT - 180] = line.color
        _text(canvas, line.name, WIDTH - RIGHT - 172, y)
    return _png(canvas)


@dataclass(frozen=True)
class _Frame:
    x0: float
    x1: float
    y0: float
    y1: float

    @classmethod
    def around(cls, lines: Sequence[Line]) -> "_Frame":
        xs = np.concatenate([line.x for line in lines])
        ys = np.concatenate([part for line in lines for part in (line.y, line.low, line.high) if part is not None])
        margin = max(float(ys.max() - ys.min()), 1e-9) * 0.05
        return cls(float(xs.min()), float(xs.max()), float(ys.min()) - margin, float(ys.max()) + margin)

    def column(self, x: Numbers) -> Numbers:
        return LEFT + (x - self.x0) / max(self.x1 - self.x0, 1e-9) * (WIDTH - LEFT - RIGHT)

    def row(self, y: Numbers) -> Numbers:
        return HEIGHT - BOTTOM - (y - self.y0) / max(self.y1 - self.y0, 1e-9) * (HEIGHT - TOP - BOTTOM)


def _axes(canvas: Pixels, frame: _Frame) -> None:
    for part in range(6):
        x, y = frame.x0 + (frame.x1 - frame.x0) * part / 5, frame.y0 + (frame.y1 - frame.y0) * part / 5
        column, row = int(frame.column(np.array(x))), int(frame.row(np.array(y)))
        canvas[TOP : HEIGHT - BOTTOM, min(column, WIDTH - RIGHT)] = _LIGHT
        canvas[min(row, HEIGHT - BOTTOM), LEFT : WIDTH - RIGHT] = _LIGHT
        _text(canvas, f"{x:.2f}", column - 14, HEIGHT - BOTTOM + 8)
        _text(canvas, f"{y:.3f}", LEFT - 50, row - 5)
    canvas[TOP : HEIGHT - BOTTOM, LEFT] = _BLACK
    canvas[HEIGHT - BOTTOM, LEFT : WIDTH - RIGHT] = _BLACK


def _band(canvas: Pixels, frame: _Frame, line: Line) -> None:
    assert line.low is not None  # noqa: S101  # the caller looked
    assert line.high is not None  # noqa: S101  # as above
    columns = np.arange(LEFT, WIDTH - RIGHT)
    places = frame.column(line.x)
    upper = frame.row(np.interp(columns, places, line.high)).astype(int)
    lower = frame.row(np.interp(columns, places, line.low)).astype(int)
    tint = [(255 * 4 + part) // 5 for part in line.color]
    for column, first, last in zip(columns, upper, lower, strict=True):
        canvas[max(first, TOP) : last + 1, column] = tint


def _curve(canvas: Pixels, frame: _Frame, line: Line) -> None:
    columns = np.arange(LEFT, WIDTH - RIGHT)
    rows = frame.row(np.interp(columns, frame.column(line.x), line.y)).astype(int)
    before = rows[0]
    for column, row in zip(columns, rows, strict=True):
        first, last = min(before, row), max(before, row)
        canvas[max(first, TOP) : last + 2, column] = line.color
        before = row


def _text(canvas: Pixels, text: str, x: int, y: int) -> None:
    for place, sign in enumerate(text.lower()):
        glyph = _GLYPHS.get(sign, "00000")
        for row, bits in enumerate(glyph):
            for column in range(3):
                if int(bits) >> (2 - column) & 1:
                    left, top = x + (place * 4 + column) * _SCALE, y + row * _SCALE
                    canvas[top : top + _SCALE, max(left, 0) : left + _SCALE] = _BLACK


def _png(canvas: Pixels) -> bytes:
    height, width, _ = canvas.shape
    # Each row begins with its filter: none.
    raw = np.concatenate([np.zeros((height, 1), dtype=np.uint8), canvas.reshape(height, -1)], axis=1).tobytes()

    def part(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(raw, 9)) + part(b"IEND", b"")
