"""Server-sent events as the WHATWG HTML standard defines them (section 9.2), on bytes.

Works on any chunk boundary, also inside a character or between the two bytes of a line end; LF, CR and CRLF end a line.
"""

import re
from typing import NamedTuple

# Atomic groups: CRLF is one line end, never CR followed by LF.
_BOUNDARY = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)")
_LINE = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"
# An event that grows past this is not an event of an engine.
MAX_EVENT = 16 * 1024**2


class EventTooLarge(ValueError):  # the name says what is wrong
    """An event did not end within MAX_EVENT bytes."""


class Event(NamedTuple):
    """One block of the stream: its bytes as they came, blank line included, and its data.

    `data` is None where the block carries none (comments, other fields).
    """

    raw: bytes
    data: bytes | None


class EventSplitter:
    """Cuts a byte stream into events; the concatenated `raw` of all events and the `rest` are the stream itself."""

    __slots__ = ("_begun", "_tail")

    def __init__(self) -> None:
        self._tail = b""
        self._begun = False

    @property
    def rest(self) -> bytes:
        """The bytes after the last complete event."""
        return self._tail

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes. Raises EventTooLarge."""
        held = len(self._tail)
        if not held and self._begun and _one_line(chunk):
            return [Event(chunk, chunk[6:-2])]
        buffer = self._tail + chunk if held else chunk
        events: list[Event] = []
        start = 0
        # A boundary has at most four bytes, so up to three of them may be held already.
        look = max(0, held - 3)
        while (found := _BOUNDARY.search(buffer, look)) is not None:
            end = found.end()
            raw = buffer if start == 0 and end == len(buffer) else buffer[start:end]
            events.append(Event(raw, self._data(raw)))
            start = look = end
        self._tail = buffer[start:] if start else buffer
        if len(self._tail) > MAX_EVENT:
            raise EventTooLarge
        return events

    def _data(self, raw: bytes) -> bytes | None:
        if not self._begun:
            self._begun = True
            raw = raw.removeprefix(_BOM)
        return raw[6:-2] if _one_line(raw) else data_of(raw)


def _one_line(block: bytes) -> bool:
    """Whether these bytes are one event on one data line, as by far the most are."""
    return (
        block.startswith(b"data: ")
        and block.endswith(b"\n\n")
        and block.find(b"\n") == len(block) - 2
        and b"\r" not in block
    )


def data_of(block: bytes) -> bytes | None:
    """The data of one block: its `data` lines joined by LF, None where it has none."""
    lines: list[bytes] = []
    for line in _LINE.split(block):
        name, colon, value = line.partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" ") if colon else b"")
    return b"\n".join(lines) if lines else None
