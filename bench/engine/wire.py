"""How a scripted body reaches the socket: encoding, pieces, framing and the cut."""

import asyncio
import zlib
from collections.abc import Callable, Mapping

from bench.engine.connection import Framing, Reply
from bench.engine.script import Script


class Body:
    """Sends a body as the script says. `start`, then `write` each part as it is made, then `end`.

    `cutting` is called just before the connection is broken off. A cut raises CutOff out of whichever
    call reaches it. A stream that is framed by length is held back until `end`, because its length is not known before.
    """

    def __init__(self, script: Script, reply: Reply, cutting: Callable[[], None]) -> None:
        self._script, self._reply, self._cutting = script, reply, cutting
        self._gzip = zlib.compressobj(wbits=31) if script.gzip else None
        self._held: bytearray | None = None
        self._start: tuple[int, dict[str, str]] = (200, {})
        self._buffer = bytearray()
        self._piece = 0
        self._sent = 0

    async def start(self, status: int, headers: Mapping[str, str], default: Framing) -> None:
        """Sends the head, or remembers it until the length is known."""
        framing = default if self._script.framing == "auto" else self._script.framing
        merged = {name.lower(): value for name, value in (*headers.items(), *self._script.headers.items())}
        if self._gzip is not None:
            merged["content-encoding"] = "gzip"
        if framing == "length":
            self._held, self._start = bytearray(), (status, merged)
        else:
            await self._reply.start(status, merged, framing)

    async def write(self, data: bytes) -> None:
        """One part of the body."""
        if self._gzip is not None:
            data = self._gzip.compress(data) + self._gzip.flush(zlib.Z_SYNC_FLUSH)
        if self._held is not None:
            self._held += data
        else:
            await self._cut_up(data)

    async def end(self) -> None:
        """Ends the body."""
        rest = self._gzip.flush() if self._gzip is not None else b""
        if self._held is not None:
            body = bytes(self._held) + rest
            self._held = None
            await self._reply.start(*self._start, framing="length", length=len(body))
            await self._cut_up(body)
        else:
            await self._cut_up(rest)
        if self._buffer:
            await self._send(bytes(self._buffer))
        if self._script.cut_after_bytes is not None:
            # The body was shorter than the place of the cut: the end of the body is cut off.
            await self.cut()
        await self._reply.end()

    async def cut(self) -> None:
        """Breaks off here, as scripted."""
        self._cutting()
        await self._reply.cut(self._script.cut)

    async def _cut_up(self, data: bytes) -> None:
        sizes = self._script.pieces
        if not sizes:
            await self._send(data)
            return
        self._buffer += data
        while len(self._buffer) >= (size := max(1, sizes[self._piece % len(sizes)])):
            piece = bytes(self._buffer[:size])
            del self._buffer[:size]
            self._piece += 1
            await self._send(piece)

    async def _send(self, data: bytes) -> None:
        limit = self._script.cut_after_bytes
        if limit is not None and self._sent + len(data) >= limit:
            room = limit - self._sent
            await self._reply.send(data[:room], announced=len(data))
            await self.cut()
        self._sent += len(data)
        await self._reply.send(data)
        if self._script.piece_delay:
            await asyncio.sleep(self._script.piece_delay)
