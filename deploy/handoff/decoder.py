"""The decode side of a tier: an ASGI application around the engine's own."""

import asyncio
import logging
from collections.abc import MutableMapping
from contextlib import AsyncExitStack
from typing import Any

from core.background import Background
from core.clock import Clock, SystemClock
from deploy.disconnect import AsgiApp, Receive, Send
from deploy.handoff.engine import Engine
from deploy.handoff.group import Kind, Meter, Mode, PrefillGroup, Settings
from deploy.handoff.legs import decode_body, release_body, says_error, whole_reason
from deploy.handoff.opening import Cached, Opening, Verdict
from deploy.handoff.orphans import Orphans
from deploy.handoff.prefill import Failed, Handed, Prefilling
from deploy.handoff.request import Request, label, labelled, route
from deploy.handoff.slots import Slots

logger = logging.getLogger(__name__)

_KINDS: dict[str, Kind] = {"/v1/chat/completions": "chat", "/v1/completions": "completion"}
# Of other systems: a header that names a prefill server is an order that no client may give.
_STRIPPED = frozenset({b"x-prefiller-host-port", b"x-prefiller-host", b"x-data-parallel-host-port"})
# Seconds that an engine surely needs less than to schedule a request, besides rendering its prompt.
_SCHEDULED = 0.05


class Decoder:
    """ASGI: the two completions are split where it pays, everything else is the engine's.

    Every answer says `x-forebay-prefill: remote | local | fallback | error`, and why. `aclose` ends what runs in the
    background; `settled` waits for it.
    """

    def __init__(
        self, engine: AsgiApp, group: PrefillGroup, settings: Settings, meter: Meter, clock: Clock | None = None
    ) -> None:
        self._app, self.settings, self._meter = engine, settings, meter
        self._clock = clock or SystemClock()
        self._background = Background()
        self._slots = Slots(settings.slots)
        self._orphans = Orphans(settings.lease, self._clock)
        self.engine = Engine(engine, settings, self._clock)
        self.prefilling = Prefilling(group, self._clock, self._unwanted, settings.prefill_deadline / 2)

    async def aclose(self) -> None:
        """End what runs in the background."""
        await self._background.aclose()

    async def settled(self) -> None:
        """Wait until blocks that nobody wants have been given back."""
        await self._background.settled()

    @property
    def orphaned_blocks(self) -> int:
        """Blocks that prefill replicas keep for nobody until their lease ends."""
        return self._orphans.blocks

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return self._slots.waiting

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """One request. Its end aborts whichever leg runs, and gives back blocks that nobody has read."""
        posted = scope["type"] == "http" and scope["method"] == "POST"
        kind = _KINDS.get(route(scope)) if posted else None
        if kind is None:
            if posted and route(scope).startswith("/v1/"):
                self._meter.prefilled("local", "route")
                send = labelled(send, "local", "route")
            await self._app(scope, receive, send)
            return
        raw = await _read(receive)
        if raw is None:
            return
        headers = [pair for pair in scope["headers"] if pair[0].lower() not in _STRIPPED]
        work = asyncio.ensure_future(self._serve(Request({**scope, "headers": headers}, kind, raw, send)))
        left = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait([work, left], return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            work.cancel()
            # It gives its slot and its blocks back.
            await asyncio.wait([work])
        if not work.cancelled():
            work.result()

    async def _serve(self, request: Request) -> None:
        body = request.body
        if body is None:
            await self._here(request, "local", "invalid")
            return
        if "kv_transfer_params" in body:
            await request.refuse(400, "kv_transfer_params is not accepted from clients", "kv_transfer_params")
            return
        reason = whole_reason(request.kind, body) or await self.engine.keep(request)
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._slots.take(request.sequences, self.settings.slot_wait))
            except TimeoutError:
                await request.refuse(503, "no slot of the engine became free in time", "no_slot")
                return
            await (self._here(request, "local", reason) if reason else self._split(request))

    async def _split(self, request: Request) -> None:
        """Prefilled elsewhere, decoded here; what fails before the first content is tried with another replica."""
        tried: set[str] = set()
        failed = Failed("no_replica")
        until = asyncio.get_running_loop().time() + self.settings.prefill_deadline
        for _ in range(self.settings.attempts):
            leg = await self.prefilling.leg(request, tried, until)
            if isinstance(leg, Handed):
                if await self._decode(request, leg) != "failed":
                    return
                leg = Failed("handoff", leg.peer)
            if failed.peer is None or leg.peer is not None:
                # That nobody else is left says less than why the first one failed.
                failed = leg
            if leg.peer is None or leg.reason in ("refused", "no_blocks", "prompt_differs", "deadline"):
                break
            tried.add(leg.peer)
        await self._instead(request, failed)

    async def _instead(self, request: Request, failed: Failed) -> None:
        if failed.reason == "no_blocks":
            await self._here(request, "local", failed.reason)
        elif self.settings.on_prefill_failure == "decode":
            await self._here(request, "fallback", failed.reason)
        else:
            self._meter.prefilled("error", failed.reason)
            if failed.reply is not None:
                await request.answer(failed.reply.status, failed.reply.body, "error", failed.reason)
            elif failed.reason in ("no_replica", "breaker"):
                await request.refuse(503, "no prefill replica can take the request", failed.reason, "error")
            else:
                await request.refuse(502, "the prompt could not be prefilled", failed.reason, "error")

    async def _here(self, request: Request, mode: Mode, reason: str) -> None:
        self._meter.prefilled(mode, reason)
        await self.engine.run(request, labelled(request.send, mode, reason))
        if request.tokens:
            self.engine.remember(request)

    async def _decode(self, request: Request, handed: Handed) -> Verdict:
        """Generate from blocks that wait; the verdict is `failed` where the client has seen nothing."""
        opening = Opening(request.send, label("remote", "long"), Cached(handed.cached))
        body = decode_body(request.body or {}, handed.params)
        run = asyncio.ensure_future(self.engine.read(request, body, opening))
        try:
            await opening.settled.wait()
            await self._judged(request, handed, opening, run)
        except asyncio.CancelledError:
            if opening.verdict == "unsure":
                handed.breaker.abandoned()
                opening.mute()
                # An engine that is told to stop before it has scheduled a request does not give the blocks back.
                await asyncio.wait([run], timeout=_SCHEDULED + 2 * request.measured_s)
            raise
        finally:
            run.cancel()
            await asyncio.wait([run])
        return opening.verdict

    async def _judged(self, request: Request, handed: Handed, opening: Opening, run: "asyncio.Future[None]") -> None:
        if opening.verdict == "failed":
            handed.breaker.failed("handoff")
            self._left_behind(handed.blocks)
        elif opening.verdict == "refused":
            handed.breaker.succeeded()
            self._unwanted(request, handed)
            await run
        else:
            handed.breaker.succeeded()
            self._meter.prefilled("remote", "long")
            if opening.streams:
                self._meter.handed_over(self._clock.monotonic() - handed.at)
            self.engine.remember(request)
            await run

    def _unwanted(self, request: Request, handed: Handed) -> None:
        """Blocks wait for a request that will not read them: read, they are free."""
        self._background.start(self._release(request, handed), f"release {handed.peer}")

    async def _release(self, request: Request, handed: Handed) -> None:
        body = release_body(request.kind, request.body or {}, handed.params)
        try:
            async with self._slots.take(1, self.settings.lease / 2):
                reply = await self.engine.ask(request.scope, route(request.scope), body)
        except TimeoutError:
            self._left_behind(handed.blocks)
            return
        if reply.status != 200 or says_error(reply.body):
            self._left_behind(handed.blocks)

    def _left_behind(self, blocks: int) -> None:
        self._orphans.add(blocks)
        self._tell_orphans()
        asyncio.get_running_loop().call_later(self.settings.lease + 0.1, self._tell_orphans)

    def _tell_orphans(self) -> None:
        self._meter.orphaned(self._orphans.blocks)


async def _read(receive: Receive) -> bytes | None:
    """The whole body; None where the client leaves before its end."""
    parts = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.extend(message.get("body", b""))
        if not message.get("more_body"):
            return bytes(parts)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
