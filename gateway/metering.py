"""What an answer says about itself: tokens, whether it is complete, whether it is an error. Only reads."""

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple, Protocol

import orjson
from pydantic import JsonValue

from core.likeness import Likeness, likeness
from gateway.envelope import is_error

DONE = b"[DONE]"
# Events of one stream from which a likeness is learned, at most: where several choices alternate none would last.
LESSONS = 4


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
    """Takes every event of a stream, to make the whole answer of it: parsed, as data where it is not JSON, or as the
    text by which it differs from others.
    """

    def take(self, chunk: JsonValue, size: int) -> None: ...

    def follow(self, like: Likeness, text: bytes) -> None: ...

    def feed(self, event_data: bytes) -> None: ...


class StreamMeter:
    """Reads the events of one chat or text completion stream.

    `usage`: tokens as far as the engine said; `finished`: every choice that began has its finish reason; `done`: the
    stream ended with `[DONE]`; `fault`: the error object that came as an event.
    """

    __slots__ = ("_collector", "_lessons", "_like", "_open", "_seen", "done", "fault", "usage")

    def __init__(self, collector: Collector | None = None) -> None:
        self._collector = collector
        self._open: set[int] = set()
        self._seen = False
        self._like: Likeness | None = None
        self._lessons = LESSONS
        self.usage: Usage | None = None
        self.done = False
        self.fault: Mapping[str, JsonValue] | None = None

    @property
    def finished(self) -> bool:
        """Whether every choice is complete."""
        return self._seen and not self._open

    def follows(self, block: bytes) -> bool:
        """Whether these bytes are one event that differs from an earlier one in its text alone, which is content.

        Such an event is taken; every other one is for `look`.
        """
        like = self._like
        text = None if like is None else like.text(block)
        if like is None or text is None:
            return False
        if self._collector is not None:
            self._collector.follow(like, text)
        return True

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
            unfinished = len(self._open)
            look = self._choices(choices)
            if len(self._open) < unfinished:
                # What comes after the end of a choice would begin it again.
                self._like = None
            elif look is Look.CONTENT and self._lessons > 0:
                self._learn(data, chunk)
            return look
        if is_error(chunk):
            self.fault = chunk
            return Look.ERROR
        return Look.USAGE if usage is not None else Look.QUIET

    def _learn(self, data: bytes, chunk: JsonValue) -> None:
        """Expect more like this one; where nothing can be learned of it, an earlier one stays what is expected."""
        found = likeness(data, chunk)
        if found is not None:
            self._like = found
            self._lessons -= 1

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
