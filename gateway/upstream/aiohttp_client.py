"""The upstream client on aiohttp: one pool of keep-alive connections for all tiers."""

import asyncio
from types import TracebackType
from typing import Self

import aiohttp
from yarl import URL

from core.memo import Memo
from gateway.envelope import Headers
from gateway.upstream.base import Broken, Call, ConnectFailed, ConnectTimeout, Reply, Server

# Largest piece of a body that is taken from the connection at once.
READ_BUFFER = 64 * 1024
# Parsed addresses that are kept; servers come and go.
MAX_URLS = 1024


class AiohttpReply(Reply):
    """A reply of aiohttp."""

    __slots__ = ("_response", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Headers = [(name.lower(), value) for name, value in response.raw_headers]

    async def read(self) -> bytes:
        """The next piece of the body."""
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise Broken(f"the answer broke off: {_named(error)}") from error

    async def finish(self, limit: float) -> None:
        """Read the end of the body."""
        content = self._response.content
        if content.at_eof():
            return
        try:
            async with asyncio.timeout(limit):
                while await content.readany():
                    pass
        except (TimeoutError, aiohttp.ClientError, OSError):
            return

    def close(self) -> None:
        """Give the connection back where the body is complete, else drop it."""
        self._response.close()


class AiohttpUpstream:
    """An async context manager; leaving it drops what is still open."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._timeouts: dict[float, aiohttp.ClientTimeout] = {}
        self._urls: Memo[tuple[str, str], URL] = Memo(MAX_URLS)

    async def __aenter__(self) -> Self:
        # Admission bounds what is in flight; a second limit in the pool would be a hidden queue. vLLM's server closes
        # idle connections after 5 s: ours go first.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0, ttl_dns_cache=5)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            read_bufsize=READ_BUFFER,
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(self, server: Server, call: Call) -> AiohttpReply:
        """One call; waits for the reply's head."""
        if self._session is None:
            raise ConnectFailed("the upstream client is closed")
        try:
            response = await self._session.request(
                call.method,
                self._url(server.url, call.path),
                data=call.body or None,
                headers=call.headers if server.host is None else {**call.headers, "host": server.host},
                server_hostname=server.name,
                timeout=self._timeout(call.connect),
                allow_redirects=False,
            )
        except (aiohttp.ServerTimeoutError, TimeoutError) as error:
            raise ConnectTimeout(f"no connection within {call.connect:g} s") from error
        except aiohttp.ClientConnectorError as error:
            raise ConnectFailed(f"cannot connect: {_named(error)}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Broken(f"the connection broke before an answer: {_named(error)}") from error
        return AiohttpReply(response)

    def _timeout(self, connect: float) -> aiohttp.ClientTimeout:
        found = self._timeouts.get(connect)
        if found is None:
            found = self._timeouts[connect] = aiohttp.ClientTimeout(total=None, sock_connect=connect)
        return found

    def _url(self, url: str, path: str) -> URL:
        # The paths of the hot routes repeat for ever; the others may carry anything and are not kept.
        found = self._urls.get((url, path))
        if found is None:
            found = URL(url + path, encoded=True)
            if path in ("/v1/chat/completions", "/v1/completions"):
                self._urls.keep((url, path), found)
        return found


def _named(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
