"""A chart is a PNG file with its lines on it."""

import struct
import zlib

import numpy as np
import pytest

from core.chart import BLUE, GREY, HEIGHT, WIDTH, Line, chart


def pixels(png: bytes) -> np.ndarray:
    """The picture of a PNG as this module writes it."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, parts = 8, {}
    while at < len(png):
        [size] = struct.unpack(">I", png[at : at + 4])
        kind, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        assert struct.unpack(">I", png[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + body)
        parts[kind] = body
        at += 12 + size
    width, height = struct.unpack(">II", parts[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), dtype=np.uint8).reshape(height, 1 + 3 * width)
    assert (rows[:, 0] == 0).all()
    assert list(parts) == [b"IHDR", b"IDAT", b"IEND"]
    return rows[:, 1:].reshape(height, width, 3)


def test_lines_and_their_band_are_drawn() -> None:
    x = np.linspace(0, 1, 11)
    low = Line("random", x, 0.2 + 0.5 * x, GREY)
    high = Line("own, 95%", x, 0.2 + 0.5 * np.sqrt(x), BLUE, 0.2 + 0.45 * np.sqrt(x), 0.2 + 0.55 * np.sqrt(x))
    found = pixels(chart("quality", "share", "mean", [low, high]))
    assert found.shape == (HEIGHT, WIDTH, 3)
    middle = found[:, WIDTH // 2]
    own, other = (np.flatnonzero((middle == color).all(axis=1)) for color in (BLUE, GREY))
    # Rows count from the top: the better line is above.
    assert own.min() < other.min()
    tinted = np.flatnonzero((middle == [(255 * 4 + part) // 5 for part in BLUE]).all(axis=1))
    assert tinted.min() < own.min() <= own.max() <= tinted.max()


def test_one_flat_line_and_any_text_are_no_trouble() -> None:
    flat = Line("ä 中 {}", np.array([0.0, 1.0]), np.array([0.5, 0.5]))
    assert pixels(chart("Ärger: 100%", "x", "y", [flat])).shape == (HEIGHT, WIDTH, 3)


def test_nothing_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="needs a line"):
        chart("t", "x", "y", [])
