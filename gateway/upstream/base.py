"""The seam to one server of a tier: one call, one reply.

Foreign exceptions stop here; what leaves an implementation is one of

UpstreamError (502, core.errors)
├── ConnectFailed      no connection: nothing was sent, another server may be tried
└── Broken             the connection broke: before the reply's head another server may be tried
UpstreamTimeout (504, core.errors)
└── ConnectTimeout     no connection in time: nothing was sent, another server may be tried
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from core.errors import UpstreamError, UpstreamTimeout
from gateway.envelope import Headers


class ConnectFailed(UpstreamError):
    """The server could not be reached."""

    code = "upstream_connect_error"


class Broken(UpstreamError):
    """The connection to the server broke, or what came over it was not HTTP."""

    code = "upstream_broken"


class ConnectTimeout(UpstreamTimeout):
    """No connection within `timeout.connect`."""

    code = "upstream_connect_timeout"
    retryable = True


class Call(NamedTuple):
    """One request to a tier. `path` starts with /v1/ and may carry a query; `connect` is in seconds."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    connect: float


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server is: `url` without /v1, its host an address or a name that is left to the system.

    `host`: the Host header to send, `name`: the name that its certificate must carry; None takes both from `url`.
    """

    url: str
    host: str | None = None
    name: str | None = None


# Takes a piece of a body; whether it wants the next one.
Sink = Callable[[bytes], bool]


class Reply(Protocol):
    """The head of an answer, and its body while it arrives.

    `headers` keep their order, with names in lower case. `read` waits for the next piece of the body, decompressed, and
    gives b"" at its end; it raises Broken where the body ends before it is complete, and cancelling it loses nothing.
    `pour` gives each piece to a sink as it comes, without a turn of the event loop in between where the implementation
    can, until the sink says False or the body ends; False at its end. What the sink raises comes out of `pour`.
    `came`: the second on the gateway's clock at which the last piece was taken from the connection, which is before
    anybody had a turn to read it; None where that is not known.
    `finish` reads what is left for at most `limit` seconds, so that the connection can be used again, and never raises.
    `close` is idempotent and never waits: it drops the connection unless the body was read to its end. The caller
    closes every reply.
    """

    status: int
    headers: Headers
    came: float | None = None

    async def read(self) -> bytes: ...

    async def pour(self, sink: Sink) -> bool:
        while piece := await self.read():
            if not sink(piece):
                return True
        return False

    async def finish(self, limit: float) -> None: ...

    def close(self) -> None: ...


class Upstream(Protocol):
    """Calls to any server.

    `send` waits for the head of the reply. Raises ConnectFailed, ConnectTimeout or Broken; cancelling it drops the
    connection. Implementations are async context managers owned by the gateway's lifespan; they keep no time limit but
    `Call.connect`: the caller knows what it waits for.
    """

    def send(self, server: Server, call: Call) -> Awaitable[Reply]: ...
