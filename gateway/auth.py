"""Who asks: client keys, kept as SHA-256 digests only."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from core.config import resolve_secret
from core.config.records import Key
from core.errors import BadRequest, ConfigError, Forbidden, Problem, Unauthorized

Priority = Literal["high", "normal", "low"]
PRIORITIES: tuple[Priority, ...] = ("high", "normal", "low")
DEFAULT_TENANT = "default"


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a key may use at most; None is unlimited. `monthly_budget` is in the unit of the tiers' prices."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    monthly_budget: float | None = None


UNLIMITED = Allowance()


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose request it is. `name` is the key's name, shown in logs instead of the key."""

    name: str
    tenant: str
    admin: bool
    cache: bool
    priority: Priority
    weight: float = 1.0
    allowance: Allowance = UNLIMITED

    def urgency(self, asked: bytes | None) -> Priority:
        """The priority of a request that asks for one: the key's is default and maximum. Raises BadRequest."""
        if asked is None:
            return self.priority
        given = next((known for known in PRIORITIES if known.encode() == asked), None)
        if given is None:
            raise BadRequest(f"x-forebay-priority must be one of {', '.join(PRIORITIES)}", param="x-forebay-priority")
        return max(given, self.priority, key=PRIORITIES.index)


# Without keys everyone is the same tenant, and nobody is an administrator.
ANYONE = Identity(name="-", tenant=DEFAULT_TENANT, admin=False, cache=True, priority="normal")


class Keyring:
    """The configured keys. Raises ConfigError where a key cannot be read or is given twice."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._identities: dict[bytes, Identity] = {}
        problems = []
        for index, key in enumerate(keys):
            at = f"auth.keys[{index}]"
            try:
                digest = _digest_of(key)
            except ConfigError as error:
                problems += [Problem(f"{at}.{'env' if key.env else 'file'}", found.message) for found in error.problems]
                continue
            if digest in self._identities:
                problems.append(Problem(at, f"the same key as {self._identities[digest].name!r}"))
            self._identities[digest] = _identity(key)
        if problems:
            raise ConfigError(problems)

    @property
    def open(self) -> bool:
        """Whether no keys are configured, so that everyone may ask."""
        return not self._identities

    @property
    def administrators(self) -> Mapping[bytes, Identity]:
        """Those who may administrate, by the digests of their keys."""
        return {digest: identity for digest, identity in self._identities.items() if identity.admin}

    def identify(self, authorization: bytes | None) -> Identity:
        """The identity behind an `Authorization: Bearer` header. Raises Unauthorized."""
        if not self._identities:
            return ANYONE
        if authorization is None:
            raise Unauthorized("no API key: send it as Authorization: Bearer KEY")
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            raise Unauthorized("the API key must be sent as Authorization: Bearer KEY")
        digest = hashlib.sha256(token.strip()).digest()
        found: Identity | None = None
        # Every digest is compared, each in constant time: how long it takes says nothing about how near a guess is.
        for known, identity in self._identities.items():
            if hmac.compare_digest(known, digest):
                found = identity
        if found is None:
            raise Unauthorized("unknown API key")
        return found

    def admin(self, authorization: bytes | None) -> Identity:
        """The identity of an administrator. Raises Unauthorized, or Forbidden also where no keys are configured."""
        if self.open:
            raise Forbidden("no keys are configured, so /admin is closed; add one to auth.keys with admin: true")
        identity = self.identify(authorization)
        if not identity.admin:
            raise Forbidden("this key is not an administrator's")
        return identity


def _identity(key: Key) -> Identity:
    allowance = Allowance(key.requests_per_minute, key.tokens_per_minute, key.concurrency, key.monthly_budget)
    return Identity(key.name, key.tenant, key.admin, key.cache, key.priority, key.weight, allowance)


def _digest_of(key: Key) -> bytes:
    if key.sha256 is not None:
        return bytes.fromhex(key.sha256)
    secret = resolve_secret(f"${{{key.env}}}" if key.env is not None else f"file:{key.file}")
    return hashlib.sha256(secret.encode()).digest()
