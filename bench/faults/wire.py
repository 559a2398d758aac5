"""A client that notes how its answer ended, and can be slow, leave, or send half a request."""

import asyncio
import contextlib
import json
import socket
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

Ended = Literal["complete", "cut", "left", "refused"]
# What a client that reads slowly takes at a time, in bytes, and how often, in seconds.
SIP, PAUSE = 2048, 0.01


@dataclass(frozen=True)
class Manners:
    """How a client behaves.

    `slow`: it reads little at a time. `leaves`: it goes after so many bytes of the answer; 0 is before any, and after
    `after` seconds. `half`: it sends half of its body and goes. `reset`: it goes with RST instead of FIN.
    """

    slow: bool = False
    leaves: int | None = None
    after: float = 0.0
    half: bool = False
    reset: bool = False


POLITE = Manners()


@dataclass
class Answer:
    """What came back. `body` without its framing; `ended`: whether the framing says that it is complete."""

    ended: Ended
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0

    @property
    def events(self) -> list[bytes]:
        """The data of the server-sent events, as bytes; comments are left out."""
        blocks = self.body.split(b"\n\n")
        return [block.removeprefix(b"data: ") for block in blocks if block.startswith(b"data: ")]

    @property
    def json(self) -> Any:
        """The body as JSON; None where it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


class _Gone(Exception):
    """The client has left, as it was told."""


async def ask(
    url: str, path: str, raw: bytes, headers: dict[str, str] | None = None, manners: Manners = POLITE
) -> Answer:
    """One request on a connection of its own."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    address = urlsplit(url)
    try:
        reader, writer = await _connect(address.hostname or "", address.port or 80, slow=manners.slow)
    except OSError:
        return Answer("refused")
    answer = Answer("cut")
    try:
        lines = [f"POST {path} HTTP/1.1", f"host: {address.netloc}", "connection: close"]
        lines += ["content-type: application/json", f"content-length: {len(raw)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode()
        writer.write(head + (raw[: len(raw) // 2] if manners.half else raw))
        await writer.drain()
        await _read(reader, answer, manners)
    except _Gone:
        answer.ended = "left"
    except (OSError, EOFError):
        answer.ended = "cut"
    finally:
        if manners.reset and answer.ended == "left":
            writer.transport.abort()
        else:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    answer.seconds = loop.time() - began
    return answer


async def _connect(host: str, port: int, *, slow: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if not slow:
        return await asyncio.open_connection(host, port)
    # A small window, so that the other side notices.
    wire = socket.socket()
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SIP)
    wire.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(wire, (host, port))
        return await asyncio.open_connection(sock=wire, limit=SIP)
    except BaseException:
        wire.close()
        raise


async def _read(reader: asyncio.StreamReader, answer: Answer, manners: Manners) -> None:
    if manners.half:
        raise _Gone
    if manners.leaves == 0:
        # Until then something may come, or the connection be closed; what matters is that the client goes.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(manners.after):
                await reader.read(1)
        raise _Gone
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    answer.status = int(first.split()[1])
    answer.headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if answer.headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            await _take(reader, size, answer, manners)
            await reader.readexactly(2)
        await reader.readexactly(2)
    else:
        await _take(reader, int(answer.headers["content-length"]), answer, manners)
    answer.ended = "complete"


async def _take(reader: asyncio.StreamReader, size: int, answer: Answer, manners: Manners) -> None:
    while size:
        piece = await reader.read(min(size, SIP) if manners.slow else size)
        if not piece:
            raise EOFError
        answer.body += piece
        size -= len(piece)
        if manners.leaves is not None and len(answer.body) >= manners.leaves:
            raise _Gone
        if manners.slow:
            await asyncio.sleep(PAUSE)
