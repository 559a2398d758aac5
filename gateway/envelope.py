"""The one shape of an error: `{"error": {"message", "type", "param", "code"}}`, ours and the engine's alike."""

import math
from collections.abc import Mapping

import orjson
from pydantic import JsonValue

from core.errors import MethodNotAllowed, RequestError, UpstreamError

Headers = list[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
# What an engine says in plain text is shown up to here.
MAX_TEXT = 500


class EngineFault(UpstreamError):
    """An error that the engine itself answered: shown with its own status and body, in our shape.

    `retryable`: another replica may do better, so the engine was full or broken, not asked something wrong.
    """

    def __init__(self, status: int, raw: bytes, retry_after: float | None = None) -> None:
        # A key that the tier refuses is the operator's fault, and must not look like the client's.
        hidden = status in (401, 403) or not 400 <= status <= 599
        message = f"the tier answered {status}"
        super().__init__(message, code="upstream_auth" if status in (401, 403) else None, retry_after=retry_after)
        self.engine_status = status
        self.status = 502 if hidden else status
        self.raw = orjson.dumps(envelope(message, self.type, None, self.code)) if hidden else normalised(status, raw)
        self.retryable = status in (429, 502, 503, 504)


def envelope(message: str, kind: str, param: str | None = None, code: JsonValue = None) -> dict[str, JsonValue]:
    """The error object as a JSON value."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def body(error: RequestError) -> bytes:
    """The response body of an error."""
    if isinstance(error, EngineFault):
        return error.raw
    return orjson.dumps(envelope(error.message, error.type, error.param, error.code))


def headers(error: RequestError) -> Headers:
    """The response headers that belong to an error: `retry-after` in whole seconds, `x-forebay-reason`, `allow`."""
    found: Headers = []
    if error.retry_after is not None:
        found.append((b"retry-after", b"%d" % max(1, math.floor(error.retry_after + 0.5))))
    if error.reason is not None:
        found.append((b"x-forebay-reason", error.reason.encode("ascii")))
    if isinstance(error, MethodNotAllowed):
        found.append((b"allow", error.allow.encode("ascii")))
    if error.status == 401:
        found.append((b"www-authenticate", b"Bearer"))
    return found


def normalised(status: int, raw: bytes) -> bytes:
    """An engine's error body in our shape; one that has it already is returned as it is.

    Understood: the OpenAI envelope (missing members are filled in), vLLM's older flat object, FastAPI's `detail`, and
    plain text.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return orjson.dumps(envelope(_text(raw, status), _kind(status), None, status))
    inner = value.get("error") if isinstance(value, dict) else None
    if (
        isinstance(inner, dict)
        and {"message", "type", "param", "code"} <= inner.keys()
        and isinstance(inner["type"], str)
    ):
        return raw
    return orjson.dumps({"error": error_object(value, status)})


def error_object(value: JsonValue, status: int) -> dict[str, JsonValue]:
    """The four members of an error, from whatever shape an engine gave it."""
    if not isinstance(value, Mapping):
        value = {"message": str(value)} if value else {}
    inner = value.get("error")
    if isinstance(inner, str):
        inner = {"message": inner}
    source = inner if isinstance(inner, Mapping) else value
    message = source.get("message") or source.get("detail")
    if message is None:
        message = f"the engine answered {status}"
    kind = source.get("type")
    return {
        "message": message if isinstance(message, str) else orjson.dumps(message).decode()[:MAX_TEXT],
        "type": kind if isinstance(kind, str) else _kind(status),
        "param": source.get("param"),
        "code": source.get("code", status),
    }


def is_error(value: object) -> bool:
    """Whether a JSON object that came where an answer or a chunk was due is an error."""
    return isinstance(value, dict) and (value.get("error") is not None or value.get("object") == "error")


def status_of(value: Mapping[str, JsonValue]) -> int:
    """The HTTP status inside an error object; 502 where it names none."""
    inner = value.get("error")
    code = inner.get("code") if isinstance(inner, Mapping) else value.get("code")
    if isinstance(code, str) and code.isdigit():
        code = int(code)
    return code if isinstance(code, int) and 400 <= code <= 599 else 502


def _kind(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "upstream_error"


def _text(raw: bytes, status: int) -> str:
    text = raw[:MAX_TEXT].decode("utf-8", "replace").strip()
    return text or f"the engine answered {status}"
