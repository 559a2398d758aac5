"""Answers: which may be stored, how a stream becomes one, and how one is replayed as JSON or as a stream."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import orjson
from pydantic import JsonValue

from core.likeness import Likeness
from core.once import once

Answer = Mapping[str, JsonValue]
Node = dict[str, JsonValue]
Layer = Literal["exact", "semantic"]

COMPLETE = frozenset({"stop", "tool_calls", "function_call"})
DONE = b"[DONE]"
# Events of a stream that are collected together; of those that differ in their text alone.
TOGETHER, TEXTS = 32, 1024
# Where the engine's blocks lie and how long it took: nothing that a later client may act on.
ONE_RUN = ("kv_transfer_params", "ec_transfer_params", "metrics")
# Fragments of these fields repeat or replace; every other text is continued.
NOT_CONTINUED = frozenset({"index", "type", "role", "id", "finish_reason", "stop_reason"})


@dataclass
class Hit:
    """A stored answer that may be served. It is not changed; frozen, `object.__setattr__` would set each field.

    `body`: the completion as JSON bytes. `age_s`: seconds since it was stored. `similarity`: 1.0 in the exact layer.
    `tier`: which tier made it.
    """

    id: str
    age_s: float
    body: bytes
    layer: Layer
    similarity: float
    tier: str

    @once
    def answer(self) -> Answer:
        """The completion object."""
        return cast("Answer", orjson.loads(self.body))


def refusal_to_store(answer: object) -> str | None:
    """Why `answer` must not be stored, or None: only complete, successful, non-empty completions are."""
    if not isinstance(answer, dict) or answer.get("error") is not None:
        return "error"
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        return "no_choices"
    for choice in choices:
        if not isinstance(choice, dict) or choice.get("finish_reason") is None:
            return "incomplete"
        if choice["finish_reason"] not in COMPLETE:
            return str(choice["finish_reason"]) if choice["finish_reason"] in ("length", "content_filter") else "failed"
        if not _says_something(choice):
            return "empty"
    return None


def lasting(answer: Answer) -> Answer:
    """The answer without what belongs to the one run of the engine that made it."""
    for name in ONE_RUN:
        if answer.get(name) is not None:
            return {name: value for name, value in answer.items() if name not in ONE_RUN or value is None}
    return answer


def replayable(answer: Answer) -> bool:
    """Whether `as_json` and `as_sse` can send it: a completion, also one that must not be stored."""
    choices = answer.get("choices")
    return isinstance(choices, list) and bool(choices) and all(_is_whole(choice) for choice in choices)


def _is_whole(choice: object) -> bool:
    if not isinstance(choice, dict) or choice.get("finish_reason") is None:
        return False
    return isinstance(choice.get("message"), dict) or isinstance(choice.get("text"), str)


def _says_something(choice: Answer) -> bool:
    message = choice.get("message")
    if message is None:
        text = choice.get("text")
        return isinstance(text, str) and bool(text.strip())
    if not isinstance(message, dict):
        return False
    content = message.get("content")
    spoken = content.strip() if isinstance(content, str) else content
    return bool(spoken or message.get("tool_calls") or message.get("function_call") or message.get("refusal"))


def as_json(hit: Hit) -> bytes:
    """The body of a non-streamed answer."""
    return hit.body


def as_sse(hit: Hit, *, include_usage: bool) -> list[bytes]:
    """The events of a streamed answer, in order, each with its blank line.

    Chat: per choice a role chunk, a chunk with everything that was said, a finish chunk. Completions: a text chunk and
    a finish chunk. Then the usage chunk where it is asked for and known, and `[DONE]`.
    """
    answer = hit.answer
    chat = answer.get("object") != "text_completion"
    frame: Node = {name: value for name, value in answer.items() if name not in ("choices", "usage")}
    frame["object"] = "chat.completion.chunk" if chat else "text_completion"
    if include_usage:
        frame["usage"] = None
    split = _chat_chunks if chat else _text_chunks
    choices = cast("list[Node]", answer["choices"])
    chunks: list[Node] = [frame | {"choices": [part]} for choice in choices for part in split(choice)]
    if include_usage and answer.get("usage") is not None:
        chunks.append(frame | {"choices": [], "usage": answer["usage"]})
    return [*(b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks), b"data: [DONE]\n\n"]


def _chat_chunks(choice: Node) -> list[Node]:
    message = cast("Node", choice["message"])
    said: Node = {name: value for name, value in message.items() if name != "role" and value not in (None, [], "")}
    if calls := cast("list[Node]", said.get("tool_calls", [])):
        said["tool_calls"] = [{"index": number} | call for number, call in enumerate(calls)]
    opening: Node = {"role": message.get("role", "assistant"), "content": ""}
    rest: Node = {name: value for name, value in choice.items() if name not in ("message", "finish_reason", "index")}
    index = choice.get("index", 0)
    return [
        {"index": index, "delta": opening, "finish_reason": None},
        {"index": index, "delta": said, "finish_reason": None} | rest,
        {"index": index, "delta": {}, "finish_reason": choice["finish_reason"]},
    ]


def _text_chunks(choice: Node) -> list[Node]:
    end: Node = {"index": choice.get("index", 0), "text": "", "logprobs": None}
    return [choice | {"finish_reason": None}, end | {"finish_reason": choice["finish_reason"]}]


class StreamAssembler:
    """Collects the events of one streamed answer into the completion object that JSON would have carried.

    `limit` bounds what is collected, in bytes of event data; a longer answer is given up.
    """

    def __init__(self, limit: int = 8 * 1024**2) -> None:
        self._room = limit
        self._frame: Node = {}
        self._choices: dict[int, Node] = {}
        self._waiting: list[JsonValue] = []
        # Texts of events that are otherwise like one another.
        self._like: Likeness | None = None
        self._texts: list[bytes] = []
        self._problem: str | None = None
        self._done = False

    def feed(self, event_data: bytes) -> None:
        """Takes the data of one event, without `data:` and line ends."""
        if event_data.strip() == DONE:
            self._done = True
            return
        try:
            chunk = orjson.loads(event_data)
        except orjson.JSONDecodeError:
            self._give_up("malformed")
            return
        self.take(chunk, len(event_data))

    def take(self, chunk: JsonValue, size: int) -> None:
        """Takes one event that has been parsed already, of so many bytes. Parts of it are kept: it must not change."""
        if self._problem is not None:
            return
        self._room -= size
        if self._room < 0:
            self._give_up("too_large")
            return
        if self._texts:
            self._join()
        self._waiting.append(chunk)
        if len(self._waiting) >= TOGETHER:
            self._merge()

    def follow(self, like: Likeness, text: bytes) -> None:
        """Takes one event that has this text, as JSON writes it, and is otherwise what `like` says."""
        if self._problem is not None:
            return
        self._room -= like.size + len(text)
        if self._room < 0:
            self._give_up("too_large")
            return
        if like is not self._like or len(self._texts) >= TEXTS:
            self._join()
            self._like = like
        self._texts.append(text)

    def _join(self) -> None:
        """Make one event of those that differ in their text: it says the same."""
        texts, self._texts = self._texts, []
        if not texts or self._like is None:
            return
        try:
            self._waiting.append(orjson.loads(self._like.data(b"".join(texts))))
        except orjson.JSONDecodeError:
            self._give_up("malformed")

    def _merge(self) -> None:
        """Add what waits. Several events at once cost half of what they cost one by one between two waits."""
        self._join()
        waiting, self._waiting = self._waiting, []
        try:
            for chunk in waiting:
                self._take(cast("Node", chunk))
        except (ValueError, TypeError, AttributeError, KeyError):
            self._give_up("malformed")

    def finish(self, done: bool) -> tuple[Answer | None, str | None]:
        """The whole answer, or None and why it must not be stored; `done`: the stream ended with `[DONE]`."""
        self._merge()
        if self._problem is not None:
            return None, self._problem
        if not (done or self._done):
            return None, "incomplete_stream"
        if any(choice.get("finish_reason") is None for choice in self._choices.values()):
            return None, "incomplete_stream"
        answer = self._answer()
        reason = refusal_to_store(answer)
        return (answer, None) if reason is None else (None, reason)

    def whole(self) -> Answer | None:
        """The whole answer, also where it must not be stored; None where it is not complete."""
        self._merge()
        if self._problem is not None or not self._choices:
            return None
        if any(choice.get("finish_reason") is None for choice in self._choices.values()):
            return None
        return self._answer()

    def so_far(self) -> bytes | None:
        """One event that says what all events up to here said, without usage; b"" where they said nothing.

        None where the answer was given up.
        """
        self._merge()
        if self._problem is not None:
            return None
        if not self._choices:
            return b""
        frame: Node = {name: value for name, value in self._frame.items() if name != "usage"}
        open_end: Node = {"finish_reason": None}
        choices = [open_end | choice for _, choice in sorted(self._choices.items())]
        return b"data: %b\n\n" % orjson.dumps(frame | {"choices": choices})

    def _answer(self) -> Node:
        answer = self._frame | {"choices": [_whole(choice) for _, choice in sorted(self._choices.items())]}
        chat = any("message" in choice for choice in cast("list[Node]", answer["choices"]))
        answer["object"] = "chat.completion" if chat else "text_completion"
        return answer

    def _give_up(self, reason: str) -> None:
        self._problem = self._problem or reason
        self._choices.clear()
        self._waiting.clear()
        self._texts.clear()

    def _take(self, chunk: Node) -> None:
        if chunk.get("error") is not None:
            self._give_up("error")
            return
        for name, value in chunk.items():
            if name != "choices" and value is not None:
                self._frame[name] = value
        choices: Any = chunk.get("choices") or ()
        for part in choices:
            index = part.get("index", 0)
            held = self._choices.get(index)
            if held is None:
                held = self._choices[index] = {}
            _continue(held, part)


def _whole(choice: Node) -> Node:
    """A collected choice as JSON would have carried it: `delta` is the message, tool calls carry no index."""
    if "delta" not in choice:
        return choice
    message: Node = {"role": "assistant", "content": None} | cast("Node", choice["delta"] or {})
    calls = cast("list[Node]", message.get("tool_calls") or [])
    if calls:
        ordered = sorted(calls, key=lambda call: cast("int", call.get("index", 0)))
        message["tool_calls"] = [{name: value for name, value in call.items() if name != "index"} for call in ordered]
    message["content"] = message["content"] or None
    rest: Node = {name: value for name, value in choice.items() if name != "delta"}
    return {"index": rest.pop("index", 0), "message": message} | rest


def _continue(whole: Node, part: Node) -> None:
    """Adds a fragment: texts and lists are continued, objects are continued field by field, the rest is replaced."""
    for name, value in part.items():
        if value is None:
            whole.setdefault(name, None)
        elif isinstance(value, str):
            held = whole.get(name)
            if isinstance(held, str):
                whole[name] = (value or held) if name in NOT_CONTINUED else held + value
            else:
                whole[name] = value
        elif isinstance(value, dict | list):
            _continue_nested(whole, name, value)
        else:
            whole[name] = value


def _continue_nested(whole: Node, name: str, value: JsonValue) -> None:
    held = whole.get(name)
    if held is None:
        whole[name] = _opened(value)
    elif isinstance(held, dict) and isinstance(value, dict):
        _continue(held, value)
    elif isinstance(held, list) and isinstance(value, list):
        _extend(held, value)
    else:
        whole[name] = value


def _opened(value: JsonValue) -> JsonValue:
    """A first fragment, collected like the ones that follow it: it may itself hold several for one index."""
    if isinstance(value, list):
        items: list[JsonValue] = []
        _extend(items, value)
        return items
    if isinstance(value, dict):
        fields: Node = {}
        _continue(fields, value)
        return fields
    return value


def _extend(held: list[JsonValue], items: list[JsonValue]) -> None:
    """Appends; an object whose `index` is already there continues that one (fragments of tool calls)."""
    for item in items:
        index = item.get("index") if isinstance(item, dict) else None
        same = next((old for old in held if isinstance(old, dict) and old.get("index") == index), None)
        if index is not None and isinstance(same, dict) and isinstance(item, dict):
            _continue(same, item)
        else:
            held.append(item)
