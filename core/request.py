"""An inference request, parsed once at the edge and read by cache, router and gateway."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import orjson
from pydantic import JsonValue

from core.errors import BadRequest
from core.once import once

RouteKind = Literal["chat", "completion"]
Body = Mapping[str, JsonValue]

# The head and the tail of what is longer are looked at, in characters: bounded work whatever the prompt's size.
WINDOW_CHARS = 8000
_TEXT = (None, "text", "input_text", "refusal")
_TOOL_ROLES = ("tool", "function")
_TOOLS = frozenset({"tools", "functions"})
_PLAIN = frozenset({"role", "content"})
# What is nested deeper can be read but not written again: orjson stops at 254 levels.
MAX_DEPTH = 200


@dataclass
class InferenceRequest:
    """A chat or text completion request. `body` is the client's JSON object, minus what `parse` settles.

    Nothing of it is changed once it is made; frozen, every field would be set through `object.__setattr__`.
    """

    kind: RouteKind
    body: Body

    @once
    def model(self) -> str:
        """What the client asked for: `auto`, a tier, a model or an adapter."""
        return str(self.body["model"])

    @once
    def stream(self) -> bool:
        """Whether the answer is to be streamed."""
        return self.body.get("stream") is True

    @once
    def include_usage(self) -> bool:
        """Whether a streamed answer ends with a usage chunk."""
        options = self.body.get("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    @once
    def messages(self) -> Sequence[Mapping[str, JsonValue]]:
        """The chat messages; empty for a text completion."""
        return cast("Sequence[Mapping[str, JsonValue]]", self.body.get("messages", ())) if self.kind == "chat" else ()

    @once
    def user_text(self) -> str | None:
        """Text of the last message where a user wrote it (content parts joined by newlines); else None.

        A text completion's prompt where it is one string.
        """
        if self.kind == "completion":
            prompt = self.body.get("prompt")
            return prompt if isinstance(prompt, str) else None
        last = self.messages[-1]
        return content_text(last.get("content")) if last.get("role") == "user" else None

    @once
    def has_images(self) -> bool:
        """Whether any message carries a content part that is not text."""
        for message in self.messages:
            content = message.get("content")
            if isinstance(content, list) and any(isinstance(p, dict) and p.get("type") not in _TEXT for p in content):
                return True
        return False

    @once
    def has_tools(self) -> bool:
        """Whether tools are offered, or were called earlier in the conversation."""
        if self.body.get("tools") or self.body.get("functions"):
            return True
        for message in self.messages:
            if message.get("role") in _TOOL_ROLES or message.get("tool_calls") or message.get("function_call"):
                return True
        return False

    @once
    def only_text(self) -> bool:
        """Whether it is text and nothing else: certainly without images and tools."""
        if not _TOOLS.isdisjoint(self.body):
            return False
        for message in self.messages:
            # Whoever names a tool, or was one, has further fields.
            if not (isinstance(message.get("content"), str) and _PLAIN.issuperset(message)):
                return False
            if message["role"] in _TOOL_ROLES:
                return False
        return True

    @once
    def turns(self) -> "Turns":
        """What the conversation is known by. Worked out once: it reads the whole history."""
        messages = self.messages
        users = [index for index, message in enumerate(messages) if message.get("role") == "user"]
        if not users:
            return Turns(None, None)
        # After the assistant's or a tool's message the last user turn is the previous one.
        ends = users[-1:] if users[-1] < len(messages) - 1 else users[-2:]
        digest, start, found = hashlib.sha256(), 0, []
        for end in ends:
            written = orjson.dumps(
                [_brief(message) for message in messages[start : end + 1]], option=orjson.OPT_SORT_KEYS
            )
            # Without the brackets, so that parts add up to the whole.
            digest.update(memoryview(written)[1:-1])
            found.append(digest.digest())
            digest.update(b",")
            start = end + 1
        opening = len(users) == 1 and ends[0] == len(messages) - 1
        return Turns(None if opening else found[0], found[-1])


def _brief(message: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """The message, of a long text only its length, head and tail: that is name enough for a conversation."""
    content = message.get("content")
    if not isinstance(content, str) or len(content) <= WINDOW_CHARS:
        return message
    return {**message, "content": f"{len(content)} {window(content)[0]}"}


@dataclass(frozen=True, slots=True)
class Turns:
    """Digests of a conversation's messages: up to the user's previous turn, and up to the last one.

    `previous` is the `last` of the request before, as clients send the whole history each time. None: no such turn.
    """

    previous: bytes | None
    last: bytes | None


def content_text(content: JsonValue) -> str | None:
    """The text of a message's content: a string, or its text parts joined by newlines; None where there is none."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    parts = [part if isinstance(part, str) else part.get("text") for part in content if isinstance(part, str | dict)]
    texts = [part for part in parts if isinstance(part, str)]
    return "\n".join(texts) if texts else None


def window(text: str, limit: int = WINDOW_CHARS) -> tuple[str, bool]:
    """The text, or the head and tail of it in `limit` characters, and whether anything was left out."""
    if len(text) <= limit:
        return text, False
    half = limit // 2
    return f"{text[:half]}\n{text[-half:]}", True


def parse(raw: bytes, kind: RouteKind) -> InferenceRequest:
    """The request in a JSON body.

    `max_completion_tokens` wins over `max_tokens` where both are given, as in vLLM. Raises BadRequest with the
    offending parameter; unknown fields are kept.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object", code="invalid_json")
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _deeper(body, MAX_DEPTH):
        raise BadRequest(f"the body is nested deeper than {MAX_DEPTH} levels", code="invalid_json")
    model, stream, options = body.get("model"), body.get("stream"), body.get("stream_options")
    if not (isinstance(model, str) and model):
        raise _bad("model", "must be a non-empty string")
    if not isinstance(stream, bool | None):
        raise _bad("stream", "must be true or false")
    if not isinstance(options, dict | None):
        raise _bad("stream_options", "must be an object")
    if "kv_transfer_params" in body:
        raise _bad("kv_transfer_params", "is not accepted from clients")
    if kind == "chat":
        _check_messages(body.get("messages"))
    elif body.get("prompt") is None:
        raise _bad("prompt", "is required")
    if body.get("max_completion_tokens") is not None and "max_tokens" in body:
        del body["max_tokens"]
    return InferenceRequest(kind, body)


def _deeper(value: JsonValue, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    return any(isinstance(item, dict | list) for item in level)


def _check_messages(messages: JsonValue) -> None:
    if not (isinstance(messages, list) and messages):
        raise _bad("messages", "must be a non-empty array")
    for index, message in enumerate(messages):
        if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
            raise _bad(f"messages[{index}]", "must be an object with a role")


def _bad(param: str, message: str) -> BadRequest:
    return BadRequest(f"{param} {message}", param=param)
