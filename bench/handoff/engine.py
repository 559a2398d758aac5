"""One engine of a tier whose prefill and decode are apart, as an ASGI application that enforces the rules."""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import orjson
from pydantic import JsonValue

from bench.engine.answer import DONE, Answer, answer, error_body, events, usage_event, whole
from bench.engine.script import Script
from bench.engine.slots import Slots
from bench.handoff.kv import Blocks, KvLost
from bench.handoff.rules import Json, Kind, Refused, check, check_asked, render
from core.clock import Clock, SystemClock

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Phase = Literal["rendering", "waiting", "computing", "generating", "done", "aborted", "failed"]
KINDS: dict[str, Kind] = {"/v1/chat/completions": "chat", "/v1/completions": "completion"}
_JSON = [(b"content-type", b"application/json")]
_SSE = [(b"content-type", b"text/event-stream; charset=utf-8")]


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request: a status instead of an answer, an exception, no answer at all, or a 200 whose
    finish reason is `error`, without content."""

    kind: Literal["status", "raise", "hang", "finish_error"] = "status"
    status: int = 500


@dataclass
class Seen:
    """One request for generation."""

    path: str
    headers: dict[str, str]
    body: dict[str, JsonValue]
    phase: Phase = "rendering"
    generated: int = 0


@dataclass
class Fabric:
    """The network between engines: which engine answers under which id."""

    engines: dict[str, "HandoffEngine"] = field(default_factory=dict)


class HandoffEngine:
    """An ASGI application with vLLM's two completions and `/tokenize`; other routes are echoed.

    `connector` False is an engine that was started without a KV connector; `reports_cached` False one without
    `--enable-prompt-tokens-details`. `faults` are used up first, one per request. Phases named in `held` wait until
    `let_go`. `violations` are broken rules of the hand-off, in words; `sources` counts prompt tokens by where their KV
    came from (computed, external, cached).
    """

    def __init__(
        self,
        role: Literal["prefill", "decode"],
        fabric: Fabric,
        *,
        name: str,
        blocks: Blocks | None = None,
        max_num_seqs: int = 8,
        connector: bool = True,
        reports_cached: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.role, self.name, self._fabric, self._clock = role, name, fabric, clock or SystemClock()
        self.connector, self.reports_cached, self.max_model_len = connector, reports_cached, 4096
        self.blocks = blocks or Blocks(4096, 16, 30.0, self._clock)
        self.requests: list[Seen] = []
        self.faults: deque[Fault] = deque()
        self.held: set[Phase] = set()
        self.violations: list[str] = []
        self.sources: Counter[str] = Counter()
        self.slots = Slots(max_num_seqs, self._tell)
        self._life, self._go = 0, asyncio.Event()
        self._known: dict[str, str] = {}
        self._cache: set[tuple[int, ...]] = set()
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        fabric.engines[self.engine_id] = self

    @property
    def engine_id(self) -> str:
        """Under which others reach it; another one after a restart."""
        return f"{self.name}-{self._life}"

    def restart(self) -> None:
        """The process died and came back: its blocks are lost, and those that knew it hold stale addresses."""
        self._fabric.engines.pop(self.engine_id)
        self._life += 1
        self._fabric.engines[self.engine_id] = self
        self.blocks.drop_all()
        self._cache.clear()

    def forget_peers(self) -> None:
        """Addresses of others are looked up anew, as after a fresh handshake."""
        self._known.clear()

    def let_go(self) -> None:
        """Requests that are held go on."""
        self.held.clear()
        self._go.set()
        self._go = asyncio.Event()

    async def until(self, holds: Callable[[], bool], within: float = 5.0) -> None:
        """Waits until a condition on this engine holds. Raises TimeoutError after `within` seconds."""
        if holds():
            return
        waiter = (holds, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(within):
                await waiter[1]
        finally:
            self._waiters.remove(waiter)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """One request. Its cancellation is a client that left."""
        path, raw = str(scope["path"]).removeprefix(scope.get("root_path", "")), b""
        while True:
            message = await receive()
            raw += message.get("body", b"")
            if not message.get("more_body"):
                break
        try:
            body = orjson.loads(raw) if raw else {}
        except orjson.JSONDecodeError as error:
            await _send(send, 400, error_body(400, f"JSON decode error: {error}"))
            return
        if path == "/tokenize":
            if isinstance(body.get("prompt"), list):
                await _send(send, 400, error_body(400, "prompt: Input should be a valid string"))
                return
            tokens = render("chat" if "messages" in body else "completion", body)
            counted: Json = {"count": len(tokens), "max_model_len": self.max_model_len, "tokens": list(tokens)}
            await _send(send, 200, dict(counted))
        elif path not in KINDS:
            await _send(send, 200, {"object": "echo", "path": path})
        else:
            headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
            seen = Seen(path, headers, body)
            self.requests.append(seen)
            self._tell()
            await _until_left(self._request(seen, send), receive)

    async def _request(self, seen: Seen, send: Send) -> None:
        try:
            await self._generate(KINDS[seen.path], seen, send)
            self._phase(seen, "done")
        except Refused as refused:
            self._phase(seen, "failed")
            await _send(send, refused.status, error_body(refused.status, str(refused)))
        except asyncio.CancelledError:
            self._phase(seen, "aborted")
            raise

    async def _generate(self, kind: Kind, seen: Seen, send: Send) -> None:
        fault = self.faults.popleft() if self.faults else None
        if fault is not None and fault.kind == "status":
            raise Refused(fault.status, "scripted fault")
        if fault is not None and fault.kind == "raise":
            raise RuntimeError("secret of the engine's inside")
        if fault is not None and fault.kind == "hang":
            await asyncio.get_running_loop().create_future()
        await self._hold(seen, "rendering")
        body, tokens = seen.body, render(kind, seen.body)
        check(kind, body, len(tokens), self.max_model_len)
        params = cast("dict[str, JsonValue] | None", body.get("kv_transfer_params")) if self.connector else None
        if self.role == "prefill" and (wrong := check_asked(body)):
            self.violations.append(wrong)
        try:
            self._phase(seen, "waiting")
            async with self.slots.hold():
                await self._scheduled(kind, seen, tokens, params, send, lost=fault is not None)
        except asyncio.CancelledError:
            if seen.phase == "waiting" and params and params.get("do_remote_prefill"):
                # Aborted before it was scheduled: vLLM tells the prefill side that nobody will read.
                peer = self._fabric.engines.get(str(params["remote_engine_id"]))
                if peer is not None:
                    peer.blocks.release(str(params["remote_request_id"]))
            raise

    async def _scheduled(
        self, kind: Kind, seen: Seen, tokens: tuple[int, ...], params: Json | None, send: Send, *, lost: bool
    ) -> None:
        said = replace(
            answer(kind, seen.body, Script(), f"{self.name}-{len(self.requests)}"), prompt_tokens=len(tokens)
        )
        if lost:
            await self._finish_error(said, seen, send)
            return
        blocks = self.blocks.take(len(tokens))
        keep = False
        try:
            # A transfer that has begun ends, whatever becomes of the request.
            cached = self._fill(tokens, params)
            await self._hold(seen, "computing")
            await self._hold(seen, "generating")
            handed = self._hand(seen, tokens, blocks, params)
            keep = handed is not None and handed["remote_block_ids"] != [[]]
            await self._answer(said, seen, send, cached, handed)
            self._remember(tokens)
        except KvLost as lost_blocks:
            self.violations.append(str(lost_blocks))
            await self._finish_error(said, seen, send)
        finally:
            if not keep:
                self.blocks.give(blocks)

    def _fill(self, tokens: tuple[int, ...], params: Json | None) -> int:
        """Compute or load the prompt's KV; how many tokens vLLM would call cached. Raises KvLost."""
        size = self.blocks.size
        mine = max((n for n in range(0, len(tokens) + 1, size) if tokens[:n] in self._cache), default=0)
        if params is None or not params.get("do_remote_prefill"):
            self.sources["cached"] += mine
            self.sources["computed"] += len(tokens) - mine
            return mine
        ids = params.get("remote_block_ids")
        if not (isinstance(ids, list) and ids and all(isinstance(group, list) and group for group in ids)):
            raise KvLost(f"remote_block_ids are not nested by group: {ids}")
        self._load(tokens, params)
        self.sources["cached"] += mine
        self.sources["external"] += len(tokens) - mine
        # The decode side counts what it did not compute: everything.
        return len(tokens)

    def _load(self, tokens: tuple[int, ...], params: Json) -> None:
        host, engine = str(params["remote_host"]), str(params["remote_engine_id"])
        if self._known.setdefault(host, engine) != engine:
            raise KvLost(f"stale peer: {host} was {self._known[host]} and says {engine}")
        peer = self._fabric.engines.get(engine)
        if peer is None:
            raise KvLost(f"no engine {engine}")
        peer.blocks.read(str(params["remote_request_id"]), tokens, params)

    def _hand(self, seen: Seen, tokens: tuple[int, ...], blocks: tuple[int, ...], params: Json | None) -> Json | None:
        """What a prefill leg's answer carries; the blocks stay pinned. None where nothing is handed over."""
        if params is None or not params.get("do_remote_decode"):
            return None
        whole_blocks = len(tokens) >= self.blocks.size
        request = f"{self.engine_id}-{len(self.requests)}-{id(seen)}"
        handed: Json = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            # Of a prompt under one block nothing is worth keeping.
            "remote_block_ids": [list(blocks) if whole_blocks else []],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request,
            "remote_host": self.name,
            "remote_port": 5600,
            "tp_size": 1,
            "remote_num_tokens": len(tokens),
            "of_a_later_release": {"expires": None},
        }
        if whole_blocks:
            self.blocks.pin(request, blocks, tokens, handed)
        return handed

    async def _answer(self, said: Answer, seen: Seen, send: Send, cached: int, handed: Json | None) -> None:
        details: JsonValue = {"cached_tokens": cached} if self.reports_cached else None
        if seen.body.get("stream") is not True:
            body = orjson.loads(whole(said))
            body["kv_transfer_params"] = handed
            if seen.body.get("return_token_ids"):
                holder = body if said.kind == "chat" else body["choices"][0]
                holder["prompt_token_ids"] = render(said.kind, seen.body)
            body["usage"]["prompt_tokens_details"] = details
            seen.generated = said.completion_tokens
            await _send(send, 200, body)
            return
        await send({"type": "http.response.start", "status": 200, "headers": _SSE})
        for event, count in events(said):
            seen.generated += count
            await send({"type": "http.response.body", "body": event, "more_body": True})
            self._tell()
        if said.usage_chunk:
            frame = orjson.loads(usage_event(said).removeprefix(b"data: "))
            if details is not None:
                frame["usage"]["prompt_tokens_details"] = details
            await send({"type": "http.response.body", "body": _event(frame), "more_body": True})
        await send({"type": "http.response.body", "body": DONE})

    async def _finish_error(self, said: Answer, seen: Seen, send: Send) -> None:
        choices = tuple(replace(choice, tokens=(), finish_reason="error") for choice in said.choices)
        await self._answer(replace(said, choices=choices), seen, send, 0, None)

    def _remember(self, tokens: tuple[int, ...]) -> None:
        self._cache |= {tokens[:n] for n in range(self.blocks.size, len(tokens) + 1, self.blocks.size)}

    async def _hold(self, seen: Seen, phase: Phase) -> None:
        self._phase(seen, phase)
        if phase in self.held:
            await self._go.wait()

    def _phase(self, seen: Seen, phase: Phase) -> None:
        seen.phase = phase
        self._tell()

    def _tell(self) -> None:
        for holds, waiter in self._waiters:
            if not waiter.done() and holds():
                waiter.set_result(None)


async def _until_left(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """As vLLM's handlers do: a client that leaves cancels the work at once."""
    working, left = asyncio.ensure_future(work), asyncio.ensure_future(receive())
    try:
        await asyncio.wait([working, left], return_when=asyncio.FIRST_COMPLETED)
    finally:
        left.cancel()
        working.cancel()
        await asyncio.wait([working])
    if not working.cancelled():
        working.result()


def _event(value: JsonValue) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


async def _send(send: Send, status: int, value: JsonValue) -> None:
    await send({"type": "http.response.start", "status": status, "headers": _JSON})
    await send({"type": "http.response.body", "body": orjson.dumps(value)})
