"""What the scripted engine is told to do with a request."""

from collections.abc import Mapping
from typing import Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, JsonValue


class _Record(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, val_json_bytes="base64", ser_json_bytes="base64"
    )


class ToolCall(_Record):
    """One call the answer makes."""

    name: str
    """Function name."""
    arguments: str
    """Arguments as the exact string that is sent, valid JSON or not."""
    id: str | None = None
    """Call id; null makes one from the prompt."""


class Script(_Record):
    """One answer, good or bad. Durations in seconds. The default is an immediate, complete, successful answer."""

    text: str | None = None
    """The answer; null makes one from the prompt, with characters of two, three and four bytes in it."""
    tokens: int | None = Field(None, ge=0)
    """Length of the answer in tokens; null takes the text as it is."""
    reasoning: str | None = None
    """Reasoning sent before the answer."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls made instead of a text."""
    finish_reason: str | None = None
    """null says stop, length or tool_calls as the answer ended."""
    logprob: float | None = Field(None, le=0)
    """Log-probability of every token; null makes longer tokens less likely."""
    usage: Literal["asked", "always", "never"] = "asked"
    """Whether a stream ends with a usage chunk."""

    ttft: float = Field(0.0, ge=0)
    """From the request to the first token; without streaming, part of the time to the answer."""
    itl: float = Field(0.0, ge=0)
    """Between two tokens; without streaming, part of the time to the answer."""
    spread: float = Field(0.0, ge=0, le=3)
    """Both times are multiplied by a log-normal factor of median 1 and this sigma, drawn once per request."""

    status: int = Field(200, ge=200, le=599)
    """HTTP status; 400 and above answer with `error`."""
    error: JsonValue = None
    """Body of an error; null is the one vLLM would write."""
    headers: Mapping[str, str] = Field(default_factory=dict)
    """Response headers to add or replace, such as retry-after."""
    body: bytes | None = None
    """The whole response body as it is, base64 in JSON; null builds it."""

    error_event_after: int | None = Field(None, ge=0)
    """A stream turns into an error event after so many tokens; 0 makes it the first event."""
    end: Literal["done", "no_done", "no_finish"] = "done"
    """no_done leaves `[DONE]` out of a stream; no_finish the chunk with the finish reason as well."""
    hang: bool = False
    """Read the request and never answer."""
    cut_after_tokens: int | None = Field(None, ge=0)
    """Break off a stream after so many tokens, between two chunks."""
    cut_after_bytes: int | None = Field(None, ge=0)
    """Break off after so many bytes of the encoded body, within a chunk where it falls so."""
    cut: Literal["close", "reset", "shut", "stall"] = "close"
    """How to break off: FIN; RST; FIN of the sending side only; or keep the connection and send nothing more."""

    framing: Literal["auto", "chunked", "length", "close"] = "auto"
    """Body framing; auto is content-length for JSON and chunked for a stream, as vLLM does."""
    gzip: bool = False
    """Encode the body with gzip, whatever the client accepts."""
    pieces: tuple[int, ...] = ()
    """Sizes in bytes, used in turn, that the body is cut into; empty sends one chunk per event."""
    piece_delay: float = Field(0.0, ge=0)
    """Between two pieces: a slow body."""


def script_of(headers: Mapping[str, str], body: Mapping[str, JsonValue]) -> Script | None:
    """The script a request carries, or None.

    In order: the header `x-script`, the body's field `script`, the last message's field `script`. Raises ValueError
    where it is not one.
    """
    if "x-script" in headers:
        return Script.model_validate_json(headers["x-script"])
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    for holder in (body, last):
        if isinstance(holder, dict) and "script" in holder:
            # By way of JSON, so that base64 is read as in the header.
            return Script.model_validate_json(orjson.dumps(holder["script"]))
    return None
