"""Calling an engine's HTTP application from within its process."""

import asyncio
from collections.abc import Mapping, MutableMapping
from typing import Any

from deploy.disconnect import AsgiApp, Message, Receive


def post(path: str, headers: Mapping[str, str]) -> MutableMapping[str, Any]:
    """The ASGI scope of a POST that no client has sent."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
        "client": None,
        "server": None,
    }


def json_body(scope: MutableMapping[str, Any], path: str, length: int) -> MutableMapping[str, Any]:
    """The scope with a JSON body of so many bytes, to another path."""
    dropped = (b"content-length", b"content-type", b"transfer-encoding")
    kept = [pair for pair in scope["headers"] if pair[0].lower() not in dropped]
    headers = [*kept, (b"content-type", b"application/json"), (b"content-length", b"%d" % length)]
    return {**scope, "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers}


def staying(raw: bytes) -> Receive:
    """`receive` of a client that sends this body and stays."""
    given = False

    async def receive() -> Message:
        nonlocal given
        if given:
            await asyncio.get_running_loop().create_future()
        given = True
        return {"type": "http.request", "body": raw, "more_body": False}

    return receive


async def ask(app: AsgiApp, scope: MutableMapping[str, Any], raw: bytes) -> tuple[int, bytes]:
    """Status and body of the answer; raises what the application raises. Cancellation is the application's."""
    status, parts = 500, bytearray()

    async def collect(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.extend(message.get("body", b""))

    await app(scope, staying(raw), collect)
    return status, bytes(parts)
