"""One request and what came back, read as server-sent events or as JSON."""

from array import array
from dataclasses import dataclass, field
from typing import Any

import orjson

NEVER = -1.0


@dataclass
class Exchange:
    """One request. Times are monotonic seconds, `NEVER` where it did not happen.

    `due`: when it was to be sent; `begun`: when the generator turned to it; `sent`: when it went out, the connection
    being made; `byte`: the first byte of the answer; `first`: the first event
    with content (text, reasoning or a tool call; not the role, not a comment); `last`: the last event with content or
    the finish reason; `ended`: all of the answer, or the failure. `chunks`: events with content; `gaps`: seconds
    between them. `error` is empty for a complete answer. `resent`: the connection turned out closed, it went out again.
    `lag`: the longest time that something lay in the socket before it was read.
    """

    index: int
    turn: int
    due: float
    keep_text: bool = False
    user: int = -1
    begun: float = NEVER
    sent: float = NEVER
    byte: float = NEVER
    first: float = NEVER
    last: float = NEVER
    ended: float = NEVER
    status: int = 0
    error: str = ""
    chunks: int = 0
    prompt_tokens: int = -1
    output_tokens: int = -1
    cached_tokens: int = -1
    cache: str = ""
    tier: str = ""
    resent: bool = False
    lag: float = 0.0
    gaps: "array[float]" = field(default_factory=lambda: array("f"))
    text: list[str] = field(default_factory=list)
    _rest: bytes = b""
    _data: bytes = b""
    _stream: bool = False
    _finished: bool = False
    _before: float = NEVER

    def header(self, name: bytes, value: bytes) -> None:
        """One header of the answer."""
        name = name.lower()
        if name == b"content-type":
            self._stream = value.startswith(b"text/event-stream")
        elif name == b"x-forebay-cache":
            self.cache = value.decode("latin-1")
        elif name == b"x-forebay-tier":
            self.tier = value.decode("latin-1")

    def body(self, data: bytes, at: float) -> None:
        """A piece of the answer's body, which came at `at`."""
        if self.byte == NEVER:
            self.byte = at
        if not self._stream or self.status != 200:
            self._rest += data
            return
        lines = (self._rest + data).split(b"\n") if self._rest else data.split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                piece = line[5:].strip()
                self._data = self._data + b"\n" + piece if self._data else piece
            elif self._data and line in (b"", b"\r"):
                self._event(self._data, at)
                self._data = b""

    def complete(self, at: float) -> None:
        """The body has ended as the framing says."""
        self.ended = at
        if self.status != 200:
            self.error = f"http_{self.status}"
        elif self._stream:
            if self._data:
                self._event(self._data, at)
            if not self._finished and not self.error:
                self.error = "truncated"
        else:
            self._whole(at)

    def fail(self, error: str, at: float) -> None:
        """It ended without a complete answer."""
        self.ended, self.error = at, error

    def _event(self, data: bytes, at: float) -> None:
        if data == b"[DONE]":
            self._finished = True
            return
        try:
            event: Any = orjson.loads(data)
        except orjson.JSONDecodeError:
            self.error = self.error or "not_json"
            return
        if not isinstance(event, dict):
            return
        if event.get("error") is not None:
            self.error = "stream_error"
            return
        for choice in event.get("choices") or ():
            said = self._said(choice)
            if said:
                self.chunks += 1
                if self.first == NEVER:
                    self.first = at
                else:
                    self.gaps.append(at - self._before)
                self._before = self.last = at
            if choice.get("finish_reason"):
                self._finished, self.last = True, at
        if event.get("usage"):
            self._usage(event["usage"])

    def _said(self, choice: Any) -> bool:
        delta = choice.get("delta")
        if delta is None:
            text = choice.get("text")
        else:
            text = delta.get("content")
            if not text:
                return bool(delta.get("reasoning") or delta.get("reasoning_content") or delta.get("tool_calls"))
        if text and self.keep_text:
            self.text.append(text)
        return bool(text)

    def _whole(self, at: float) -> None:
        try:
            answer: Any = orjson.loads(self._rest)
            choice = answer["choices"][0]
        except (orjson.JSONDecodeError, LookupError, TypeError):
            self.error = "not_an_answer"
            return
        self.last = at
        if isinstance(answer.get("usage"), dict):
            self._usage(answer["usage"])
        if self.keep_text:
            self.text.append(str((choice.get("message") or {}).get("content") or choice.get("text") or ""))

    def _usage(self, usage: Any) -> None:
        self.prompt_tokens = int(usage.get("prompt_tokens") or 0)
        self.output_tokens = int(usage.get("completion_tokens") or 0)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and details.get("cached_tokens") is not None:
            self.cached_tokens = int(details["cached_tokens"])
