"""Prefill and decode apart, in one process: the decode side in front of conformance engines."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson

from bench.handoff import Blocks, Fabric, HandoffEngine
from core.clock import SystemClock
from deploy.disconnect import AsgiApp, Message
from deploy.handoff import Ask, Decoder, Reply, Settings

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


class Clock(SystemClock):
    """Moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.monotonic = lambda: self.now  # type: ignore[assignment,method-assign]


class EnginePeer:
    """A prefill replica that is asked in this process."""

    def __init__(self, engine: HandoffEngine) -> None:
        self._engine, self.name = engine, engine.engine_id

    async def ask(self, ask: Ask) -> Reply:
        client = Client(CHAT if ask.kind == "chat" else TEXT, ask.body, ask.headers)
        work = asyncio.ensure_future(client.of(self._engine))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            client.leave()
            await asyncio.wait([work])
            if not client.got.parts:
                raise
        return Reply(client.got.status, client.got.json)


class Group:
    """The prefill replicas, the first that is not avoided; `never` waits until they are `back`, as Serve does for a
    replacement; `fault` is raised."""

    def __init__(self, engines: Sequence[HandoffEngine]) -> None:
        self.engines, self.never = list(engines), False
        self.asked, self._back = asyncio.Event(), asyncio.Event()
        self.fault: Exception | None = None

    def back(self) -> None:
        self.never = False
        self._back.set()

    @asynccontextmanager
    async def choose(self, ask: Ask, avoid: frozenset[str]) -> AsyncIterator[EnginePeer | None]:
        if self.fault is not None:
            raise self.fault
        if self.never:
            self.asked.set()
            await self._back.wait()
        yield next((EnginePeer(e) for e in self.engines if e.engine_id not in avoid), None)


class Numbers:
    """A meter that can be looked at."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.seconds: list[float] = []
        self.orphans: list[int] = []

    def prefilled(self, mode: str, reason: str) -> None:
        self.counts[mode, reason] += 1

    def handed_over(self, seconds: float) -> None:
        self.seconds.append(seconds)

    def orphaned(self, blocks: int) -> None:
        self.orphans.append(blocks)


@dataclass
class Answered:
    """What a client got."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The stream's events without `[DONE]`."""
        data = [event.removeprefix(b"data: ") for event in self.body.split(b"\n\n") if event]
        assert data[-1] == b"[DONE]"
        return [orjson.loads(event) for event in data[:-1]]

    @property
    def text(self) -> str:
        """What was generated."""
        if "event-stream" not in self.headers["content-type"]:
            choice = self.json["choices"][0]
            return str(choice.get("text") or choice["message"]["content"])
        choices = [choice for event in self.events for choice in event["choices"]]
        return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


class Client:
    """One request; `leave` is a closed connection."""

    def __init__(self, path: str, body: Any, headers: Mapping[str, str] | None = None, prefix: str = "") -> None:
        raw = body if isinstance(body, bytes) else orjson.dumps(body)
        given = {"content-type": "application/json", "content-length": str(len(raw)), **(headers or {})}
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": prefix + path,
            "root_path": prefix,
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }
        self._raw, self._given, self._gone = raw, False, asyncio.Event()
        self.got = Answered()

    def leave(self) -> None:
        self._gone.set()

    async def of(self, app: AsgiApp) -> Answered:
        await app(self.scope, self._receive, self._send)
        return self.got

    async def _receive(self) -> Message:
        if not self._given:
            self._given = True
            return {"type": "http.request", "body": self._raw, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            assert not self.got.status, "two heads"
            self.got.status = message["status"]
            self.got.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        else:
            self.got.parts.append(message.get("body", b""))


async def call(app: AsgiApp, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Answered:
    """One request and its answer."""
    return await Client(path, body, headers).of(app)


@dataclass
class Stack:
    """A decode side, its engine, two prefill engines, and what was counted."""

    decoder: Decoder
    decode: HandoffEngine
    prefills: list[HandoffEngine]
    group: Group
    numbers: Numbers
    clock: Clock
    fabric: Fabric

    @property
    def prefill(self) -> HandoffEngine:
        return self.prefills[0]

    async def ask(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Answered:
        return await call(self.decoder, path, body, headers)

    @property
    def idle(self) -> bool:
        """Whether nothing is left anywhere, and no rule was broken."""
        engines = [self.decode, *self.prefills]
        return not any(e.blocks.used or e.blocks.orphaned or e.violations or e.slots.running for e in engines)


@asynccontextmanager
async def stack(replicas: int = 1, decode: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[Stack]:
    """`decode` are arguments of the decode engine; the limit for a split is 32 tokens."""
    clock, fabric, numbers = Clock(), Fabric(), Numbers()

    def engine(role: Any, name: str, **given: Any) -> HandoffEngine:
        blocks = Blocks(4096, 16, 30.0, clock)
        return HandoffEngine(role, fabric, name=name, blocks=blocks, clock=clock, **given)

    prefills = [engine("prefill", f"p{number}") for number in range(replicas)]
    decoding, group = engine("decode", "d", **(decode or {})), Group(prefills)
    chosen = Settings(**{"min_prompt_tokens": 32, "slots": 8, **settings})
    decoder = Decoder(decoding, group, chosen, numbers, clock)
    try:
        yield Stack(decoder, decoding, prefills, group, numbers, clock, fabric)
    finally:
        await decoder.settled()
        await decoder.aclose()


def words(count: int, salt: str = "w") -> str:
    return " ".join(f"{salt}{number}" for number in range(count))


def chat(count: int = 100, salt: str = "w", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": words(count, salt)}], **more}


def text(count: int = 100, salt: str = "w", **more: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": words(count, salt), **more}
