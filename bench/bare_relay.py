"""A relay that only copies bytes: what is left of a gateway when everything that it does is taken away.

    python -m bench.bare_relay --to http://127.0.0.1:8000

Prints `{"url": …}` and serves until SIGTERM. It is the measure for what the way through one more process costs on a
machine: two more hops over the loopback and two more wake-ups. `GET /nothing` is answered at once, and `GET /spent`
with the seconds in which it has done anything itself.
"""

import argparse
import asyncio
import json
import signal
import time
from typing import cast
from urllib.parse import urlsplit

import uvloop

NOTHING, SPENT = b"GET /nothing ", b"GET /spent "
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Watch:
    """Seconds in which the relay has done something."""

    def __init__(self) -> None:
        self.spent = 0.0

    def since(self, began: float) -> None:
        """Something was done since then."""
        self.spent += time.perf_counter() - began


class Upstream(asyncio.Protocol):
    """The other half of a connection: what comes goes to the client."""

    def __init__(self, client: asyncio.Transport, watch: Watch) -> None:
        self._client, self._watch = client, watch

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        began = time.perf_counter()
        self._client.write(data)
        self._watch.since(began)

    def connection_lost(self, exc: Exception | None) -> None:
        """The server is done."""
        del exc
        self._client.close()


class Relay(asyncio.Protocol):
    """One client's connection, and one to the server as soon as something is asked."""

    def __init__(self, address: tuple[str, int], watch: Watch) -> None:
        self._address, self._watch = address, watch
        self._client: asyncio.Transport | None = None
        self._server: asyncio.Transport | None = None
        self._waiting = b""
        self._opening: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._client = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        began = time.perf_counter()
        if self._server is not None:
            self._server.write(data)
        elif data.startswith(NOTHING) and self._client is not None:
            self._client.write(ANSWER)
        elif data.startswith(SPENT) and self._client is not None:
            body = json.dumps(self._watch.spent).encode()
            self._client.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            return
        else:
            self._waiting += data
            if self._opening is None:
                self._opening = asyncio.create_task(self._open())
        self._watch.since(began)

    async def _open(self) -> None:
        client = cast("asyncio.Transport", self._client)
        loop = asyncio.get_running_loop()
        self._server, _ = await loop.create_connection(lambda: Upstream(client, self._watch), *self._address)
        self._server.write(self._waiting)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left."""
        del exc
        if self._server is not None:
            self._server.abort()


async def serve(to: str) -> None:
    """Relay until SIGTERM."""
    parts = urlsplit(to)
    address = (parts.hostname or "", parts.port or 80)
    loop, stop, watch = asyncio.get_running_loop(), asyncio.Event(), Watch()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    server = await loop.create_server(lambda: Relay(address, watch), "127.0.0.1", 0)
    print(json.dumps({"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}), flush=True)
    await stop.wait()
    server.close()


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.bare_relay", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", required=True, help="address of the server")
    uvloop.run(serve(parser.parse_args().to))


if __name__ == "__main__":
    main()
