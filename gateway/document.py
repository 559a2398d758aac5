"""The gateway's OpenAPI document (3.1): its own routes, their headers, and every status they give.

Bodies that pass through unread (chat, completions) are described as far as the gateway reads them.
"""

from collections.abc import Sequence

from pydantic import JsonValue

from gateway.feedback import MAX_COMMENT

Node = dict[str, JsonValue]

_HEADERS: dict[str, str] = {
    "x-request-id": "The client's id where it is a sane token, else one of ours",
    "x-forebay-cache": "hit-exact, hit-semantic, miss (looked up) or bypass (not looked up)",
    "x-forebay-tier": "small, frontier, or none where no tier was asked",
}
_STATUSES: dict[str, str] = {
    "400": "The body or a header is not acceptable",
    "401": "No key, or one that is not known",
    "403": "The key may not do this",
    "404": "Unknown model or path",
    "408": "The body did not come",
    "413": "The body is larger than gateway.max_body_size",
    "429": "Refused before any work; Retry-After and x-forebay-reason say when to come back and why",
    "500": "A fault of the gateway",
    "502": "The tier's server broke or could not be reached",
    "503": "No replica, or the gateway is stopping",
    "504": "The tier took too long",
}


def document(models: Sequence[str], tiers: Sequence[str]) -> Node:
    """The whole document. `models`: the names that a request may ask for; `tiers`: those that are configured."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Forebay",
            "version": "1",
            "description": "One OpenAI-compatible endpoint with response caches and complexity routing.",
        },
        "paths": _paths(tiers),
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": _schemas(models),
            "responses": {code: _error(text) for code, text in _STATUSES.items()},
        },
        # The empty requirement: without configured keys the gateway is open.
        "security": [{"key": []}, {}],
    }


def _paths(tiers: Sequence[str]) -> Node:
    cache = "Cache statistics"
    return {
        "/v1/chat/completions": {"post": _inference("Chat completion", "ChatRequest", "chat.completion", tiers)},
        "/v1/completions": {"post": _inference("Text completion", "CompletionRequest", "text_completion", tiers)},
        "/v1/explain": {"post": _explain(tiers)},
        "/v1/feedback": {"post": _feedback()},
        "/v1/models": {"get": _read("Every name a client may ask for", _ref("ModelList"), "401", "503")},
        "/v1/models/{id}": {
            "get": _read("One model", _ref("Model"), "401", "404", "503") | {"parameters": [_in_path("id")]}
        },
        "/health": {"get": _open("The process lives", {"200": _json("Alive", {"type": "object"})})},
        "/ready": {
            "get": _open(
                "Whether traffic may come",
                {"200": _json("A tier can take traffic", _ref("Ready")), "503": _json("None can", _ref("Ready"))},
            )
        },
        "/metrics": {"get": _open("Prometheus metrics", {"200": _text("Exposition format")})},
        "/openapi.json": {"get": _open("This document", {"200": _json("OpenAPI 3.1", {"type": "object"})})},
        "/admin/state": {"get": _read("Tiers, queues, cache, configuration without secrets", _any(), "401", "403")},
        "/admin/lookups": {"get": _read("Recent lookups and scores, to try thresholds on", _any(), "403", "404")},
        "/admin/cache/stats": {"get": _read(cache, _any(), "401", "403")},
        "/admin/cache/entries/{id}": {
            "delete": _read("Delete one entry", _any(), "401", "403", "404") | {"parameters": [_in_path("id")]}
        },
        "/admin/cache/purge": {
            "post": _read("Delete every entry, or those of one tenant", _any(), "401", "403")
            | {"parameters": [{"name": "tenant", "in": "query", "schema": {"type": "string"}}]}
        },
    }


def _inference(summary: str, request: str, kind: str, tiers: Sequence[str]) -> Node:
    streamed: Node = {"schema": {"description": f"Server-sent events: {kind} chunks, then [DONE]"}}
    whole: Node = {"schema": {"type": "object", "properties": {"object": {"const": kind}}}}
    headers: Node = {
        "age": _header("Seconds since the answer was stored; on a hit"),
        "x-forebay-cache-id": _header("Of the stored answer; on a hit"),
    }
    for name, text in _HEADERS.items():
        headers[name] = _header(text)
    answer: Node = {
        "description": "The engine's answer, or a stored one",
        "headers": headers,
        "content": {"application/json": whole, "text/event-stream": streamed},
    }
    return {
        "summary": summary,
        "parameters": _request_headers(tiers),
        "requestBody": _body(request),
        "responses": _responses(answer, *_STATUSES),
    }


def _explain(tiers: Sequence[str]) -> Node:
    return {
        "summary": "What would happen to a chat request, and why; nothing is sent",
        "parameters": _request_headers(tiers),
        "requestBody": _body("ChatRequest"),
        "responses": _responses(
            _json("The decisions", _ref("Explanation")), "400", "401", "404", "408", "413", "500", "503"
        ),
    }


def _feedback() -> Node:
    number: Node = {"type": "number", "minimum": 0, "maximum": 1}
    asked = _object(
        {
            "request_id": {"type": "string", "minLength": 1},
            "score": number,
            "comment": {"type": ["string", "null"], "maxLength": MAX_COMMENT},
        },
        "request_id",
        "score",
    )
    return {
        "summary": "What an answer was worth, by the id of its request",
        "requestBody": {"required": True, "content": {"application/json": {"schema": asked}}},
        "responses": _responses(_json("Taken", _any()), "400", "401", "404", "408", "413", "500", "503"),
    }


def _request_headers(tiers: Sequence[str]) -> list[JsonValue]:
    known: list[tuple[str, Node]] = [
        ("x-request-id", {"type": "string"}),
        ("x-forebay-cache", {"enum": ["on", "off", "exact", "refresh"]}),
        ("x-forebay-threshold", {"type": "number", "minimum": 0, "maximum": 1}),
        ("x-forebay-tier", {"enum": list(tiers)}),
        ("x-forebay-deadline-ms", {"type": "integer", "minimum": 1}),
        ("x-forebay-debug", {"enum": ["1"]}),
        ("cache-control", {"type": "string"}),
    ]
    return [{"name": name, "in": "header", "schema": schema} for name, schema in known]


def _schemas(models: Sequence[str]) -> Node:
    text: Node = {"type": "string"}
    optional: Node = {"type": ["string", "null"]}
    number: Node = {"type": ["number", "null"]}
    flag: Node = {"type": ["boolean", "null"]}
    options: Node = {"type": ["object", "null"], "properties": {"include_usage": flag}}
    common: Node = {"model": text | {"enum": list(models)}, "stream": flag, "stream_options": options}
    message = _object({"role": text}, "role") | {"additionalProperties": True}
    error = _object(
        {"message": text, "type": text, "param": optional, "code": {"type": ["string", "integer", "null"]}},
        "message", "type", "param", "code",
    )  # fmt: skip
    messages: Node = {"type": "array", "minItems": 1, "items": message}
    prompt: Node = {"anyOf": [text, {"type": "array", "minItems": 1}]}
    semantic: Node = {
        "nearest_id": optional, "similarity": number, "threshold": number, "verdict": text, "reason": optional,
        "guard": {"type": ["object", "null"]},
    }  # fmt: skip
    router: Node = {"tier": text, "complexity": number, "threshold": number, "reason": text}
    router["cascade"] = {"type": ["object", "null"]}
    model: Node = {"id": text, "object": text, "created": {"type": "integer"}, "owned_by": text}
    ready: Node = {"ready": {"type": "boolean"}, "degraded": {"type": "array", "items": text}}
    return {
        "Error": _object({"error": error}, "error"),
        "ChatRequest": _object({**common, "messages": messages}, "model", "messages"),
        "CompletionRequest": _object({**common, "prompt": prompt}, "model", "prompt"),
        "Model": _object(model, "id", "object"),
        "ModelList": _object({"object": text, "data": {"type": "array", "items": _ref("Model")}}, "data"),
        "Ready": _object(ready, "ready", "degraded"),
        "Explanation": _object(
            {
                "cache": _object({"exact": text, "semantic": _object(semantic)}, "exact", "semantic"),
                "router": _object(router, "tier", "reason"),
            },
            "cache",
            "router",
        ),
    }


def _object(properties: Node, *required: str) -> Node:
    return {"type": "object", "properties": properties, "required": list(required)}


def _read(summary: str, schema: Node, *errors: str) -> Node:
    return {"summary": summary, "responses": _responses(_json("Done", schema), *errors)}


def _open(summary: str, responses: Node) -> Node:
    return {"summary": summary, "security": [], "responses": responses}


def _body(schema: str) -> Node:
    return {"required": True, "content": {"application/json": {"schema": _ref(schema)}}}


def _json(text: str, schema: Node) -> Node:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _text(text: str) -> Node:
    return {"description": text, "content": {"text/plain": {"schema": {"type": "string"}}}}


def _error(text: str) -> Node:
    return _json(text, _ref("Error"))


def _responses(answer: Node, *errors: str) -> Node:
    found: Node = {"200": answer}
    for code in errors:
        found[code] = {"$ref": f"#/components/responses/{code}"}
    return found


def _header(text: str) -> Node:
    return {"description": text, "schema": {"type": "string"}}


def _in_path(name: str) -> Node:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _ref(name: str) -> Node:
    return {"$ref": f"#/components/schemas/{name}"}


def _any() -> Node:
    return {"type": "object"}
