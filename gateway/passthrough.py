"""Any other /v1 route of the engines: same keys, queue and metrics, uncached, bytes as they are."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass

import orjson
from pydantic import JsonValue

from core.errors import BadRequest, NotFound, RequestError
from gateway.account import Account
from gateway.door import enter
from gateway.exchange import Exchange
from gateway.forecast import Need, need_of
from gateway.headers import STREAM_HEADERS, answer_headers, upstream_headers
from gateway.interrupt import Interruptible
from gateway.metering import Usage, usage_of
from gateway.patience import Patience
from gateway.relay import content_type, is_event_stream, passed_headers
from gateway.services import Services
from gateway.targets import Target
from gateway.tier import TierGate
from gateway.upstream.base import Call, Reply
from gateway.upstream.replicas import Opened, kind_of

ROUTE = "/v1/{path}"
# Under /v1, but not for clients: they change what the engine serves to everyone.
ENGINE_ADMIN = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
# These write an answer of their own; what the others give back costs no tokens.
GENERATING = ("/v1/responses", "/v1/messages")
# The usage in a JSON answer of up to so many bytes is read.
MAX_METERED = 256 * 1024
METHODS = frozenset({"GET", "POST", "DELETE", "PUT", "PATCH"})
_BOUNDARY = re.compile(r'boundary="?([^";]+)"?', re.IGNORECASE)
_MODEL_PART = re.compile(rb'content-disposition:[^\r\n]*;\s*name="?model"?\s*(?:;|\r\n)', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Foreign:
    """A request that is passed through: its body with the engine's name of the model, where it goes, what it takes."""

    body: bytes
    target: Target
    stream: bool
    need: Need


class PassThrough:
    """Answers every /v1 route that is not the gateway's own."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def answer(self, exchange: Exchange, account: Account, block: Interruptible) -> None:
        """One request inside the pipeline's shell."""
        if exchange.method not in METHODS or not passable(exchange.path):
            raise NotFound(f"{exchange.method} {exchange.path} does not exist")
        raw = await exchange.body(self._services.config.gateway.max_body_size, block)
        foreign = self.understand(raw, exchange)
        tier = foreign.target.tier
        if tier is None:
            raise BadRequest("this route needs a model by name: only chat and completions take auto", param="model")
        gate = self._services.tiers[tier]
        account.tier, account.stream, account.model = tier, foreign.stream, foreign.target.model
        account.need = foreign.need
        account.route_reason = "override" if len(self._services.tiers) > 1 else "only_tier"
        exchange.watch(block)
        place = await enter(gate, exchange, account, self._services)
        try:
            await self._call(foreign, gate, exchange, account, block)
        finally:
            place.leave()

    def understand(self, raw: bytes, exchange: Exchange) -> Foreign:
        """Where the request goes; raises RequestError where its model is missing or not known."""
        kind = (exchange.header(b"content-type") or "").lower()
        tier_header = exchange.header(b"x-forebay-tier")
        targets = self._services.targets
        if kind.startswith("multipart/form-data"):
            need = Need(len(raw), 0)
            place = _model_part(raw, exchange.header(b"content-type") or "")
            if place is None:
                return Foreign(raw, self._unnamed(exchange, tier_header), False, need)
            start, end = place
            target = targets.resolve(raw[start:end].decode("utf-8", "replace"), tier_header)
            name = (target.model or "").encode()
            return Foreign(raw[:start] + name + raw[end:], target, False, need)
        body = _json_object(raw) if raw else {}
        need = need_of(len(raw), body) if exchange.path.startswith(GENERATING) else Need(len(raw), 0)
        model = body.get("model")
        if model is None:
            return Foreign(raw, self._unnamed(exchange, tier_header), body.get("stream") is True, need)
        if not isinstance(model, str):
            raise BadRequest("model must be a string", param="model")
        if "kv_transfer_params" in body:
            raise BadRequest("kv_transfer_params is not accepted from clients", param="kv_transfer_params")
        target = targets.resolve(model, tier_header)
        if target.model is not None and target.model != model:
            raw = orjson.dumps({**body, "model": target.model})
        return Foreign(raw, target, body.get("stream") is True, need)

    def _unnamed(self, exchange: Exchange, tier_header: str | None) -> Target:
        """The target of a request without a model: the only tier, or the one that the header names."""
        targets = self._services.targets
        if tier_header is not None:
            return targets.resolve("auto", tier_header)
        if targets.only is not None:
            return targets.only
        if exchange.method == "POST":
            raise BadRequest("model is required: it says which tier serves this route", param="model")
        raise NotFound(f"{exchange.method} {exchange.path} does not exist here, or needs x-forebay-tier")

    async def _call(
        self, foreign: Foreign, gate: TierGate, exchange: Exchange, account: Account, block: Interruptible
    ) -> None:
        query = exchange.query.decode("latin-1")
        call = Call(
            method=exchange.method,
            path=f"{exchange.raw_path}?{query}" if query else exchange.raw_path,
            headers=upstream_headers(
                exchange, gate.authorization, exchange.header(b"content-type") or "application/json"
            ),
            body=foreign.body,
            connect=gate.settings.timeout.connect,
        )
        patience = Patience(block, gate.settings.timeout, self._services.clock, self._services.timers)
        if account.trace is not None:
            account.called_at = self._services.clock.monotonic()
        opened: Opened[bytes] | None = None
        try:
            patience.begin()
            opened = await gate.replicas.open(call, _first, patience.cause)
            account.first_at = patience.got(opened.reply.came)
            patience.content()
            account.retries, account.url = opened.retries, opened.replica.url
            await self._relay(opened.reply, opened.begun, patience, exchange, account)
        except (RequestError, asyncio.CancelledError) as error:
            cause = patience.cause() or error
            if opened is not None and isinstance(cause, RequestError):
                opened.failed(cause)
                self._services.metrics.upstream_errors(gate.name, kind_of(cause)).inc()
            raise
        finally:
            patience.end()
            account.upstream_s = patience.waited
            if opened is not None:
                opened.close()

    async def _relay(
        self, reply: Reply, chunk: bytes, patience: Patience, exchange: Exchange, account: Account
    ) -> None:
        clock = self._services.clock
        headers = answer_headers(exchange, account, clock) + passed_headers(reply.headers)
        if kind := content_type(reply.headers):
            headers.append((b"content-type", kind))
        if is_event_stream(reply.headers):
            headers += STREAM_HEADERS
        await exchange.start(reply.status, headers)
        kept: list[bytes] = []
        room = MAX_METERED if kind.lower().startswith(b"application/json") else 0
        while chunk:
            room -= len(chunk)
            if room >= 0:
                kept.append(chunk)
            began = clock.monotonic()
            await exchange.write(chunk)
            account.client_s += clock.monotonic() - began
            patience.wait()
            chunk = await reply.read()
            account.last_at = patience.got(reply.came)
        if kept and room >= 0:
            account.usage = usage_in(b"".join(kept))
        await exchange.end()


def usage_in(raw: bytes) -> Usage | None:
    """The tokens that an answer says it took; None where it says nothing."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return usage_of(value.get("usage")) if isinstance(value, dict) else None


def passable(path: str) -> bool:
    """Whether a path under /v1 stays there, however a server reads it, and is meant for clients."""
    return ".." not in path and path.rstrip("/") not in ENGINE_ADMIN


async def _first(reply: Reply) -> bytes:
    """The first piece of the body: with it in hand, the reply is good."""
    return await reply.read()


def _json_object(raw: bytes) -> Mapping[str, JsonValue]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object", code="invalid_json")
    return body


def _model_part(raw: bytes, kind: str) -> tuple[int, int] | None:
    """Where the value of the form field `model` lies in a multipart body, None where there is none."""
    found = _BOUNDARY.search(kind)
    if found is None:
        raise BadRequest("the multipart content type names no boundary")
    mark = b"--" + found[1].strip().encode("latin-1")
    at = raw.find(mark)
    while at >= 0:
        start = at + len(mark)
        following = raw.find(b"\r\n" + mark, start)
        head = raw.find(b"\r\n\r\n", start)
        if following < 0 or head < 0:
            return None
        if head < following and _MODEL_PART.search(raw, start, head + 2):
            return head + 4, following
        at = following + 2
    return None
