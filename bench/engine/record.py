"""What the scripted engine remembers of each request, for assertions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

import orjson
from pydantic import JsonValue

from bench.engine.connection import Incoming

State = Literal["waiting", "running", "done", "cut", "aborted"]


@dataclass
class Seen:
    """One request to a /v1 route.

    `state`: waiting for a slot, running, answered, broken off by the script, or left by the client. `tokens`: how many
    were generated. `arrived` and `ended` are the event loop's time in seconds; `first` and `last` monotonic seconds
    just before the first and the last event with a token or the finish reason was written.
    """

    number: int
    incoming: Incoming
    arrived: float
    state: State = "running"
    status: int | None = None
    tokens: int = 0
    ended: float | None = None
    prompt_tokens: int = 0
    first: float | None = None
    last: float | None = None

    @property
    def method(self) -> str:
        """HTTP method."""
        return self.incoming.method

    @property
    def path(self) -> str:
        """Path without query."""
        return self.incoming.path

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers, names in lower case."""
        return self.incoming.headers

    @property
    def body(self) -> bytes:
        """The body as it came."""
        return self.incoming.body

    @property
    def json(self) -> dict[str, JsonValue]:
        """The body read as JSON; raises where it is not."""
        return cast("dict[str, JsonValue]", orjson.loads(self.body))

    @property
    def open(self) -> bool:
        """Whether the engine is still busy with it."""
        return self.ended is None

    def summary(self) -> dict[str, JsonValue]:
        """The record as JSON, for control over HTTP."""
        return {
            "number": self.number,
            "method": self.method,
            "target": self.incoming.target,
            "headers": dict(self.headers),
            "body": self.body.decode("utf-8", "replace"),
            "state": self.state,
            "status": self.status,
            "tokens": self.tokens,
            "arrived": self.arrived,
            "ended": self.ended,
        }

    def times(self) -> dict[str, JsonValue]:
        """What a load generator must find: when the request came (monotonic seconds), its first and last token."""
        return {
            "number": self.number,
            "status": self.status,
            "state": self.state,
            "arrived": self.incoming.began,
            "first": self.first,
            "last": self.last,
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.tokens,
        }
