"""Where the load goes: an address, resolved once, and the head of every request."""

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from core.errors import ConfigError, ForebayError, Problem

PATHS = {"chat": "/chat/completions", "completions": "/completions"}


@dataclass(frozen=True)
class Target:
    """An OpenAI-compatible endpoint. `url` ends in /v1, which is added where it is missing.

    `verify` False accepts any certificate. `headers` go with every request. Raises ConfigError for what is no address.
    """

    url: str
    kind: str = "chat"
    headers: Mapping[str, str] = field(default_factory=dict)
    verify: bool = True

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or self.kind not in PATHS:
            raise ConfigError([Problem("url", f"{self.url!r}; legal is http://host:port/v1 or https://…")])

    @property
    def base(self) -> str:
        """The address with /v1 and without a slash at its end."""
        whole = self.url.rstrip("/")
        return whole if whole.endswith("/v1") else f"{whole}/v1"

    @property
    def root(self) -> str:
        """The address without /v1."""
        return self.base.removesuffix("/v1")

    @property
    def host(self) -> str:
        """Name or address of the server."""
        return str(urlsplit(self.url).hostname)

    @property
    def port(self) -> int:
        """TCP port."""
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    def tls(self) -> ssl.SSLContext | None:
        """The context of a https address."""
        if urlsplit(self.url).scheme != "https":
            return None
        context = ssl.create_default_context()
        if not self.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    def resolve(self) -> tuple[socket.AddressFamily, tuple[object, ...]]:
        """Family and address to connect to. Raises ForebayError for a name that cannot be resolved."""
        try:
            family, _, _, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
        except OSError as error:
            raise ForebayError(f"{self.host} cannot be resolved: {error}") from None
        return family, address

    def head(self) -> bytes:
        """A request up to the value of content-length, which `request` adds."""
        parts = urlsplit(self.base)
        lines = [
            f"POST {parts.path}{PATHS[self.kind]} HTTP/1.1",
            f"host: {parts.netloc.rpartition('@')[2]}",
            "user-agent: forebay-bench",
            "accept: text/event-stream, application/json",
            "accept-encoding: identity",
            "content-type: application/json",
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        return ("\r\n".join(lines) + "\r\ncontent-length: ").encode("latin-1")
