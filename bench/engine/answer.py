"""What the scripted engine says: a deterministic function of the prompt, in vLLM's shapes."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import orjson
from pydantic import JsonValue

from bench.engine.script import Script, ToolCall

Kind = Literal["chat", "completion"]
Json = Mapping[str, JsonValue]

_TOKEN = re.compile(r"\s*\S+|\s+$")
_CREATED = 1_700_000_000
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Choice:
    """One of the `n` answers: its tokens, or the calls it makes."""

    index: int
    tokens: tuple[str, ...]
    reasoning: tuple[str, ...]
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    stop_reason: str | None

    @property
    def text(self) -> str:
        """The answer as one string."""
        return "".join(self.tokens)

    @property
    def size(self) -> int:
        """Tokens generated."""
        calls = sum(len(_pieces(call.arguments)) + 1 for call in self.tool_calls)
        return len(self.tokens) + len(self.reasoning) + calls


@dataclass(frozen=True)
class Answer:
    """All choices of one request, and what surrounds them."""

    kind: Kind
    id: str
    model: str
    prompt_tokens: int
    choices: tuple[Choice, ...]
    logprobs: bool
    logprob: float | None
    usage_chunk: bool
    running_usage: bool

    @property
    def completion_tokens(self) -> int:
        """Tokens generated over all choices."""
        return sum(choice.size for choice in self.choices)

    def usage(self, completion_tokens: int | None = None) -> dict[str, JsonValue]:
        """The usage record, whole or after so many tokens."""
        count = self.completion_tokens if completion_tokens is None else completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + count,
            "completion_tokens": count,
            "prompt_tokens_details": None,
        }


def answer(kind: Kind, body: Json, script: Script, request_id: str) -> Answer:
    """The answer to a valid body."""
    options = body.get("stream_options")
    asked = isinstance(options, dict) and options.get("include_usage") is True
    prompts = _prompts(kind, body)
    copies = cast("int", body.get("n") or 1)
    return Answer(
        kind=kind,
        id=request_id,
        model=str(body.get("model")),
        prompt_tokens=sum(count_tokens(prompt) for prompt in prompts),
        choices=tuple(
            _choice(body, script, prompt, at * copies + copy)
            for at, prompt in enumerate(prompts)
            for copy in range(copies)
        ),
        logprobs=bool(body.get("logprobs")) or body.get("logprobs") == 0,
        logprob=script.logprob,
        usage_chunk=script.usage == "always" or (asked and script.usage == "asked"),
        running_usage=isinstance(options, dict) and asked and options.get("continuous_usage_stats") is True,
    )


def count_tokens(text: str) -> int:
    """Words, which is what a token is here."""
    return len(_TOKEN.findall(text))


def whole(said: Answer) -> bytes:
    """The JSON body of an answer that is not streamed."""
    return orjson.dumps(
        {
            "id": said.id,
            "object": "chat.completion" if said.kind == "chat" else "text_completion",
            "created": _CREATED,
            "model": said.model,
            "choices": [_chat_choice(said, c) if said.kind == "chat" else _text_choice(said, c) for c in said.choices],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": said.usage(),
            "kv_transfer_params": None,
        }
    )


def events(said: Answer) -> Iterator[tuple[bytes, int]]:
    """The events of a streamed answer, each with the tokens it carries, without the usage chunk and `[DONE]`.

    The choices take turns, as they do in one batch of the engine.
    """
    if said.kind == "chat":
        for choice in said.choices:
            yield _event(said, choice.index, {"role": "assistant", "content": ""}, 0, first=True), 0
    turns = [_deltas(said.kind, choice) for choice in said.choices]
    sent, place = 0, [0] * len(turns)
    while any(at < len(deltas) for at, deltas in zip(place, turns, strict=True)):
        for choice, deltas in zip(said.choices, turns, strict=True):
            at = place[choice.index]
            if at == len(deltas):
                continue
            place[choice.index] += 1
            delta, tokens = deltas[at]
            sent += tokens
            ends = choice if at + 1 == len(deltas) else None
            offset = sum(map(len, choice.tokens[:at])) if said.logprobs else 0
            yield _event(said, choice.index, delta, sent, offset=offset, ends=ends), tokens


def usage_event(said: Answer) -> bytes:
    """The chunk with the usage of the whole answer and no choices."""
    return _data({**_head(said), "choices": [], "usage": {k: v for k, v in said.usage().items() if v is not None}})


def error_body(status: int, message: str, param: str | None = None) -> dict[str, JsonValue]:
    """An error as vLLM writes it."""
    types = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}
    kind = types.get(
        status, "Too Many Requests" if status == 429 else "Service Unavailable" if status == 503 else "Error"
    )
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def error_event(body: JsonValue) -> bytes:
    """An error in the middle of a stream, as vLLM writes it."""
    return _data(body)


def _data(value: JsonValue) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def _prompts(kind: Kind, body: Json) -> list[str]:
    if kind == "chat":
        messages = cast("list[dict[str, JsonValue]]", body["messages"])
        plain = [{key: value for key, value in message.items() if key != "script"} for message in messages]
        return [orjson.dumps(plain, option=orjson.OPT_SORT_KEYS).decode()]
    prompt = body["prompt"]
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return [item if isinstance(item, str) else " ".join(map(str, cast("list[int]", item))) for item in prompt]
    return [" ".join(map(str, cast("list[int]", prompt)))]


def _last_words(body: Json, prompt: str) -> str:
    messages = body.get("messages")
    if not isinstance(messages, list):
        return prompt
    content = cast("dict[str, JsonValue]", messages[-1]).get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        content = " ".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _default_text(body: Json, prompt: str, index: int) -> str:
    digest = hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    number = f"{digest}-{index}" if index else digest
    words = " ".join(_last_words(body, prompt).split()[:8])
    # Characters of two, three and four bytes, so that a relay that decodes chunks is found out.
    return f"Answer {number} of {body.get('model')} to “{words}”: naïve, 3 €, done 🦫."


def _choice(body: Json, script: Script, prompt: str, index: int) -> Choice:
    text = script.text if script.text is not None else _default_text(body, prompt, index)
    tokens = [] if script.tool_calls else _TOKEN.findall(text)
    finish, stop_reason = "tool_calls" if script.tool_calls else "stop", None
    if (hit := _first_stop(text, body.get("stop"))) and not script.tool_calls:
        tokens, stop_reason = _TOKEN.findall(text[: text.index(hit)]), hit
    limit = cast("int | None", body.get("max_completion_tokens") or body.get("max_tokens"))
    wanted = script.tokens
    if wanted is None and body.get("ignore_eos") is True and limit:
        wanted = limit
    if wanted is not None:
        tokens = (tokens + [f" word{number}" for number in range(len(tokens), wanted)])[:wanted]
    if limit is not None and limit <= len(tokens) and (limit < len(tokens) or wanted is not None):
        tokens, finish, stop_reason = tokens[:limit], "length", None
    return Choice(
        index=index,
        tokens=tuple(tokens),
        reasoning=tuple(_pieces(script.reasoning or "")),
        tool_calls=script.tool_calls,
        finish_reason=script.finish_reason or finish,
        stop_reason=stop_reason,
    )


def _first_stop(text: str, stop: JsonValue) -> str | None:
    stops = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    found = [(text.index(item), item) for item in stops if isinstance(item, str) and item and item in text]
    return min(found)[1] if found else None


def _pieces(text: str) -> list[str]:
    return _TOKEN.findall(text)


def _deltas(kind: Kind, choice: Choice) -> list[tuple[Json, int]]:
    """What each event adds, with its tokens; the last one is sent together with the finish reason."""
    if kind == "completion":
        deltas: list[tuple[Json, int]] = [({"text": token}, 1) for token in choice.tokens]
    else:
        deltas = [({"reasoning": piece}, 1) for piece in choice.reasoning]
        deltas += [({"content": token}, 1) for token in choice.tokens]
        for number, call in enumerate(choice.tool_calls):
            deltas.append(({"tool_calls": [_call(call, choice.index, number, stream=True)]}, 1))
            deltas += [
                ({"tool_calls": [{"index": number, "function": {"arguments": piece}}]}, 1)
                for piece in _pieces(call.arguments)
            ]
    if choice.finish_reason != "length" or not deltas:
        # The end-of-sequence token has no text.
        deltas.append(({"text": ""} if kind == "completion" else {"content": ""}, 0))
    return deltas


def _call(call: ToolCall, choice: int, number: int, *, stream: bool) -> dict[str, JsonValue]:
    name = call.id or f"chatcmpl-tool-{hashlib.sha256(f'{call}{choice}{number}'.encode()).hexdigest()[:16]}"
    arguments = "" if stream else call.arguments
    made: dict[str, JsonValue] = {"id": name, "type": "function"}
    return made | ({"index": number} if stream else {}) | {"function": {"name": call.name, "arguments": arguments}}


def _head(said: Answer) -> dict[str, JsonValue]:
    name = "chat.completion.chunk" if said.kind == "chat" else "text_completion"
    return {"id": said.id, "object": name, "created": _CREATED, "model": said.model}


def _event(
    said: Answer,
    index: int,
    delta: Json,
    sent: int,
    *,
    offset: int = 0,
    ends: Choice | None = None,
    first: bool = False,
) -> bytes:
    token = delta.get("content") or delta.get("text")
    choice: dict[str, JsonValue] = {"index": index}
    choice |= delta if said.kind == "completion" else {"delta": dict(delta)}
    choice["logprobs"] = _logprobs(said, [str(token)], offset) if said.logprobs and token else None
    choice["finish_reason"] = ends.finish_reason if ends else None
    if ends:
        choice["stop_reason"] = ends.stop_reason
    chunk: dict[str, JsonValue] = {**_head(said), "choices": [choice]}
    if first:
        chunk |= {"prompt_token_ids": None, "prompt_text": None}
    if said.running_usage:
        chunk["usage"] = said.usage(sent)
    return _data(chunk)


def _chat_choice(said: Answer, choice: Choice) -> dict[str, JsonValue]:
    calls: list[JsonValue] = [_call(call, choice.index, at, stream=False) for at, call in enumerate(choice.tool_calls)]
    message: dict[str, JsonValue] = {
        "role": "assistant",
        "content": None if calls else choice.text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": "".join(choice.reasoning) or None,
    }
    return {
        "index": choice.index,
        "message": message | ({"tool_calls": calls} if calls else {}),
        "logprobs": _logprobs(said, choice.tokens) if said.logprobs else None,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "token_ids": None,
    }


def _text_choice(said: Answer, choice: Choice) -> dict[str, JsonValue]:
    return {
        "index": choice.index,
        "text": choice.text,
        "logprobs": _logprobs(said, choice.tokens) if said.logprobs else None,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "prompt_logprobs": None,
    }


def _logprobs(said: Answer, tokens: Sequence[str], offset: int = 0) -> dict[str, JsonValue]:
    # Any fixed function will do: longer tokens are less likely.
    values = [(token, -len(token) / 10 if said.logprob is None else said.logprob) for token in tokens]
    if said.kind == "completion":
        offsets = [offset + sum(map(len, tokens[:at])) for at in range(len(tokens))]
        return {
            "text_offset": cast("JsonValue", offsets),
            "token_logprobs": [value for _, value in values],
            "tokens": list(tokens),
            "top_logprobs": [{token: value} for token, value in values],
        }
    rows = [{"token": token, "logprob": value, "bytes": list(token.encode())} for token, value in values]
    return {"content": cast("JsonValue", [row | {"top_logprobs": [row]} for row in rows])}
