"""The beginning of the decode side's answer, kept back until it is one."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from deploy.disconnect import Message, Send
from deploy.handoff.legs import says_error

Verdict = Literal["unsure", "answer", "refused", "failed"]
_END = b"\n\n"


@dataclass(frozen=True)
class Cached:
    """Cached prompt tokens as the prefill side counted them; None where it did not say.

    The decode side calls every token cached that it did not compute.
    """

    tokens: int | None


class Opening:
    """`send` for the engine's application: judges the first content, then lets everything through.

    `refused` is a status below 500 that is no success: the client's to see. `failed` is a status of 500 and more, an
    error in a 200, or an answer that ended without anything: nothing of it is sent on, and the request can be tried
    again. `settled` is set with the verdict; `late_failure` is an error after the first content, which the client gets.
    """

    def __init__(self, send: Send, label: Callable[[Message], Message], cached: Cached) -> None:
        self.verdict: Verdict = "unsure"
        self.settled, self.late_failure, self.streams = asyncio.Event(), False, False
        self._send, self._label, self._cached = send, label, cached
        self._start: Message | None = None
        self._held: list[bytes] = []
        self._partial = b""

    async def send(self, message: Message) -> None:
        """One message of the engine's application."""
        if self.verdict == "failed":
            return
        if message["type"] == "http.response.start":
            await self._head(message)
        elif self._start is None or self.verdict == "refused":
            await self._send(message)
        elif self.streams:
            await self._events(message.get("body", b""), more=bool(message.get("more_body")))
        else:
            await self._whole(message.get("body", b""), more=bool(message.get("more_body")))

    def over(self) -> None:
        """The application has returned or raised; without a verdict that is a failure."""
        if self.verdict == "unsure":
            self._settle("failed")

    def mute(self) -> None:
        """The client has left: nothing is sent any more."""
        self.verdict = "failed"

    async def _head(self, message: Message) -> None:
        status = message["status"]
        if status >= 500:
            self._settle("failed")
            return
        self._start = self._label(message)
        headers = {name.lower(): value for name, value in message["headers"]}
        self.streams = headers.get(b"content-type", b"").startswith(b"text/event-stream")
        if status >= 300:
            self._settle("refused")
            await self._send(self._start)

    async def _whole(self, body: bytes, *, more: bool) -> None:
        self._held.append(body)
        if more:
            return
        raw = b"".join(self._held)
        answer = _object(raw)
        if answer is None or says_error(answer):
            self._settle("failed")
            return
        self._settle("answer")
        raw = self._corrected(answer) or raw
        assert self._start is not None  # noqa: S101  # the head came first
        kept = [pair for pair in self._start["headers"] if pair[0].lower() != b"content-length"]
        await self._send({**self._start, "headers": [*kept, (b"content-length", b"%d" % len(raw))]})
        await self._send({"type": "http.response.body", "body": raw})

    async def _events(self, data: bytes, *, more: bool) -> None:
        whole, end, self._partial = (self._partial + data).rpartition(_END)
        ready = [self._event(event) for event in (whole + end).split(_END) if event]
        if self.verdict == "failed":
            return
        if not more and self._partial:
            ready, self._partial = [*ready, self._partial], b""
        self._held += ready
        if self.verdict == "unsure":
            if not more:
                self._settle("failed")
            return
        if self._start is not None and (held := self._held):
            start, self._held = self._start, []
            if start.get("type"):
                await self._send(start)
                self._start = {}
            await self._send({"type": "http.response.body", "body": b"".join(held), "more_body": more})
        elif not more:
            await self._send({"type": "http.response.body", "body": b""})

    def _event(self, event: bytes) -> bytes:
        """The event as it is to be sent, after a look at it."""
        raw = event + _END
        if not event.startswith(b"data: ") or event == b"data: [DONE]":
            return raw
        if self.verdict == "answer" and b'"usage"' not in event and b'"error"' not in event:
            return raw
        data = _object(event[6:])
        if data is None:
            return raw
        if says_error(data):
            if self.verdict == "unsure":
                self._settle("failed")
            else:
                self.late_failure = True
        elif self.verdict == "unsure" and _has_content(data):
            self._settle("answer")
        changed = self._corrected(data)
        return b"data: " + changed + _END if changed else raw

    def _corrected(self, answer: dict[str, Any]) -> bytes | None:
        """The answer or event with the prefill side's count of cached tokens, or None where nothing changes."""
        usage = answer.get("usage")
        if not isinstance(usage, dict):
            return None
        details, tokens = usage.get("prompt_tokens_details"), self._cached.tokens
        if tokens is None and details is None:
            return None
        usage["prompt_tokens_details"] = None if tokens is None else {**(details or {}), "cached_tokens": tokens}
        return orjson.dumps(answer)

    def _settle(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.settled.set()


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _has_content(event: dict[str, Any]) -> bool:
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if choice.get("finish_reason") or choice.get("text"):
            return True
        if any(delta.get(name) for name in ("content", "reasoning", "reasoning_content", "tool_calls")):
            return True
    return False
