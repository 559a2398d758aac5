"""Routes of an engine that the gateway passes through: embeddings, responses, Anthropic messages; others are echoed."""

import asyncio
import hashlib
from collections.abc import Mapping
from typing import cast

import orjson
from pydantic import JsonValue

from bench.engine.script import Script
from bench.engine.wire import Body

Json = Mapping[str, JsonValue]
_DIM = 8


async def other_route(path: str, body: Json, script: Script, out: Body) -> None:
    """Answers a /v1 route other than the two completions."""
    await asyncio.sleep(script.ttft)
    streamed = body.get("stream") is True and path in ("/v1/responses", "/v1/messages")
    if streamed:
        await out.start(script.status, {"content-type": "text/event-stream; charset=utf-8"}, "chunked")
        for event in _events(path, body, script):
            await out.write(event)
            await asyncio.sleep(script.itl)
    else:
        await out.start(script.status, {"content-type": "application/json"}, "length")
        await out.write(orjson.dumps(_answer(path, body, script)))
    await out.end()


def _answer(path: str, body: Json, script: Script) -> Json:
    model = body.get("model")
    match path:
        case "/v1/embeddings":
            given = body.get("input")
            texts = given if isinstance(given, list) else [given]
            rows: list[JsonValue] = [
                {"object": "embedding", "index": at, "embedding": _vector(text)} for at, text in enumerate(texts)
            ]
            usage: JsonValue = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
            return {"object": "list", "model": model, "data": rows, "usage": usage}
        case "/v1/responses":
            return _response(body, script, "completed")
        case "/v1/messages":
            content: list[JsonValue] = [{"type": "text", "text": _text(body, script)}]
            return _message(body) | {"content": content, "stop_reason": "end_turn"}
        case _:
            return {"object": "echo", "path": path, "body": dict(body)}


def _events(path: str, body: Json, script: Script) -> list[bytes]:
    words = _text(body, script).split(" ")
    if path == "/v1/responses":
        named: list[tuple[str, Json]] = [
            ("response.created", {"response": dict(_response(body, script, "in_progress"))})
        ]
        named += [("response.output_text.delta", {"output_index": 0, "delta": word + " "}) for word in words]
        named.append(("response.completed", {"response": dict(_response(body, script, "completed"))}))
    else:
        named = [("message_start", {"message": dict(_message(body))})]
        named += [
            ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": word + " "}}) for word in words
        ]
        named.append(("message_stop", {}))
    return [
        f"event: {name}\n".encode() + b"data: " + orjson.dumps({"type": name, **data}) + b"\n\n" for name, data in named
    ]


def _text(body: Json, script: Script) -> str:
    asked = orjson.dumps(body.get("input") or body.get("messages"), option=orjson.OPT_SORT_KEYS)
    return script.text or f"Answer {hashlib.sha256(asked).hexdigest()[:8]}: naïve, 3 €, done 🦫."


def _vector(text: JsonValue) -> list[JsonValue]:
    digest = hashlib.sha256(orjson.dumps(text)).digest()
    raw = [byte - 127.5 for byte in digest[:_DIM]]
    norm = sum(value * value for value in raw) ** 0.5
    return cast("list[JsonValue]", [value / norm for value in raw])


def _response(body: Json, script: Script, status: str) -> Json:
    parts: list[JsonValue] = [{"type": "output_text", "text": _text(body, script), "annotations": []}]
    message: JsonValue = {"type": "message", "id": "msg_1", "role": "assistant", "status": status, "content": parts}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": status,
        "model": body.get("model"),
        "output": [message] if status == "completed" else [],
    }


def _message(body: Json) -> dict[str, JsonValue]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": body.get("model"),
        "content": [],
        "stop_reason": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
