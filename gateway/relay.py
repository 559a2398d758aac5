"""From an engine's answer to the client's: events forwarded as they come, read on the way, never changed.

Only whole events are forwarded, so that an answer that breaks off can still end in an error event. The usage chunk is
kept apart: the gateway always asks for it, and only those clients get it that did.
"""

from functools import partial

import orjson

from core.clock import Clock
from gateway.account import Account
from gateway.envelope import EngineFault, Headers, error_object, status_of
from gateway.metering import DONE, Look, StreamMeter
from gateway.outlet import Outlet
from gateway.patience import Patience
from gateway.sse import EventSplitter, EventTooLarge, data_of
from gateway.upstream.base import Broken, Reply

# What precedes the first content (role chunks, comments) is held back up to here, so that an error has its status.
MAX_HELD = 8 * 1024

# Headers of one hop, and those that this hop decides itself.
_OWN = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade", b"content-length", b"content-encoding", b"content-type", b"date",
        b"server", b"x-request-id", b"set-cookie", b"cache-control", b"x-accel-buffering", b"age", b"vary", b"via",
    )
)  # fmt: skip


_PREFILLED = frozenset((b"remote", b"local", b"fallback", b"error"))


def passed_headers(headers: Headers) -> Headers:
    """The engine's response headers that the client may see, besides the content type."""
    return [header for header in headers if header[0] not in _OWN and not header[0].startswith(b"x-forebay-")]


def prefill_header(headers: Headers) -> Headers:
    """How a tier whose prefill and decode are apart says that it computed the prompt; empty where it does not."""
    return [header for header in headers if header[0] == b"x-forebay-prefill" and header[1] in _PREFILLED]


def content_type(headers: Headers) -> bytes:
    """The engine's content type; empty where it named none."""
    for name, value in headers:
        if name == b"content-type":
            return value
    return b""


def is_event_stream(headers: Headers) -> bool:
    """Whether the body is a stream of server-sent events."""
    return content_type(headers).lower().startswith(b"text/event-stream")


class EventRelay:
    """One streamed answer of chat or text completions.

    `begin` reads to the first content; after it, `held` are the bytes to send first. `run` sends the rest up to, and
    without, the event that ends the stream, which it returns: the caller stores the answer before the client may ask
    again. `usage` is the event that comes before it, where there was one. Raises EngineFault for an error event, Broken
    where the answer is cut.
    """

    def __init__(self, reply: Reply, meter: StreamMeter, patience: Patience, clock: Clock) -> None:
        self._meter, self._patience, self._clock = meter, patience, clock
        self._reply = reply
        self._splitter = EventSplitter()
        self._last: bytes | None = None
        self._fault: EngineFault | None = None
        self._unsent = b""
        self._came = 0.0
        self.held = self.usage = b""

    async def begin(self) -> None:
        """Read to the first content, to the end of the stream, or until MAX_HELD bytes are held."""
        begun = False
        while not begun and self._last is None:
            chunk = await self._reply.read()
            if not chunk:
                self._ended()
                return
            shown, begun = self._take(chunk)
            if self._fault is not None and not begun:
                raise self._fault
            self.held += shown
            begun = begun or len(self.held) + len(self._splitter.rest) > MAX_HELD

    async def run(self, outlet: Outlet, account: Account) -> bytes:
        """Forward what follows; the bytes that end the stream."""
        patience, forward = self._patience, partial(self._forward, outlet, account)
        patience.wait()
        while self._last is None:
            # Raised only here, after what came before it was sent: where the chunks ended must not show.
            if self._fault is not None:
                raise self._fault
            more = await self._reply.pour(forward)
            if self._unsent:
                unsent, self._unsent = self._unsent, b""
                sent = self._clock.monotonic()
                await outlet.write(unsent)
                account.client_s += patience.wait() - sent
                patience.work = sent - self._came
            elif not more:
                patience.got(self._reply.came)
                self._ended()
                break
        return self._last or b""

    def _forward(self, outlet: Outlet, account: Account, chunk: bytes) -> bool:
        """Send one chunk on where the client takes it at once, else keep it; whether the next one may come."""
        patience = self._patience
        self._came = now = patience.got()
        shown, content = self._take(chunk)
        if content:
            account.last_at = now
        if shown and not outlet.put(shown):
            self._unsent = shown
            return False
        patience.work = patience.wait() - now
        return self._last is None and self._fault is None

    def _take(self, chunk: bytes) -> tuple[bytes, bool]:
        """The part of the chunk's events to show, and whether there was content among them."""
        if not self._splitter.rest and self._last is None and self._meter.follows(chunk):
            return chunk, True
        try:
            events = self._splitter.feed(chunk)
        except EventTooLarge:
            raise Broken("an event of the engine did not end") from None
        shown: list[bytes] = []
        content = False
        for event in events:
            if self._last is not None:
                self._last += event.raw
                continue
            look = self._meter.look(event.data)
            if look is Look.DONE:
                self._last = event.raw
                continue
            if look is Look.ERROR:
                self._fault = self._engine_fault()
                break
            content = content or look is Look.CONTENT
            if look is Look.USAGE:
                self.usage += event.raw
            else:
                shown.append(event.raw)
        return (shown[0] if len(shown) == 1 else b"".join(shown)), content

    def _ended(self) -> None:
        """The body ended without an event that says so."""
        rest = self._splitter.rest
        if (data_of(rest) or b"").strip() == DONE:
            self._meter.look(DONE)
            self._last = rest
        elif not self._meter.finished:
            raise Broken("the engine ended its answer early")
        else:
            self._last = rest

    def _engine_fault(self) -> EngineFault:
        value = self._meter.fault or {}
        status = status_of(value)
        return EngineFault(status, orjson.dumps({"error": error_object(dict(value), status)}))


def error_event(body: bytes) -> bytes:
    """An error as the last event of a stream, as OpenAI writes it. No `[DONE]` follows: the answer is not complete."""
    return b"data: " + body + b"\n\n"
