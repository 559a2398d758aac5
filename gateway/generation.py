"""A place in the tier, the call, the relay of its answer, and what is kept of it."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import orjson
from pydantic import JsonValue

from cache.answer import StreamAssembler
from cache.controls import Controls
from cache.question import Question
from core.embedder import Embedding
from core.errors import Refused, RequestError, UpstreamTimeout
from core.request import InferenceRequest
from gateway.account import Account
from gateway.admission import Ticket
from gateway.deadline import deadline_of
from gateway.ear import Listener
from gateway.envelope import EngineFault, is_error, status_of
from gateway.exchange import Exchange
from gateway.headers import answer_headers, upstream_headers
from gateway.interrupt import Interruptible
from gateway.metering import StreamMeter, usage_of
from gateway.patience import Patience
from gateway.relay import STREAM_HEADERS, EventRelay, content_type, is_event_stream, passed_headers
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


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be generated, where, and how it may be kept.

    `chosen`: the classifier chose the tier. `listener`: what hears the answer first, and may give it up.
    """

    request: InferenceRequest
    gate: TierGate
    model: str
    chosen: bool
    question: Question | None
    controls: Controls
    embedding: Embedding | None
    listener: Listener | None = None


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer that came in one piece. `value` is None where it is not a JSON object."""

    raw: bytes
    value: Mapping[str, JsonValue] | None


@dataclass(frozen=True, slots=True)
class Streamed:
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
        """Wait for a place, call the tier and send its answer on."""
        metrics, gate = self._services.metrics, work.gate
        identity = account.identity
        ticket = Ticket(
            tenant=account.tenant,
            priority="normal" if identity is None else identity.priority,
            deadline=deadline_of(exchange),
        )
        try:
            async with gate.admission.enter(ticket):
                account.queue_s = ticket.waited
                metrics.queue_wait(gate.name, account.priority).observe(ticket.waited)
                await self._call(work, exchange, account, block)
        except Refused as error:
            account.queue_s = ticket.waited
            metrics.shed(gate.name, error.reason or "refused").inc()
            raise

    async def _call(self, work: Work, exchange: Exchange, account: Account, block: Interruptible) -> None:
        patience = Patience(block, work.gate.settings.timeout, self._services.clock)
        opened: Opened[Begun] | None = None
        try:
            patience.begin()
            opened = await self._open(work, exchange, account, patience)
            patience.got()
            account.upstream_s, account.retries, account.url = patience.waited, opened.retries, opened.replica.url
            if isinstance(opened.begun, Whole):
                patience.end()
                await self._send_whole(work, opened, opened.begun, exchange, account)
            else:
                await self._send_stream(work, opened, opened.begun, exchange, account)
                patience.end()
                await opened.reply.finish(TAIL)
        except (RequestError, asyncio.CancelledError) as error:
            self._broke(work, block.cause or error, begun=opened is not None)
            raise
        finally:
            patience.end()
            account.upstream_s = patience.waited
            if opened is not None:
                opened.close()

    async def _open(self, work: Work, exchange: Exchange, account: Account, patience: Patience) -> Opened[Begun]:
        gate, request = work.gate, work.request
        call = Call(
            method="POST",
            path=PATHS[request.kind],
            headers=upstream_headers(exchange, gate.authorization, JSON_TYPE),
            body=upstream_body(request if work.listener is None else work.listener.asking(), work.model),
            connect=gate.settings.timeout.connect,
        )

        async def begin(reply: Reply) -> Begun:
            if work.listener is not None:
                reply = await work.listener.hear(reply, patience)
            if request.stream and is_event_stream(reply.headers):
                return await self._begin_stream(work, reply, patience)
            return await read_whole(reply, patience)

        ping = self._services.config.gateway.sse_ping
        if ping is None or not request.stream:
            return await gate.replicas.open(call, begin)
        return await self._open_with_pings(
            asyncio.ensure_future(gate.replicas.open(call, begin)), ping, exchange, account
        )

    async def _open_with_pings(
        self, opening: "asyncio.Future[Opened[Begun]]", ping: float, exchange: Exchange, account: Account
    ) -> Opened[Begun]:
        """Keep the client's connection busy with comments until the tier's first content."""
        try:
            while not (await asyncio.wait({opening}, timeout=ping))[0]:
                if not exchange.started:
                    await self._start_stream(exchange, account, [])
                await exchange.write(b": ping\n\n")
            return opening.result()
        except BaseException:
            opening.cancel()
            (left,) = await asyncio.gather(opening, return_exceptions=True)
            if isinstance(left, Opened):
                left.close()
            raise

    async def _begin_stream(self, work: Work, reply: Reply, patience: Patience) -> Streamed:
        assembler = StreamAssembler() if work.controls.write else None
        meter = StreamMeter(assembler)
        relay = EventRelay(reply, meter, patience, self._services.clock, show_usage=work.request.include_usage)
        await relay.begin()
        patience.content()
        return Streamed(relay, meter, assembler)

    async def _send_whole(
        self, work: Work, opened: Opened[Begun], whole: Whole, exchange: Exchange, account: Account
    ) -> None:
        if whole.value is not None:
            self._meter(work, account, whole.value.get("usage"))
            if work.controls.write:
                await self._keep(work, whole.value)
        headers = answer_headers(exchange, account, self._services.clock) + passed_headers(opened.reply.headers)
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
        if not exchange.started:
            await self._start_stream(exchange, account, passed_headers(opened.reply.headers))
        if streamed.relay.held:
            await exchange.write(streamed.relay.held)
        last = await streamed.relay.run(exchange, account)
        meter = streamed.meter
        if meter.usage is not None:
            account.usage = meter.usage
            self._saved_by_choice(work, account)
        if streamed.assembler is not None:
            answer, reason = streamed.assembler.finish(meter.done)
            if answer is None:
                self._stored.skipped(reason or "incomplete_stream")
            else:
                await self._keep(work, answer)
        await exchange.end(last)

    async def _start_stream(self, exchange: Exchange, account: Account, passed: list[tuple[bytes, bytes]]) -> None:
        account.event_stream = True
        headers = answer_headers(exchange, account, self._services.clock) + passed + STREAM_HEADERS
        headers.append((b"content-type", b"text/event-stream; charset=utf-8"))
        await exchange.start(200, headers)

    async def _keep(self, work: Work, answer: Mapping[str, JsonValue]) -> None:
        if work.question is not None:
            await self._stored.store(work.question, answer, work.embedding, work.gate.name, work.controls)

    def _broke(self, work: Work, cause: BaseException, *, begun: bool) -> None:
        """Count what ended the call; faults before the answer began are counted where they may be retried."""
        timed_out = isinstance(cause, UpstreamTimeout) and not isinstance(cause, ConnectTimeout)
        if isinstance(cause, RequestError) and (begun or timed_out):
            self._services.metrics.upstream_errors(work.gate.name, kind_of(cause)).inc()
        if work.controls.write:
            reason = "incomplete_stream" if isinstance(cause, RequestError) else "cancelled"
            self._stored.skipped("error" if isinstance(cause, EngineFault) else reason)

    def _meter(self, work: Work, account: Account, usage: JsonValue) -> None:
        account.usage = usage_of(usage)
        if account.usage is not None:
            self._saved_by_choice(work, account)

    def _saved_by_choice(self, work: Work, account: Account) -> None:
        """What the classifier saved by not asking the frontier tier."""
        frontier, usage = self._services.tiers.get("frontier"), account.usage
        if not work.chosen or work.gate.name != "small" or frontier is None or usage is None:
            return
        saved = cost(frontier.settings.price, usage.input, usage.output) - cost(
            work.gate.settings.price, usage.input, usage.output
        )
        if saved > 0:
            self._services.metrics.saved_cost("router").inc(saved)


def upstream_body(request: InferenceRequest, model: str) -> bytes:
    """The body for the engine: its own name of the model, and usage asked for where a stream would not carry it."""
    body = dict(request.body)
    body["model"] = model
    if request.stream and not request.include_usage:
        options = body.get("stream_options")
        asked = dict(options) if isinstance(options, Mapping) else {}
        asked["include_usage"] = True
        # It only means something together with include_usage, and the client did not ask for usage.
        asked.pop("continuous_usage_stats", None)
        body["stream_options"] = asked
    return orjson.dumps(body)


async def read_whole(reply: Reply, patience: Patience) -> Whole:
    """The whole body. Raises EngineFault where a 2xx carries an error object."""
    patience.content()
    parts: list[bytes] = []
    try:
        while chunk := await reply.read():
            patience.got()
            parts.append(chunk)
            patience.wait()
        raw = b"".join(parts)
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
