"""HTTP/1.1 as it is on the wire, and events as a reader of the standard sees them."""

import asyncio
from dataclasses import dataclass
from typing import Any

import orjson

from tests.integration.stack import RawClient


@dataclass(frozen=True)
class Answer:
    """One response: header names in lower case in the order of arrival, the body without its framing.

    `chunks`: the pieces of a chunked body. `whole`: the body ended as its framing says.
    """

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    chunks: list[bytes]
    whole: bool

    def header(self, name: str) -> str | None:
        """The value of a header that may come once."""
        values = [value for known, value in self.headers if known == name]
        assert len(values) < 2, f"{name} came {len(values)} times"
        return values[0] if values else None

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return orjson.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of the body's events: JSON, or bytes where it is none."""
        return events(self.body)


async def ask(url: str, path: str, body: dict[str, Any], **headers: str) -> Answer:
    """One request on its own connection, read to its end."""
    client = await RawClient.post(url, path, body, connection="close", **headers)
    try:
        return parse(await asyncio.wait_for(client.reader.read(), 20))
    finally:
        client.writer.close()


def parse(raw: bytes) -> Answer:
    """The response in the bytes of a connection that has been closed."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    named = dict(pairs)
    status = int(first.split()[1])
    if named.get("transfer-encoding") == "chunked":
        chunks, whole = _chunks(rest)
        return Answer(status, pairs, b"".join(chunks), chunks, whole)
    length = named.get("content-length")
    return Answer(status, pairs, rest, [], length is None or len(rest) == int(length))


def _chunks(rest: bytes) -> tuple[list[bytes], bool]:
    chunks: list[bytes] = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            return chunks, rest == b"\r\n"
        chunks.append(rest[:length])
        rest = rest[length + 2 :]
    return chunks, False


def events(body: bytes) -> list[Any]:
    """The data of every event; JSON where it is, else bytes."""
    found: list[Any] = []
    for block in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        data = b"\n".join(line[6:] for line in block.split(b"\n") if line.startswith(b"data: "))
        if data:
            try:
                found.append(orjson.loads(data))
            except orjson.JSONDecodeError:
                found.append(data)
    return found


def text_of(found: list[Any]) -> str:
    """The content of all choices of a streamed chat."""
    deltas = [choice["delta"] for event in found if isinstance(event, dict) for choice in event.get("choices", ())]
    return "".join(delta.get("content") or "" for delta in deltas)


def is_envelope(body: Any) -> bool:
    """Whether a value is an error in the one shape of the contract."""
    if not isinstance(body, dict) or set(body) != {"error"} or not isinstance(body["error"], dict):
        return False
    error = body["error"]
    named = set(error) == {"message", "type", "param", "code"}
    return named and isinstance(error["message"], str) and isinstance(error["type"], str)
