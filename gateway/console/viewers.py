"""Who may look: an administrator, by key or by the session of a browser; without keys, whoever sits at this machine.

A browser cannot send a key when it opens a page. It posts the key once, in a form, and gets a cookie in its place,
signed with a secret of this gateway's life, good for hours, and for nothing once the key is gone from the keyring. It
is not sent along with requests that other sites cause (SameSite=Strict), and where a request could change something it
counts only beside a header that no other site can have a browser send.
"""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from pathlib import Path

from core.clock import Clock
from core.errors import Forbidden, RequestError
from gateway.auth import ANYONE, Identity, Keyring
from gateway.siblings import Family, Siblings

COOKIE = "forebay_console"
# Sent by the page itself, with any value.
OURS = b"x-forebay-console"
# How long a session lasts, in seconds: a working day.
LIFE = 12 * 3600
HARMLESS = ("GET", "HEAD")
# What a proxy adds: behind one, this machine is nobody's address.
FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via")
SHARED = "console.shared"
_HANDLE, _EXPIRES, _MAC = 16, 8, 32

NO_KEY = "the console needs an administrator's key"
NOT_HERE = (
    "no keys are configured, so the console answers only on the machine that the gateway runs on, by its own name"
)


class Sessions:
    """Issues and reads the cookie's value. `secret`: of the gateway, the same in all its workers."""

    def __init__(self, secret: bytes, clock: Clock) -> None:
        self._secret, self._clock = secret, clock

    def issue(self, digest: bytes) -> str:
        """A session for the key with this digest."""
        body = self._handle(digest) + (int(self._clock.time()) + LIFE).to_bytes(_EXPIRES, "big")
        return base64.urlsafe_b64encode(body + self._mac(body)).decode().rstrip("=")

    def identity(self, value: str, keyring: Keyring) -> Identity | None:
        """The administrator whose session this is; None where it is none, or no more."""
        try:
            raw = base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        body, mac = raw[:-_MAC], raw[-_MAC:]
        if len(body) != _HANDLE + _EXPIRES or not hmac.compare_digest(mac, self._mac(body)):
            return None
        if int.from_bytes(body[_HANDLE:], "big") < self._clock.time():
            return None
        handle = body[:_HANDLE]
        for digest, identity in keyring.administrators.items():
            if hmac.compare_digest(handle, self._handle(digest)):
                return identity
        return None

    def _handle(self, digest: bytes) -> bytes:
        """Names a key without giving its digest away."""
        return hmac.digest(self._secret, b"key" + digest, "sha256")[:_HANDLE]

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._secret, b"session" + body, "sha256")


def secret_of(siblings: Siblings) -> bytes:
    """A fresh secret, which the workers of one gateway share: the first one writes it where only they can read."""
    fresh = secrets.token_bytes(32)
    if not isinstance(siblings, Family):
        return fresh
    path, mine = siblings.folder / SHARED, siblings.folder / f"{siblings.number}.secret"
    mine.unlink(missing_ok=True)
    descriptor = os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(fresh)
    # The name appears with the content, and for one of them only.
    with suppress(FileExistsError):
        os.link(mine, path)
    mine.unlink()
    return Path(path).read_bytes()


def session_of(method: str, headers: Mapping[bytes, bytes]) -> str | None:
    """The session that a request may use; None where it has none, or where another site may have caused it."""
    cookie = headers.get(b"cookie")
    if cookie is None or (method not in HARMLESS and OURS not in headers):
        return None
    jar = SimpleCookie()
    try:
        jar.load(cookie.decode("latin-1"))
    except CookieError:
        return None
    return jar[COOKIE].value if COOKIE in jar else None


def viewer(
    keyring: Keyring, sessions: Sessions, method: str, headers: Mapping[bytes, bytes], peer: str | None
) -> Identity:
    """Who looks. `peer`: the address of the other end. Raises Forbidden."""
    if keyring.open:
        if not at_home(headers, peer):
            raise Forbidden(NOT_HERE)
        return ANYONE
    authorization = headers.get(b"authorization")
    if authorization is not None:
        try:
            return keyring.admin(authorization)
        except RequestError as error:
            raise Forbidden(error.message) from None
    session = session_of(method, headers)
    identity = None if session is None else sessions.identity(session, keyring)
    if identity is None:
        raise Forbidden(NO_KEY)
    return identity


def at_home(headers: Mapping[bytes, bytes], peer: str | None) -> bool:
    """Whether a request comes from this machine, and from a page that was opened under a name of this machine.

    A name of somewhere else that leads here belongs to a page that wants to read what it must not.
    """
    if peer is None or not _loopback(peer) or any(name in headers for name in FORWARDED):
        return False
    host = headers.get(b"host", b"").decode("latin-1")
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower().rstrip(".") == "localhost" or _loopback(name)


def digest_of(key: str) -> bytes:
    """What the keyring knows a key by."""
    return hashlib.sha256(key.encode()).digest()


def _loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback
