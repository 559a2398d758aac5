"""A collector of traces: takes what is posted to it, and answers as it is told."""

import asyncio
from types import TracebackType
from typing import Any, Self

import orjson

Spans = list[dict[str, Any]]


class Collector:
    """An async context manager. `spans` holds what came, as OTLP's JSON; `answer` is the status it gives."""

    def __init__(self) -> None:
        self.spans: Spans = []
        self.resources: list[dict[str, Any]] = []
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.answer = 200
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def named(self, prefix: str) -> dict[str, Any]:
        """The one span whose name begins so."""
        (found,) = [span for span in self.spans if span["name"].startswith(prefix)]
        return found

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode().lower():
                length = int(head.split("content-length:")[1].split("\r\n")[0])
                body = await reader.readexactly(length)
                self.heads.append(head)
                self.bodies.append(body)
                if self.answer == 200 and "application/json" in head:
                    for resource in orjson.loads(body)["resourceSpans"]:
                        self.resources.append(attributes(resource["resource"]))
                        self.spans += [span for scope in resource["scopeSpans"] for span in scope["spans"]]
                writer.write(f"HTTP/1.1 {self.answer} X\r\ncontent-length: 0\r\n\r\n".encode())
        except (EOFError, OSError):
            return
        finally:
            writer.close()


def attributes(holder: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a span or a resource by name."""
    found: dict[str, Any] = {}
    for row in holder["attributes"]:
        ((kind, value),) = row["value"].items()
        if kind == "arrayValue":
            value = [item["stringValue"] for item in value["values"]]
        found[row["key"]] = int(value) if kind == "intValue" else value
    return found
