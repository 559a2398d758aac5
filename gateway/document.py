"""The gateway's OpenAPI document (3.1): its own routes, their headers, and every status they give."""

from pydantic import JsonValue

Node = dict[str, JsonValue]


def document() -> Node:
    """The whole document."""
    return {"openapi": "3.1.0", "info": {"title": "Forebay", "version": "1"}, "paths": {}}
