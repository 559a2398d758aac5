"""Headers of the contract: on every answer, on debug, and towards the tier."""

from core.clock import Clock
from gateway.account import Account
from gateway.envelope import Headers
from gateway.exchange import Exchange

# What of the client's request goes on to the engine. Everything else stays here: keys and cookies above all.
_PASSED = (
    b"accept", b"user-agent", b"traceparent", b"tracestate", b"openai-beta", b"anthropic-version", b"anthropic-beta",
)  # fmt: skip
STREAM_HEADERS: Headers = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
EVENT_STREAM: Headers = [*STREAM_HEADERS, (b"content-type", b"text/event-stream; charset=utf-8")]
# Encoded once: these values are on every answer.
_VALUES = {name: name.encode() for name in ("none", "small", "frontier", "miss", "bypass", "hit-exact", "hit-semantic")}


def answer_headers(exchange: Exchange, account: Account, clock: Clock) -> Headers:
    """The headers of every answer under /v1, with the debug headers where they are asked for."""
    headers: Headers = [
        (b"x-request-id", exchange.request_id.encode("ascii")),
        (b"x-forebay-cache", _VALUES[account.cache]),
        (b"x-forebay-tier", _VALUES[account.tier]),
    ]
    if exchange.headers.get(b"x-forebay-debug") == b"1":
        headers += debug_headers(account, clock.monotonic())
    return headers


def hit_headers(age_s: float, entry: str) -> Headers:
    """The headers of an answer that was not made for this request: its age, and the entry to name in complaints."""
    return [(b"age", b"%d" % int(age_s)), (b"x-forebay-cache-id", entry.encode("ascii"))]


def debug_headers(account: Account, now: float) -> Headers:
    """What was decided and how long it took, up to `now`; values that are not known are left out."""
    overhead = max(0.0, now - account.arrived - account.queue_s - account.upstream_s - account.held_s)
    known: list[tuple[bytes, str | None]] = [
        (b"x-forebay-similarity", None if account.similarity is None else f"{account.similarity:.4f}"),
        (b"x-forebay-guard", account.guard),
        (b"x-forebay-complexity", None if account.complexity is None else f"{account.complexity:.4f}"),
        (b"x-forebay-route-reason", account.route_reason),
        (b"x-forebay-confidence", None if account.confidence is None else f"{account.confidence:.4f}"),
        (b"x-forebay-queue-ms", f"{account.queue_s * 1000:.2f}"),
        (b"x-forebay-overhead-ms", f"{overhead * 1000:.2f}"),
    ]
    return [(name, value.encode("ascii", "replace")) for name, value in known if value is not None]


def upstream_headers(exchange: Exchange, authorization: str | None, content_type: str) -> dict[str, str]:
    """The headers of the call to an engine. `authorization` is the tier's own, never the client's."""
    headers = {
        "content-type": content_type,
        "x-request-id": exchange.request_id,
        # A compressed answer would have to be taken apart to be read.
        "accept-encoding": "identity",
    }
    if authorization is not None:
        headers["authorization"] = authorization
    given = exchange.headers
    for name in _PASSED:
        value = given.get(name)
        if value is not None:
            headers[name.decode("ascii")] = value.decode("latin-1")
    return headers
