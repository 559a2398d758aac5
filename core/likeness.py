"""Events of a stream that differ in their text alone, told from their bytes.

By far the most events of an answer are one JSON object with one string that changes. What is around that string is
learned once, with a parser; an event that has the same bytes there, and between them nothing that could end the string,
is the same object with another text.
"""

import re

import orjson
from pydantic import JsonValue

_DATA, _END = b"data: ", b"\n\n"
# Text that stands in JSON as it is.
_PLAIN = re.compile(r'[^"\\\x00-\x1f\x7f]+')
# Any other text than the one that was seen.
_PROBE = "text of a probe"


class Likeness:
    """What events on one data line have before and behind the text that they carry. `size`: bytes of both."""

    __slots__ = ("_head", "_tail", "size")

    def __init__(self, before: bytes, behind: bytes) -> None:
        self._head, self._tail = _DATA + before, behind + _END
        self.size = len(self._head) + len(self._tail)

    def text(self, block: bytes) -> bytes | None:
        """The text of one event, not empty, as JSON writes it; None for an event that is not like the first one, is not
        the only one in the block, or whose text is escaped.
        """
        if len(block) <= self.size or not (block.startswith(self._head) and block.endswith(self._tail)):
            return None
        text = block[len(self._head) : -len(self._tail)]
        plain = b'"' not in text and b"\\" not in text and b"\n" not in text and b"\r" not in text
        return text if plain else None

    def data(self, text: bytes) -> bytes:
        """The data of an event with this text. Bytes that are not UTF-8, and controls, make it no JSON."""
        return b"%b%b%b" % (self._head[len(_DATA) :], text, self._tail[: -len(_END)])


def likeness(data: bytes, chunk: JsonValue) -> Likeness | None:
    """What events like this one have in common, `chunk` being its data parsed; None where nothing can be learned.

    Learned is from a chunk with one choice that is not finished, whose text is its `delta.content`, or `text`.
    """
    text = _text(chunk)
    if text is None or _PLAIN.fullmatch(text) is None:
        return None
    before, quoted, behind = data.partition(f'"{text}"'.encode())
    if not quoted or b"\n" in data or b"\r" in data:
        return None
    found = Likeness(before + b'"', b'"' + behind)
    # Another place than the text could have held the same bytes.
    try:
        probed = orjson.loads(found.data(_PROBE.encode()))
    except orjson.JSONDecodeError:
        return None
    return found if _text(probed) == _PROBE and _with(probed, text) == chunk else None


def _text(chunk: JsonValue) -> str | None:
    """The text of the chunk's only, unfinished choice."""
    choices = chunk.get("choices") if isinstance(chunk, dict) else None
    choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
    if not isinstance(choice, dict) or choice.get("finish_reason") is not None:
        return None
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    return text if isinstance(text, str) else None


def _with(chunk: JsonValue, text: str) -> JsonValue:
    """The chunk with another text; the chunk is one that has a text, and is changed."""
    choice = chunk["choices"][0]  # type: ignore[index,call-overload]  # see _text
    if isinstance(choice.get("delta"), dict):  # type: ignore[union-attr]  # the same
        choice["delta"]["content"] = text  # type: ignore[index,call-overload]  # the same
    else:
        choice["text"] = text  # type: ignore[index,call-overload]  # the same
    return chunk
