"""A place in the tier, the call, the relay of its answer, and what is kept of it."""

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import orjson
from pydantic import JsonValue

from cache.answer import Answer, Hit, StreamAssembler, lasting, replayable
from cache.controls import Controls
from cache.question import Question
from core.embedder import Embedding
from core.errors import RequestError, UpstreamTimeout
from core.request import InferenceRequest
from gateway.account import Account
from gateway.affinity import HEADER as SESSION
from gateway.affinity import session
from gateway.door import enter
from gateway.ear import Listener
from gateway.envelope import EngineFault, Headers, is_error, status_of
from gateway.exchange import Exchange
from gateway.fallback import REASON as FALLBACK
from gateway.fallback import stand_in
from gateway.flight import Flight, Unshareable
from gateway.headers import EVENT_STREAM, answer_headers, upstream_headers
from gateway.interrupt import Interruptible
from gateway.metering import StreamMeter, usage_of
from gateway.outlet import Direct, Outlet, Shared
from gateway.patience import Patience
from gateway.relay import EventRelay, content_type, is_event_stream, passed_headers, prefill_header
from gateway.services import Services
from gateway.settle import cost
from gateway.stored import StoredAnswers
from gateway.tier import TierGate
from gateway.upstream.base import Call, ConnectTimeout, Reply
from gateway.upstream.replicas import Opened, kind_of

JSON_TYPE = "application/json"
PATHS = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}
# How long the end of an engine's answer is waited for after `[DONE]`, so that its connection can be used again.
TAIL = 0.5


@dataclass(slots=True)
class Work:
    """What is to be generated, where, and how it may be kept. Complete before it is run, and not changed after.

    `chosen`: the classifier chose the tier. `listener`: what hears the answer first, and may give it up. `flight`: who
    else waits for the answer, None where nobody can. `late`: the vector is made when the answer has been stored.
    """

    request: InferenceRequest
    gate: TierGate
    model: str
    chosen: bool
    question: Question | None
    controls: Controls
    embedding: Embedding | None
    listener: Listener | None = None
    flight: Flight | None = None
    late: bool = False


class Whole(NamedTuple):
    """An answer that came in one piece. `value` is None where it is not a JSON object."""

    raw: bytes
    value: Mapping[str, JsonValue] | None


class Streamed(NamedTuple):
    """An answer that is being streamed: its relay, its meter, and what collects it for the cache."""

    relay: EventRelay
    meter: StreamMeter
    assembler: StreamAssembler | None


Begun = Whole | Streamed


class Generation:
    """Runs the part of a request that needs a tier."""

    def __init__(self, services: Services, stored: StoredAnswers) -> None:
        self._services, self._stored = services, stored

    async def run(self, work: Work, exchange: Exchange, account: Account, block: Interruptible) -> None:
        """Wait for a place, call the tier and send its answer on; the other tier's where this one has no replica."""
        try:
            await self._run(work, exchange, account, block)
        except RequestError as error:
            other = None
            if not exchange.started:
                other = stand_in(self._services.tiers, work.gate, work.model, work.request, error)
            if other is None:
                raise
            account.tier, account.route_reason = other.name, FALLBACK
            self._services.metrics.decisions(other.name, FALLBACK).inc()
            # Kept would be the answer of another model than the one that was asked.
            controls = replace(work.controls, write=False)
            moved = replace(
                work, gate=other, model=other.settings.model, chosen=False, controls=controls, listener=None
            )
            await self._run(moved, exchange, account, block)

    async def _run(self, work: Work, exchange: Exchange, account: Account, block: Interruptible) -> None:
        gate = work.gate
        place = await enter(gate, exchange, account, self._services)
        patience = Patience(block, gate.settings.timeout, self._services.clock, self._services.timers)
        if account.trace is not None:
            account.called_at = self._services.clock.monotonic()
        opened: Opened[Begun] | None = None
        try:
            if work.flight is not None:
                work.flight.dispatched(gate.name)
            opening = self._opening(work, exchange, account, patience)
            patience.begin()
            opened = await opening
            patience.got()
            account.upstream_s, account.retries = patience.waited, opened.retries
            account.url = opened.replica.server.url
            if isinstance(opened.begun, Whole):
                patience.end()
                await self._send_whole(work, opened, opened.begun, exchange, account)
            else:
                await self._send_stream(work, opened, opened.begun, exchange, account)
                patience.end()
                await opened.reply.finish(TAIL)
        except (RequestError, asyncio.CancelledError) as error:
            if opened is not None:
                opened.failed(block.cause or error)
            self._broke(work, block.cause or error, begun=opened is not None)
            raise
        finally:
            patience.end()
            account.upstream_s = patience.waited
            if opened is not None:
                opened.close()
            place.leave()

    def _opening(
        self, work: Work, exchange: Exchange, account: Account, patience: Patience
    ) -> Awaitable[Opened[Begun]]:
        """Calls the tier when awaited."""
        gate, request = work.gate, work.request
        headers = upstream_headers(exchange, gate.authorization, JSON_TYPE)
        if gate.sessions and (name := session(account.tenant, request)) is not None:
            headers[SESSION] = name
        call = Call(
            "POST",
            PATHS[request.kind],
            headers,
            upstream_body(request if work.listener is None else work.listener.asking(), work.model),
            gate.settings.timeout.connect,
        )
        opening = gate.replicas.open(call, partial(self._begin, work, patience), patience.cause)
        ping = self._services.config.gateway.sse_ping
        if ping is None or not request.stream:
            return opening
        return self._open_with_pings(asyncio.ensure_future(opening), ping, exchange, account)

    async def _begin(self, work: Work, patience: Patience, reply: Reply) -> Begun:
        """Read a good reply to its first content, or to its end."""
        if work.listener is not None:
            reply = await work.listener.hear(reply, patience)
        if work.request.stream and is_event_stream(reply.headers):
            return await self._begin_stream(work, reply, patience)
        return await read_whole(reply, patience)

    async def _open_with_pings(
        self, opening: "asyncio.Future[Opened[Begun]]", ping: float, exchange: Exchange, account: Account
    ) -> Opened[Begun]:
        """Keep the client's connection busy with comments until the tier's first content."""
        try:
            while not (await asyncio.wait({opening}, timeout=ping))[0]:
                if not exchange.started:
                    await exchange.start(200, self._stream_head(exchange, account, []))
                await exchange.write(b": ping\n\n")
            return opening.result()
        except BaseException:
            opening.cancel()
            (left,) = await asyncio.gather(opening, return_exceptions=True)
            if isinstance(left, Opened):
                left.close()
            raise

    async def _begin_stream(self, work: Work, reply: Reply, patience: Patience) -> Streamed:
        assembler = StreamAssembler() if work.controls.write or work.flight is not None else None
        meter = StreamMeter(assembler)
        relay = EventRelay(reply, meter, patience, self._services.clock)
        await relay.begin()
        patience.got(reply.came)
        patience.content()
        return Streamed(relay, meter, assembler)

    async def _send_whole(
        self, work: Work, opened: Opened[Begun], whole: Whole, exchange: Exchange, account: Account
    ) -> None:
        if whole.value is not None:
            account.usage = usage_of(whole.value.get("usage"))
            if work.chosen and account.usage is not None:
                self._saved_by_choice(work, account)
            if account.trace is not None:
                account.trace.answers(whole.value)
            if account.words is not None:
                account.words.answered(whole.value)
            if work.controls.write:
                await self._keep(work, whole.value, whole.raw)
        if work.flight is not None:
            work.flight.land(partial(shared_answer, work, whole.value, whole.raw))
        headers = answer_headers(exchange, account, self._services.clock) + _passed(opened.reply, exchange)
        headers.append((b"content-type", content_type(opened.reply.headers) or JSON_TYPE.encode()))
        await exchange.respond(opened.reply.status, headers, whole.raw)

    async def _send_stream(
        self,
        work: Work,
        opened: Opened[Begun],
        streamed: Streamed,
        exchange: Exchange,
        account: Account,
    ) -> None:
        account.first_at = account.last_at = self._services.clock.monotonic()
        flight, relay, show = work.flight, streamed.relay, work.request.include_usage
        outlet: Outlet = Direct(exchange, show_usage=show)
        if flight is not None and streamed.assembler is not None:
            outlet = Shared(exchange, flight, show_usage=show)
            flight.begin(streamed.assembler.so_far)
        try:
            if not exchange.started:
                await outlet.start(200, self._stream_head(exchange, account, _passed(opened.reply, exchange)))
            if relay.held:
                await outlet.write(relay.held)
            last = await relay.run(outlet, account)
            whole = await self._keep_stream(work, streamed, account)
            if account.trace is not None and whole is not None:
                account.trace.answers(whole)
            if account.words is not None and whole is not None:
                account.words.answered(whole)
            if flight is not None:
                flight.land(partial(shared_answer, work, whole), usage=relay.usage, last=last)
            await outlet.end(last, usage=relay.usage)
        finally:
            await outlet.close()

    async def _keep_stream(self, work: Work, streamed: Streamed, account: Account) -> Answer | None:
        """Meter and store what was streamed; the whole answer, where it was collected and is complete."""
        meter, assembler = streamed.meter, streamed.assembler
        if meter.usage is not None:
            account.usage = meter.usage
            if work.chosen:
                self._saved_by_choice(work, account)
        if assembler is None:
            return None
        answer, reason = assembler.finish(meter.done)
        if not work.controls.write:
            return assembler.whole()
        if answer is None:
            self._stored.skipped(reason or "incomplete_stream")
            return assembler.whole()
        await self._keep(work, answer)
        return answer

    def _stream_head(self, exchange: Exchange, account: Account, passed: Headers) -> Headers:
        account.event_stream = True
        return answer_headers(exchange, account, self._services.clock) + passed + EVENT_STREAM

    async def _keep(self, work: Work, answer: Mapping[str, JsonValue], raw: bytes | None = None) -> None:
        if work.question is not None:
            stored = await self._stored.store(work.question, answer, work.embedding, work.gate.name, work.controls, raw)
            if stored and work.late:
                self._services.late.add(work.question, work.controls)

    def _broke(self, work: Work, cause: BaseException, *, begun: bool) -> None:
        """Count what ended the call; faults before the answer began are counted where they may be retried."""
        timed_out = isinstance(cause, UpstreamTimeout) and not isinstance(cause, ConnectTimeout)
        if isinstance(cause, RequestError) and (begun or timed_out):
            self._services.metrics.upstream_errors(work.gate.name, kind_of(cause)).inc()
        if work.controls.write:
            reason = "incomplete_stream" if isinstance(cause, RequestError) else "cancelled"
            self._stored.skipped("error" if isinstance(cause, EngineFault) else reason)

    def _saved_by_choice(self, work: Work, account: Account) -> None:
        """What the classifier saved by not asking the frontier tier."""
        frontier, usage = self._services.tiers.get("frontier"), account.usage
        if work.gate.name != "small" or frontier is None or usage is None:
            return
        saved = cost(frontier.settings.price, usage.input, usage.output) - cost(
            work.gate.settings.price, usage.input, usage.output
        )
        if saved > 0:
            self._services.savings.saved(saved)


def _passed(reply: Reply, exchange: Exchange) -> Headers:
    """The engine's headers for the client."""
    debug = exchange.headers.get(b"x-forebay-debug") == b"1"
    return passed_headers(reply.headers) + (prefill_header(reply.headers) if debug else [])


def shared_answer(work: Work, answer: Answer | None, raw: bytes | None = None) -> Hit | RequestError:
    """What those who share the flight get: the answer as the cache would give it, whether or not it was stored."""
    if answer is None or work.question is None or not replayable(answer):
        return Unshareable("the tier's answer was shared, but is not a complete completion")
    kept = lasting(answer)
    body = raw if raw is not None and kept is answer else orjson.dumps(kept)
    return Hit(work.question.id, 0.0, body, "exact", 1.0, work.gate.name)


def upstream_body(request: InferenceRequest, model: str) -> bytes:
    """The body for the engine: its own name of the model, and usage asked for where a stream would not carry it."""
    body: Mapping[str, JsonValue] = request.body
    if request.model != model:
        body = {**body, "model": model}
    if request.stream and not request.include_usage:
        options = body.get("stream_options")
        asked = dict(options) if isinstance(options, dict) else {}
        asked["include_usage"] = True
        # It only means something together with include_usage, and the client did not ask for usage.
        asked.pop("continuous_usage_stats", None)
        body = {**body, "stream_options": asked}
    return orjson.dumps(body)


async def read_whole(reply: Reply, patience: Patience) -> Whole:
    """The whole body. Raises EngineFault where a 2xx carries an error object."""
    patience.content()
    parts: list[bytes] = []
    try:
        while chunk := await reply.read():
            parts.append(chunk)
            patience.again(reply.came)
        # Reading it is ours.
        patience.got(reply.came)
        raw = parts[0] if len(parts) == 1 else b"".join(parts)
        value = _object(raw)
        if value is not None and is_error(value) and not value.get("choices"):
            raise EngineFault(status_of(value), raw)
    except RequestError:
        # Another replica may be asked, and its first byte is waited for anew.
        patience.begin()
        raise
    return Whole(raw, value)


def _object(raw: bytes) -> Mapping[str, JsonValue] | None:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
