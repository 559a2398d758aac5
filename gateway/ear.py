"""Listens to the first tokens of a small tier's answer, and judges by their log-probabilities whether to go on with it.

It sits between the engine's reply and the relay: whatever passes is the answer as the client asked for it, without the
log-probabilities and running token counts that only the gateway asked for.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, Protocol

import orjson
from pydantic import JsonValue

from core.clock import Clock
from core.config.records import Cascade
from core.errors import RequestError
from core.request import InferenceRequest
from gateway.account import Account
from gateway.envelope import Headers
from gateway.metering import DONE, Usage, usage_of
from gateway.patience import Patience
from gateway.relay import is_event_stream
from gateway.sse import Event, EventSplitter, EventTooLarge, data_of
from gateway.upstream.base import Broken, Reply

Verdict = Literal["kept", "escalated", "unknown"]
Node = dict[str, JsonValue]
# Engines write a token of probability 0 as -9999 or less: one such token must not be all that counts.
LEAST = -20.0


class Listener(Protocol):
    """What stands between an engine's reply and the relay.

    `asking` gives the request as the tier gets it. `hear` gives the reply to go on with; it raises RequestError for a
    fault of the server, and whatever it likes to give the answer up.
    """

    def asking(self) -> InferenceRequest: ...

    async def hear(self, reply: Reply, patience: Patience) -> Reply: ...


class Unsure(Exception):  # not a fault: the answer is given up for a better one
    """The small tier's own confidence is too low; nothing of its answer was passed on."""


class Ear:
    """Listens to one answer, and notes its confidence in the account, which the answer's headers show.

    `threshold()` gives the least mean log-probability that is kept, None to keep every answer. `confidence`: the mean
    over the first `tokens` tokens, None where the engine gave none. `held_s`: from the first content to the verdict.
    `usage`: tokens of the small tier so far, None where it did not say.
    """

    def __init__(
        self,
        request: InferenceRequest,
        settings: Cascade,
        clock: Clock,
        threshold: Callable[[], float | None],
        account: Account,
    ) -> None:
        self._request, self._settings, self._clock, self._threshold = request, settings, clock, threshold
        self._account = account
        self._hide_logprobs = not _asked_logprobs(request)
        self._hide_counts = not _asked_counts(request)
        self._start()

    def _start(self) -> None:
        self._said: list[float] = []
        self._ended = self._content = False
        self.verdict: Verdict | None = None
        self.confidence: float | None = None
        self.usage: Usage | None = None
        self.held_s = 0.0

    def asking(self) -> InferenceRequest:
        """The request as the small tier gets it: with log-probabilities, and token counts while it streams."""
        body: Node = dict(self._request.body)
        if self._hide_logprobs:
            body["logprobs"] = True if self._request.kind == "chat" else 0
        if self._request.stream:
            options = body.get("stream_options")
            own = dict(options) if isinstance(options, Mapping) else {}
            body["stream_options"] = {**own, "include_usage": True, "continuous_usage_stats": True}
        return replace(self._request, body=body)

    async def hear(self, reply: Reply, patience: Patience) -> Reply:
        """The reply to go on with, cleaned. Raises Unsure where its answer is not to be kept."""
        self._start()
        try:
            heard = await (self._stream if is_event_stream(reply.headers) else self._whole)(reply, patience)
        except RequestError:
            # Another replica may be asked, and its first byte is waited for anew.
            patience.begin()
            raise
        self._judge()
        if self.verdict == "escalated":
            raise Unsure
        return heard

    def _judge(self) -> None:
        said = self._said[: self._settings.tokens]
        self.confidence = self._account.confidence = sum(said) / len(said) if said else None
        least = self._threshold()
        if self.confidence is None:
            self.verdict = "unknown"
        else:
            self.verdict = "escalated" if least is not None and self.confidence < least else "kept"

    async def _whole(self, reply: Reply, patience: Patience) -> Reply:
        patience.content()
        parts: list[bytes] = []
        while chunk := await reply.read():
            patience.got(reply.came)
            parts.append(chunk)
            patience.wait()
        return Played(reply, self.clean(b"".join(parts), streamed=False))

    async def _stream(self, reply: Reply, patience: Patience) -> Reply:
        """Hold the stream back until enough was heard, it ended, or the deadline since its first content is over."""
        heard = Heard(reply, self)
        since: float | None = None
        limit, clock = self._settings.deadline, self._clock
        while not self._enough():
            left = None if since is None else since + limit - clock.monotonic()
            if left is not None and left <= 0:
                break
            try:
                async with asyncio.timeout(left):
                    if not await heard.hold():
                        break
            except TimeoutError:
                break
            if self._content and since is None:
                since = clock.monotonic()
                patience.content()
            patience.got()
            patience.wait()
        self.held_s = 0.0 if since is None else clock.monotonic() - since
        return heard

    def _enough(self) -> bool:
        wanted = self._settings.tokens
        return self._ended or (wanted is not None and len(self._said) >= wanted)

    def clean(self, raw: bytes, *, streamed: bool) -> bytes:
        """A chunk or a whole answer without what only the gateway asked for; what it says is noted."""
        value = parsed(raw)
        choices = None if value is None else value.get("choices")
        if value is None or not isinstance(choices, list):
            return raw
        self.usage = usage_of(value.get("usage")) or self.usage
        changed = False
        for choice in choices:
            if not isinstance(choice, dict):
                continue
            self._note(choice)
            if self._hide_logprobs and choice.get("logprobs") is not None:
                choice["logprobs"], changed = None, True
        # The last chunk of a stream has no choices; whether the client gets that one is the relay's business.
        if streamed and choices and self._hide_counts and "usage" in value:
            del value["usage"]
            changed = True
        return orjson.dumps(value) if changed else raw

    def _note(self, choice: Node) -> None:
        self._content = self._content or bool(_said(choice))
        self._ended = self._ended or choice.get("finish_reason") is not None
        if self.verdict is None:
            self._said += _logprobs(choice.get("logprobs"))


class Heard(Reply):
    """A streamed reply through an ear. What was held back comes first."""

    def __init__(self, reply: Reply, ear: Ear) -> None:
        self._reply, self._ear = reply, ear
        self._splitter = EventSplitter()
        self._held: list[bytes] = []
        self._over = False
        self.status, self.headers = reply.status, reply.headers

    async def hold(self) -> bool:
        """Read one piece and keep it; False at the end of the body."""
        piece = await self._reply.read()
        self._held.append(self._cleaned(piece) if piece else self._end())
        return bool(piece)

    async def read(self) -> bytes:
        """The next piece of the body."""
        held = b"".join(self._held)
        self._held.clear()
        if held:
            return held
        while piece := await self._reply.read():
            if cleaned := self._cleaned(piece):
                return cleaned
        return self._end()

    def _end(self) -> bytes:
        """What the body ends with where no blank line follows: only `[DONE]` is whole without one."""
        rest = b"" if self._over else self._splitter.rest
        self._over = True
        return rest if (data_of(rest) or b"").strip() == DONE else b""

    def _cleaned(self, piece: bytes) -> bytes:
        try:
            return b"".join(map(self._event, self._splitter.feed(piece)))
        except EventTooLarge:
            raise Broken("an event of the engine did not end") from None

    def _event(self, event: Event) -> bytes:
        if event.data is None or event.data.strip() == DONE:
            return event.raw
        cleaned = self._ear.clean(event.data, streamed=True)
        return event.raw if cleaned is event.data else b"data: " + cleaned + b"\n\n"

    async def finish(self, limit: float) -> None:
        """Read the end of the body."""
        await self._reply.finish(limit)

    def close(self) -> None:
        """Drop the connection unless the body was read to its end."""
        self._reply.close()


class Played(Reply):
    """A reply whose whole body has been read already."""

    def __init__(self, reply: Reply, body: bytes) -> None:
        self._reply, self._body = reply, body
        self.status, self.headers = reply.status, _without_length(reply.headers)

    async def read(self) -> bytes:
        """The whole body, once."""
        body, self._body = self._body, b""
        return body

    async def finish(self, limit: float) -> None:
        """Nothing is left to read."""
        await self._reply.finish(limit)

    def close(self) -> None:
        """Give the connection back."""
        self._reply.close()


def parsed(raw: bytes) -> Node | None:
    """The JSON object in some bytes; None where there is none."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _asked_logprobs(request: InferenceRequest) -> bool:
    asked = request.body.get("logprobs")
    return asked is True if request.kind == "chat" else asked is not None


def _asked_counts(request: InferenceRequest) -> bool:
    options = request.body.get("stream_options")
    return request.include_usage and isinstance(options, Mapping) and options.get("continuous_usage_stats") is True


def _said(choice: Mapping[str, JsonValue]) -> JsonValue:
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return any(value for name, value in delta.items() if name != "role")
    return choice.get("text") or choice.get("message")


def _logprobs(value: JsonValue) -> list[float]:
    """The log-probabilities of the chosen tokens, in chat's shape or in that of text completions."""
    if not isinstance(value, Mapping):
        return []
    rows = value.get("content") if "content" in value else value.get("token_logprobs")
    if not isinstance(rows, list):
        return []
    found = [row.get("logprob") if isinstance(row, dict) else row for row in rows]
    return [max(float(one), LEAST) for one in found if isinstance(one, int | float)]


def _without_length(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if name != b"content-length"]
