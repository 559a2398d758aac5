"""Addresses in the configuration: of servers that speak HTTP, and of stores. Secrets in them are references."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

_VARIABLE = r"\$\{[A-Za-z_][A-Za-z0-9_]*\}"
REFERENCE = rf"{_VARIABLE}|file:.+"
_SERVER = r"https?://[^/@\s?#]+(/[^\s?#]*)?"
_STORE = rf"memory|rediss?(\+cluster)?://[^\s]+|{REFERENCE}"
STORE_LEGAL = "memory, redis://, rediss://, redis+cluster:// or rediss+cluster:// with host[:port][/database]"
# Query options of a store's address, each with how its text is read.
OPTIONS: Mapping[str, Callable[[str], str | bool]] = {
    "ssl_ca_certs": str,
    "ssl_certfile": str,
    "ssl_keyfile": str,
    "ssl_cert_reqs": str,
    "ssl_check_hostname": lambda text: text.lower() in ("1", "true", "yes"),
    "client_name": str,
}


@dataclass(frozen=True)
class RedisAddress:
    """Where a Redis server, or one server of a cluster, listens, and how to prove who we are.

    `options`: keyword arguments of the client library.
    """

    host: str
    port: int
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    cluster: bool = False
    options: Mapping[str, str | bool] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def redis_address(url: str, password: str | None = None) -> RedisAddress:
    """The parts of a store's address. Raises ValueError, whose message carries nothing of the address but its options.

    `password` is what the reference in the address stands for.
    """
    parts = urlsplit(url)
    scheme, _, cluster = parts.scheme.partition("+")
    try:
        port = parts.port
    except ValueError:
        raise ValueError("the port is not a number") from None
    if scheme not in ("redis", "rediss") or cluster not in ("", "cluster") or not parts.hostname:
        raise ValueError(f"not the address of a store; legal is {STORE_LEGAL}")
    path = parts.path.strip("/")
    if path and not path.isdigit():
        raise ValueError("what follows the host must be the number of a database")
    if cluster and path not in ("", "0"):
        raise ValueError("a cluster has no database but 0")
    given = parse_qsl(parts.query, keep_blank_values=True)
    if unknown := [name for name, _ in given if name not in OPTIONS]:
        raise ValueError(f"unknown option {unknown[0]!r}; legal: {', '.join(OPTIONS)}")
    options = {name: OPTIONS[name](value) for name, value in given}
    if options.get("ssl_cert_reqs", "required") not in ("none", "optional", "required"):
        raise ValueError("ssl_cert_reqs must be none, optional or required")
    if options.get("ssl_cert_reqs") == "none":
        options["ssl_check_hostname"] = False
    if scheme == "redis" and any(name.startswith("ssl_") for name in options):
        raise ValueError("ssl_ options need TLS: rediss://")
    return RedisAddress(
        host=unquote(parts.hostname),
        port=port or 6379,
        database=int(path or 0),
        username=unquote(parts.username) if parts.username else None,
        password=password,
        tls=scheme == "rediss",
        cluster=bool(cluster),
        options=options,
    )


def password_of(url: str) -> str | None:
    """The password in a store's address as it is written there; None where there is none."""
    written = urlsplit(url).password
    return unquote(written) if written else None


def _secret_reference(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(REFERENCE, value):
        return value
    # Not a ValueError: its report would carry the value, which may be the secret itself.
    raise PydanticCustomError("secret", "a secret is given by reference only: ${{NAME_OF_VARIABLE}} or file:/path")


def _server_url(value: object) -> object:
    if not isinstance(value, str):
        return value
    url = value.rstrip("/").removesuffix("/v1")
    if not re.fullmatch(_SERVER, url):
        raise ValueError("not a server address; legal is http(s)://host[:port][/prefix], without credentials or query")
    return url


def _store_url(value: object) -> object:
    if not isinstance(value, str) or value == "memory" or re.fullmatch(REFERENCE, value):
        return value
    written = password_of(value)
    if written is not None and not re.fullmatch(_VARIABLE, written):
        raise PydanticCustomError(
            "secret", "a password is given by reference only: redis://:${{NAME_OF_VARIABLE}}@host, or all of it so"
        )
    redis_address(value)
    return value


SecretRef = Annotated[
    str, BeforeValidator(_secret_reference), WithJsonSchema({"type": "string", "pattern": f"^({REFERENCE})$"})
]
ServerUrl = Annotated[str, BeforeValidator(_server_url), WithJsonSchema({"type": "string", "pattern": f"^{_SERVER}$"})]
StoreUrl = Annotated[str, BeforeValidator(_store_url), WithJsonSchema({"type": "string", "pattern": f"^({_STORE})$"})]
