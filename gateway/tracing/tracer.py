"""From a request's account to its spans: the request, its wait for a tier, and the call to the engine.

Names and attributes follow OpenTelemetry's semantic conventions for HTTP and for generative AI (`gen_ai.*`); what only
a gateway knows is `forebay.*`. Prompts and answers are never recorded. Spans are made when a request has been settled,
from what its account holds anyway, so that tracing costs the way to the answer nothing but a few random numbers.
"""

from types import TracebackType
from typing import Self
from urllib.parse import urlsplit
from uuid import uuid4

from core.clock import Clock
from core.config.telemetry import Telemetry
from gateway.account import Account
from gateway.tracing.export import Exporter
from gateway.tracing.span import Attribute, Kind, Span, Trace, fresh_id, parent_in

# The engines behind every tier.
PROVIDER = "vllm"


class Tracer:
    """An async context manager over the exporter. `begin` comes first in a request, `end` once it has been settled."""

    def __init__(self, settings: Telemetry, clock: Clock) -> None:
        self._sampler, self._ratio, self._clock = settings.sampler, settings.ratio, clock
        self._exporter = Exporter(settings, {**settings.resource, "service.instance.id": str(uuid4())})

    async def __aenter__(self) -> Self:
        await self._exporter.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exporter.__aexit__(kind, error, trace)

    def begin(self, headers: dict[bytes, bytes]) -> Trace:
        """The trace of a request; its headers name the call to the engine as the parent of what follows there."""
        parent = parent_in(headers.get(b"traceparent"))
        if parent is None:
            # What belongs to a trace that cannot be read must not be given on.
            headers.pop(b"tracestate", None)
        trace_id = fresh_id(16) if parent is None else parent[0]
        sampled = self._sampled(trace_id, None if parent is None else parent[2])
        trace = Trace(trace_id, fresh_id(8), fresh_id(8), None if parent is None else parent[1], sampled)
        headers[b"traceparent"] = trace.traceparent
        return trace

    def end(self, account: Account) -> None:
        """Record a request that has been settled."""
        trace = account.trace
        if trace is None or not trace.sampled:
            return
        # The end first: what is read later would lie behind it.
        ended = self._clock.monotonic() if account.left_at is None else account.left_at
        offset = self._clock.time() - self._clock.monotonic()

        def span(name: str, kind: Kind, at: tuple[float, float], own: bytes, attributes: dict[str, Attribute]) -> Span:
            start, end = (int((second + offset) * 1e9) for second in at)
            parent = trace.parent_id if kind == "server" else trace.span_id
            failed = account.reason or "error" if account.status >= 500 else None
            if kind == "internal":
                failed = None
            return Span(name, kind, trace.trace_id, own, parent, start, max(end, start), attributes, failed)

        spans = []
        called = account.called_at
        if account.queue_s > 0:
            until = ended if called is None else called
            waited = (until - account.queue_s, until)
            attributes: dict[str, Attribute] = {"forebay.tier": account.tier, "forebay.priority": account.priority}
            spans.append(span(f"queue {account.tier}", "internal", waited, fresh_id(8), attributes))
        if called is not None:
            at = (called, ended if account.last_at is None else account.last_at)
            spans.append(span(_call_name(account), "client", at, trace.call_id, call_attributes(account, trace)))
        whole = (account.arrived, ended)
        name = f"{account.method} {account.route}"
        spans.append(span(name, "server", whole, trace.span_id, request_attributes(account, trace)))
        self._exporter.offer(spans)

    def _sampled(self, trace_id: bytes, parent: bool | None) -> bool:
        sampler = self._sampler
        if sampler.startswith("parentbased_"):
            if parent is not None:
                return parent
            sampler = sampler.removeprefix("parentbased_")  # type: ignore[assignment]  # one of the others
        if sampler == "traceidratio":
            return int.from_bytes(trace_id[8:], "big") < self._ratio * (1 << 64)
        return sampler == "always_on"


def request_attributes(account: Account, trace: Trace) -> dict[str, Attribute]:
    """Attributes of the request's own span; of what is not known there are none."""
    known: dict[str, Attribute | None] = {
        "http.request.method": account.method,
        "http.route": account.route,
        "http.response.status_code": account.status,
        "url.scheme": "http",
        "error.type": _error_type(account),
        "gen_ai.operation.name": trace.operation,
        "gen_ai.request.model": account.model,
        "forebay.request_id": account.request_id,
        "forebay.tenant": account.tenant,
        "forebay.tier": account.tier,
        "forebay.cache": account.cache,
        "forebay.similarity": account.similarity,
        "forebay.guard": account.guard,
        "forebay.complexity": account.complexity,
        "forebay.route_reason": account.route_reason,
        "forebay.reason": account.reason,
        "forebay.queue_s": account.queue_s,
    }
    return {name: value for name, value in known.items() if value is not None}


def call_attributes(account: Account, trace: Trace) -> dict[str, Attribute]:
    """Attributes of the call to the engine, as the conventions for generative AI name them."""
    server = urlsplit(account.url) if account.url else None
    usage = account.usage
    first = None
    if account.stream and account.first_at is not None and account.called_at is not None:
        first = account.first_at - account.called_at
    known: dict[str, Attribute | None] = {
        "gen_ai.operation.name": trace.operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": account.model,
        "gen_ai.request.stream": account.stream or None,
        "gen_ai.response.time_to_first_chunk": first,
        "gen_ai.usage.input_tokens": usage.input if usage else None,
        "gen_ai.usage.output_tokens": usage.output if usage else None,
        "gen_ai.usage.cache_read.input_tokens": usage.cached if usage and usage.cached else None,
        "server.address": server.hostname if server else None,
        "server.port": server.port if server else None,
        "error.type": _error_type(account),
        "forebay.retries": account.retries or None,
        **trace.settings,
        **trace.answer,
    }
    return {name: value for name, value in known.items() if value is not None}


def _call_name(account: Account) -> str:
    operation = account.trace.operation if account.trace is not None else None
    return f"{operation or account.method} {account.model or account.route}"


def _error_type(account: Account) -> str | None:
    """The reason of a failure, else its status; None for what went well. A client that left is no error."""
    return (account.reason or str(account.status)) if account.status >= 400 and account.status != 499 else None
