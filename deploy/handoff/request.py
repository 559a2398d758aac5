"""One client request on its way through the decode side."""

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson
from pydantic import JsonValue

from deploy.disconnect import Message, Send
from deploy.handoff.group import Kind, Mode


def route(scope: MutableMapping[str, Any]) -> str:
    """The path without the prefix that the application is mounted under, which servers put before it or leave out."""
    path, prefix = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(prefix) if prefix and path.startswith(f"{prefix}/") else path


# What a prefill replica gets of the client's headers: identity, session and tracing, never a key.
_FORWARDED = ("x-request-id", "x-session-id", "traceparent", "tracestate")


@dataclass
class Request:
    """`raw` is the body as it came; `tokens` the rendered prompt, once it is measured, in `measured_s` seconds."""

    scope: MutableMapping[str, Any]
    kind: Kind
    raw: bytes
    send: Send
    tokens: list[int] = field(default_factory=list)
    measured_s: float = 0.0

    @cached_property
    def body(self) -> dict[str, JsonValue] | None:
        """The body, or None where it is no JSON object: the engine says what is wrong with it."""
        try:
            value = orjson.loads(self.raw)
        except orjson.JSONDecodeError:
            return None
        return value if isinstance(value, dict) else None

    @property
    def sequences(self) -> int:
        """Sequences of the engine that the answer takes."""
        count = (self.body or {}).get("n")
        return count if isinstance(count, int) and count > 0 else 1

    @property
    def salt(self) -> str:
        """What keeps this prompt's blocks apart from those of an equal one."""
        body = self.body or {}
        return f"{body.get('model')}\0{body.get('cache_salt')}"

    @property
    def headers(self) -> Mapping[str, str]:
        """What the prefill leg carries."""
        given = {name.lower().decode("latin-1"): value.decode("latin-1") for name, value in self.scope["headers"]}
        return {name: given[name] for name in _FORWARDED if name in given}

    async def refuse(self, status: int, message: str, code: str, mode: Mode | None = None) -> None:
        """Answer with an error."""
        kind = "invalid_request_error" if status < 500 else "server_error"
        param = code if status < 500 else None
        await self.answer(
            status, {"error": {"message": message, "type": kind, "param": param, "code": code}}, mode, code
        )

    async def answer(self, status: int, body: Mapping[str, JsonValue], mode: Mode | None, reason: str) -> None:
        """Answer with a JSON document."""
        raw = orjson.dumps(body)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(raw))]
        if status == 503:
            headers.append((b"retry-after", b"1"))
        start: Message = {"type": "http.response.start", "status": status, "headers": headers}
        await self.send(label(mode, reason)(start) if mode else start)
        await self.send({"type": "http.response.body", "body": raw})


def label(mode: Mode, reason: str) -> Callable[[Message], Message]:
    """Adds how the prompt was prefilled to the head of an answer."""
    said = [(b"x-forebay-prefill", mode.encode()), (b"x-forebay-prefill-reason", reason.encode())]
    return lambda start: {**start, "headers": [*start["headers"], *said]}


def labelled(send: Send, mode: Mode, reason: str) -> Send:
    """`send` with that label."""
    mark = label(mode, reason)

    async def marked(message: Message) -> None:
        await send(mark(message) if message["type"] == "http.response.start" else message)

    return marked
