"""What an engine refuses: vLLM's checks that a prefill leg can run into."""

import zlib
from collections.abc import Mapping
from typing import Literal, cast

import orjson
from pydantic import JsonValue

Json = Mapping[str, JsonValue]
Kind = Literal["chat", "completion"]
CONSTRAINTS = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice")
_ASKED = {"do_remote_decode": True, "do_remote_prefill": False}
_UNKNOWN_PEER = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")


class Refused(Exception):
    """A body the engine refuses, with the status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def limit_of(body: Json) -> int | None:
    """Output tokens that the body allows; None is no limit. `max_completion_tokens` wins, as in vLLM."""
    return cast("int | None", body.get("max_completion_tokens") or body.get("max_tokens"))


def render(kind: Kind, body: Json) -> tuple[int, ...]:
    """The prompt as tokens: what the chat template sees, tools included; a word or a token id each."""
    if kind == "completion":
        prompt = body.get("prompt")
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
            return tuple(cast("list[int]", prompt))
        return _words(str(prompt))
    tools = orjson.dumps(body.get("tools") or [])
    template = orjson.dumps(body.get("chat_template_kwargs") or {}, option=orjson.OPT_SORT_KEYS)
    return _words(b" ".join((orjson.dumps(body.get("messages")), tools, template)).decode())


def check(kind: Kind, body: Json, tokens: int, max_model_len: int) -> None:
    """Raise Refused for what the engine does not take."""
    if body.get("messages" if kind == "chat" else "prompt") is None:
        raise Refused(400, "Field required")
    limit = limit_of(body)
    if (minimum := body.get("min_tokens")) is not None and limit is not None and cast("int", minimum) > limit:
        raise Refused(400, f"min_tokens must be less than or equal to max_tokens={limit}, got {minimum}.")
    if body.get("stream_options") is not None and body.get("stream") is not True:
        raise Refused(400, "Stream options can only be defined when `stream=True`.")
    if tokens + (limit or 1) > max_model_len:
        raise Refused(400, f"This model's maximum context length is {max_model_len} tokens, {tokens} were given.")
    # One token cannot close a JSON object: vLLM fails while it parses the answer.
    forced = body.get("tool_choice") not in (None, "auto", "none")
    if limit == 1 and (forced or any(body.get(name) is not None for name in CONSTRAINTS)):
        raise Refused(500, "the output constraint was not met: unexpected end of JSON")
    if body.get("tool_choice") == "auto":
        raise Refused(400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')


def check_asked(body: Json) -> str | None:
    """What is wrong with the `kv_transfer_params` of a prefill leg, or None."""
    params = body.get("kv_transfer_params")
    if not isinstance(params, dict):
        return "no kv_transfer_params"
    wrong = [name for name, value in _ASKED.items() if params.get(name) is not value]
    wrong += [name for name in _UNKNOWN_PEER if params.get(name) is not None]
    if wrong:
        return f"kv_transfer_params of a prefill leg: {', '.join(wrong)}"
    if limit_of(body) != 1 or body.get("max_tokens") != 1:
        return f"a prefill leg generates one token: {body.get('max_tokens')}, {body.get('max_completion_tokens')}"
    if (body.get("n") or 1) != 1 or body.get("stream"):
        return "a prefill leg has one choice and does not stream"
    return None


def _words(text: str) -> tuple[int, ...]:
    return tuple(zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in text.split())
