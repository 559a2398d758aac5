"""Which bodies the scripted engine takes: the checks of vLLM that a client or a gateway can run into."""

from collections.abc import Mapping, Sequence

import orjson
from pydantic import JsonValue

from bench.engine.answer import count_tokens
from bench.engine.connection import Incoming


class Invalid(Exception):
    """A body the engine refuses, with the status and the parameter vLLM would name."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param


GENERATION = ("/v1/chat/completions", "/v1/completions")
# What a vLLM server may have besides, by the model it runs.
OTHERS = ("/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/score", "/v1/rerank", "/v1/audio/transcriptions")


def body_of(request: Incoming, models: Sequence[str], max_model_len: int) -> Mapping[str, JsonValue]:
    """The request's JSON object; empty for a form. Raises Invalid."""
    if request.method != "POST" or request.path not in (*GENERATION, *OTHERS):
        raise Invalid(404, "Not Found")
    if request.headers.get("content-type", "").startswith("multipart/"):
        return {}
    try:
        body = orjson.loads(request.body)
    except orjson.JSONDecodeError as error:
        raise Invalid(400, f"JSON decode error: {error}") from None
    if not isinstance(body, dict):
        raise Invalid(400, "Input should be a valid dictionary")
    model = body.get("model")
    if model is not None and model not in models:
        raise Invalid(404, f"The model `{model}` does not exist.", "model")
    if request.path in GENERATION:
        _check_generation(request.path, body, max_model_len)
    return body


def _check_generation(path: str, body: Mapping[str, JsonValue], max_model_len: int) -> None:
    if path == "/v1/chat/completions":
        messages = body.get("messages")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise Invalid(400, "Field required", "messages")
        if not messages:
            raise Invalid(400, "list index out of range", "messages")
    elif not isinstance(body.get("prompt"), str | list):
        raise Invalid(400, "Field required", "prompt")
    for name in ("max_tokens", "max_completion_tokens", "n"):
        value = body.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise Invalid(400, f"{name} must be at least 1, got {value}.", name)
    if body.get("stream_options") is not None and body.get("stream") is not True:
        raise Invalid(400, "Stream options can only be defined when `stream=True`.", "stream_options")
    prompt = count_tokens(orjson.dumps(body.get("messages") or body.get("prompt")).decode())
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or 0
    if prompt + (limit if isinstance(limit, int) else 0) > max_model_len:
        raise Invalid(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, you requested {limit} output "
            f"tokens and your prompt contains {prompt} input tokens.",
            "input_tokens",
        )
