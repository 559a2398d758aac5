"""What an answer says about itself: tokens, whether it is complete, whether it is an error. Only reads."""

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple, Protocol

import orjson
from pydantic import JsonValue

from gateway.envelope import is_error

DONE = b"[DONE]"


class Usage(NamedTuple):
    """Tokens of one answer; `cached` are prompt tokens that the engine's prefix cache held."""

    input: int
    output: int
    cached: int


class Look(Enum):
    """What one event of a stream is."""

    QUIET = auto()  # nothing that a reader would call content: the role chunk, a comment
    CONTENT = auto()
    USAGE = auto()  # tokens and no choices
    ERROR = auto()
    DONE = auto()


class Collector(Protocol):
    """Takes every event of a stream, to make the whole answer of it: parsed, or as data where it is not JSON."""

    def take(self, chunk: JsonValue, size: int) -> None: ...

    def feed(self, event_data: bytes) -> None: ...


class StreamMeter:
    """Reads the events of one chat or text completion stream.

    `usage`: tokens as far as the engine said; `finished`: every choice that began has its finish reason; `done`: the
    stream ended with `[DONE]`; `fault`: the error object that came as an event.
    """

    __slots__ = ("_collector", "_open", "_seen", "done", "fault", "usage")

    def __init__(self, collector: Collector | None = None) -> None:
        self._collector = collector
        self._open: set[int] = set()
        self._seen = False
        self.usage: Usage | None = None
        self.done = False
        self.fault: Mapping[str, JsonValue] | None = None

    @property
    def finished(self) -> bool:
        """Whether every choice is complete."""
        return self._seen and not self._open

    def look(self, data: bytes | None) -> Look:
        """What the event with this data is."""
        if data is None:
            return Look.QUIET
        collector = self._collector
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            if collector is not None:
                collector.feed(data)
            if data.strip() == DONE:
                self.done = True
                return Look.DONE
            # Not ours to judge; the client gets it as it is.
            return Look.CONTENT
        if collector is not None:
            collector.take(chunk, len(data))
        if not isinstance(chunk, dict):
            return Look.CONTENT
        choices = chunk.get("choices")
        usage = chunk.get("usage")
        if usage is not None:
            self.usage = usage_of(usage) or self.usage
        if choices:
            return self._choices(choices)
        if is_error(chunk):
            self.fault = chunk
            return Look.ERROR
        return Look.USAGE if usage is not None else Look.QUIET

    def _choices(self, choices: JsonValue) -> Look:
        look = Look.QUIET
        if not isinstance(choices, list):
            return Look.CONTENT
        for choice in choices:
            if not isinstance(choice, dict):
                return Look.CONTENT
            number = choice.get("index")
            index = number if isinstance(number, int) else 0
            self._seen = True
            if choice.get("finish_reason") is not None:
                self._open.discard(index)
                look = Look.CONTENT
            else:
                self._open.add(index)
                if look is Look.QUIET and _says_something(choice):
                    look = Look.CONTENT
        return look


def _says_something(choice: Mapping[str, JsonValue]) -> bool:
    delta = choice.get("delta")
    if isinstance(delta, dict):
        if delta.get("content"):
            return True
        return any(value for name, value in delta.items() if name != "role")
    return bool(choice.get("text"))


def usage_of(value: JsonValue) -> Usage | None:
    """The tokens in a `usage` object of chat, completions, responses or messages; None where there are none."""
    if not isinstance(value, dict):
        return None
    read = _count(value, "prompt_tokens", "input_tokens")
    written = _count(value, "completion_tokens", "output_tokens")
    if read is None and written is None:
        return None
    details = value.get("prompt_tokens_details") or value.get("input_tokens_details")
    cached = _count(details, "cached_tokens") if isinstance(details, dict) else None
    return Usage(read or 0, written or 0, cached or 0)


def _count(value: Mapping[str, JsonValue], *names: str) -> int | None:
    for name in names:
        found = value.get(name)
        if isinstance(found, int) and not isinstance(found, bool) and found >= 0:
            return found
    return None
