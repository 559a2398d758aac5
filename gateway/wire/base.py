"""The seam to the connection that one request came over."""

import asyncio
from typing import Protocol

from gateway.envelope import Headers
from gateway.interrupt import Trippable


class Wire(Protocol):
    """One request's connection. Each of the writing methods waits while the client does not read.

    `task` answers the request; None where that is whoever uses the wire. `arrived_whole` gives the whole body where it
    is already here, else None; `receive` the next part and whether more follows, and raises ClientGone where the client
    leaves instead. `watch` trips what it is given with ClientGone when the client leaves before the response is
    complete; None stops that. `start` sends status and headers, `write` a part of the body, the last one with `more`
    False, `whole` a response in one piece. `put` writes a part of the body where nobody has to be waited for, and
    returns whether it did. What is written after the client has left is lost without an error.
    """

    task: asyncio.Task[None] | None

    def arrived_whole(self) -> bytes | None: ...

    async def receive(self) -> tuple[bytes, bool]: ...

    def watch(self, block: Trippable | None) -> None: ...

    async def start(self, status: int, headers: Headers) -> None: ...

    def put(self, chunk: bytes) -> bool: ...

    async def write(self, chunk: bytes, *, more: bool) -> None: ...

    async def whole(self, status: int, headers: Headers, body: bytes) -> None: ...
