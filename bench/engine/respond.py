"""One inference request of the scripted engine, from the script to the last byte."""

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import orjson
from pydantic import JsonValue

from bench.engine.answer import DONE, Answer, answer, error_body, error_event, events, usage_event, whole
from bench.engine.metrics import Counts
from bench.engine.others import other_route
from bench.engine.record import Seen
from bench.engine.script import Script
from bench.engine.wire import Body

JSON = {"content-type": "application/json"}
SSE = {"content-type": "text/event-stream; charset=utf-8"}
PREFIXES = {"/v1/chat/completions": "chatcmpl-", "/v1/completions": "cmpl-"}


@dataclass
class Responder:
    """Answers one request as its script says, recording progress in `seen` and `counts`; `tell` reports a change.

    `running`: how many requests run at this moment: the tokens of a step.

    `respond` raises CutOff where the script breaks off.
    """

    seen: Seen
    script: Script
    body: Mapping[str, JsonValue]
    out: Body
    counts: Counts
    tell: Callable[[], None]
    running: Callable[[], int]
    _first: float = 0.0

    def __post_init__(self) -> None:
        # Drawn by the request's number: the same requests take the same times in every run. Not a secret.
        factor = math.exp(self.script.spread * random.Random(self.seen.number).gauss()) if self.script.spread else 1.0
        self._ttft, self._itl = self.script.ttft * factor, self.script.itl * factor

    async def respond(self) -> None:
        """Sends the whole reply."""
        script, path = self.script, self.seen.path
        if script.hang:
            await asyncio.get_running_loop().create_future()
        self.seen.status = script.status
        if script.status >= 400 or script.body is not None:
            await self._as_it_is()
        elif path in PREFIXES:
            await self._generate(path)
        else:
            await other_route(path, self.body, script, self.out)

    async def _as_it_is(self) -> None:
        script = self.script
        data = orjson.dumps(self._fault(script.status)) if script.body is None else script.body
        await asyncio.sleep(script.ttft)
        if script.status < 400 and self.body.get("stream") is True:
            await self.out.start(script.status, SSE, "chunked")
        else:
            await self.out.start(script.status, JSON, "length")
        await self.out.write(data)
        await self.out.end()

    async def _generate(self, path: str) -> None:
        name = PREFIXES[path] + (self.seen.headers.get("x-request-id") or f"{self.seen.number:032x}")
        said = answer("chat" if path.startswith("/v1/chat") else "completion", self.body, self.script, name)
        counts, held = self.counts, said.prompt_tokens + said.completion_tokens
        counts.read(orjson.dumps(self.body.get("messages", self.body.get("prompt"))), said.prompt_tokens)
        began = self._now()
        counts.held_tokens += held
        self.seen.prompt_tokens = said.prompt_tokens
        try:
            if self.body.get("stream") is True:
                await self._stream(said)
            else:
                await asyncio.sleep(self._ttft)
                self._first = self._now()
                await asyncio.sleep(self._itl * max(0, said.completion_tokens - 1))
                self._generated(said.completion_tokens)
                await self.out.start(self.script.status, JSON, "length")
                await self.out.write(whole(said))
                await self.out.end()
        finally:
            counts.held_tokens -= held
        arrived = self.seen.arrived
        counts.timed(began - arrived, self._first - arrived, self._now() - arrived, said.completion_tokens)
        counts.finished.update(choice.finish_reason for choice in said.choices)

    async def _stream(self, said: Answer) -> None:
        script, out = self.script, self.out
        # vLLM sends the head before the first token is there.
        await out.start(script.status, SSE, "chunked")
        await asyncio.sleep(self._ttft)
        self._first = self._now()
        for event, tokens in events(said):
            if script.cut_after_tokens is not None and tokens and self.seen.tokens >= script.cut_after_tokens:
                await out.cut()
            if script.error_event_after is not None and self.seen.tokens >= script.error_event_after:
                await out.write(error_event(self._fault(500)))
                break
            if script.end == "no_finish" and b'"finish_reason":null' not in event:
                continue
            if self._itl and tokens and self.seen.tokens:
                await asyncio.sleep(self._itl)
            if tokens or self.seen.tokens:
                self.seen.last = time.monotonic()
                self.seen.first = self.seen.first or self.seen.last
            self._generated(tokens)
            await out.write(event)
        else:
            if script.cut_after_tokens is not None:
                await out.cut()
            if said.usage_chunk and script.end != "no_finish":
                await out.write(usage_event(said))
        if script.end == "done":
            await out.write(DONE)
        await out.end()

    def _fault(self, status: int) -> JsonValue:
        return self.script.error if self.script.error is not None else error_body(status, "scripted error")

    def _generated(self, tokens: int) -> None:
        self.seen.tokens += tokens
        self.counts.generation_tokens += tokens
        if tokens:
            self.counts.observe("iteration_tokens_total", self.running())
        self.tell()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
