"""A span, and what a request carries of its trace."""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue

Kind = Literal["internal", "server", "client"]
Attribute = str | bool | int | float | list[str]

# W3C Trace Context, level 1; what later versions add after these fields is left out.
_PARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_ZEROS = (bytes(16), bytes(8))
# What a request may set, by its name in the body.
_SETTINGS = {
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
}


@dataclass(frozen=True, slots=True)
class Span:
    """One span. Times in nanoseconds since 1970; `error`: what went wrong, None where nothing did."""

    name: str
    kind: Kind
    trace_id: bytes
    span_id: bytes
    parent_id: bytes | None
    start: int
    end: int
    attributes: Mapping[str, Attribute]
    error: str | None = None


@dataclass(slots=True)
class Trace:
    """A request's place in its trace.

    `span_id`: of the request itself; `call_id`: of its call to a tier, which the engine gets as its parent;
    `parent_id`: of whoever sent the request. `settings` and `answer`: attributes of the call.
    """

    trace_id: bytes
    span_id: bytes
    call_id: bytes
    parent_id: bytes | None
    sampled: bool
    operation: str | None = None
    settings: dict[str, Attribute] = field(default_factory=dict)
    answer: dict[str, Attribute] = field(default_factory=dict)

    @property
    def traceparent(self) -> bytes:
        """The header for the engine: its spans are children of the call."""
        return b"00-%b-%b-0%d" % (self.trace_id.hex().encode(), self.call_id.hex().encode(), self.sampled)

    def asks(self, operation: str, body: Mapping[str, JsonValue]) -> None:
        """Note what is asked for, never the prompt."""
        self.operation = operation
        for name, attribute in _SETTINGS.items():
            value = body.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and attribute not in self.settings:
                self.settings[attribute] = value
        if isinstance(choices := body.get("n"), int) and choices != 1:
            self.settings["gen_ai.request.choice.count"] = choices

    def answers(self, body: Mapping[str, JsonValue]) -> None:
        """Note who answered and how the answer ended, never its text."""
        for name, attribute in (("id", "gen_ai.response.id"), ("model", "gen_ai.response.model")):
            if isinstance(value := body.get(name), str):
                self.answer[attribute] = value
        choices = body.get("choices")
        if isinstance(choices, list):
            reasons = [choice.get("finish_reason") for choice in choices if isinstance(choice, dict)]
            self.answer["gen_ai.response.finish_reasons"] = [str(reason) for reason in reasons if reason]


def parent_in(header: bytes | None) -> tuple[bytes, bytes, bool] | None:
    """Trace id, span id and whether it is sampled, of a `traceparent` header; None where it is not one."""
    match = None if header is None else _PARENT.fullmatch(header.strip())
    if match is None or match[1] == b"ff" or (match[1] == b"00" and match[5]):
        return None
    trace_id, span_id = bytes.fromhex(match[2].decode()), bytes.fromhex(match[3].decode())
    if trace_id in _ZEROS or span_id in _ZEROS:
        return None
    return trace_id, span_id, bool(int(match[4], 16) & 1)


def fresh_id(size: int) -> bytes:
    """A random id of so many bytes, never all zeros."""
    return (random.getrandbits(8 * size) or 1).to_bytes(size, "big")
