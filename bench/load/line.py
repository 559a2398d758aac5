"""One connection to the server, plain or TLS, without an event loop: the generator's own loop asks it to act.

The kernel stamps what arrives (SO_TIMESTAMPNS), and that stamp is when an answer came: a generator that is late to read
does not make the server look slow. How late it was is kept beside it.
"""

import socket
import ssl
import struct
import time
from contextlib import suppress
from typing import Any

import httptools

from bench.load.exchange import Exchange
from bench.load.target import Target

# Linux: asks for, and carries, the time at which a segment came (struct timespec).
SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("qq")
_SIZE = 1 << 16
# A stamp further off than this is of a clock that was set.
_PLAUSIBLE = 60.0


class Closed(Exception):
    """The connection is gone."""


class Line:
    """A connection that is being made, idle, or busy with one exchange.

    `receive` and `flush` raise Closed. `waits_to_write` says whether `flush` has something to do.
    """

    def __init__(self, target: Target, address: tuple[socket.AddressFamily, Any], tls: ssl.SSLContext | None) -> None:
        self.socket = socket.socket(address[0], socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError):  # without it, the time of reading counts
            self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._tls_in, self._tls_out, self._tls = ssl.MemoryBIO(), ssl.MemoryBIO(), None
        if tls is not None:
            self._tls = tls.wrap_bio(self._tls_in, self._tls_out, server_hostname=target.host)
        self.connected = False
        self.ready = False
        self.served = 0
        self.watched = 0
        self.exchange: Exchange | None = None
        self.done = False
        self._out = bytearray()
        self._request = b""
        self._parser: Any = None
        self._at = 0.0
        self._error = self.socket.connect_ex(address[1])

    def fileno(self) -> int:
        """The socket's."""
        return self.socket.fileno()

    @property
    def waits_to_write(self) -> bool:
        """Whether the socket must become writable first."""
        return not self.connected or bool(self._out)

    def ask(self, exchange: Exchange, request: bytes) -> None:
        """Sends a request now, or as soon as the connection is made."""
        self.exchange, self.done = exchange, False
        self._parser = httptools.HttpResponseParser(self)
        self._request = request
        if self.ready:
            self._say()

    def flush(self) -> None:
        """The socket is writable: finishes connecting, sends what is left."""
        if not self.connected:
            if self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise Closed
            self.connected = True
            if self._tls is None:
                self.ready = True
            else:
                self._shake()
            if self.ready and self._request:
                self._say()
        self._send()

    def receive(self) -> None:
        """The socket is readable: reads once and hands it to the exchange; `done` when the answer is complete."""
        try:
            data, extra, _, _ = self.socket.recvmsg(_SIZE, 64)
        except BlockingIOError:
            return
        except OSError:
            raise Closed from None
        now = time.monotonic()
        lag = lag_of(extra)
        self._at = now - lag
        if self.exchange is not None and lag > self.exchange.lag:
            self.exchange.lag = lag
        if self._tls is not None:
            data = self._decrypted(data)
        elif not data:
            self._over()
        if data:
            self._feed(data)

    def close(self) -> None:
        """Closes the connection."""
        self.socket.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of the parser: one header."""
        if self.exchange is not None:
            self.exchange.header(name, value)

    def on_headers_complete(self) -> None:
        """Of the parser: the head is complete."""
        if self.exchange is not None:
            self.exchange.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        """Of the parser: a piece of the body."""
        if self.exchange is not None:
            self.exchange.body(data, self._at)

    def on_message_complete(self) -> None:
        """Of the parser: the answer is complete."""
        if self.exchange is not None and self.exchange.status >= 200:
            self.exchange.complete(self._at)
            self.done = True

    @property
    def keeps_alive(self) -> bool:
        """Whether the server lets the connection live for another request."""
        return bool(self._parser.should_keep_alive())

    def _feed(self, data: bytes) -> None:
        if self._parser is None or self.exchange is None:
            raise Closed  # nobody asked
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.exchange.fail("not_http", self._at)
            self.done = True
            raise Closed from None

    def _over(self) -> None:
        """The server has closed: an answer without a length is complete with it."""
        exchange = self.exchange
        if exchange is not None and not self.done and exchange.byte > 0 and not self._framed():
            exchange.complete(self._at)
            self.done = True
        raise Closed

    def _framed(self) -> bool:
        """Whether the answer's head says where it ends; only HTTP without a length ends with the connection."""
        return bool(self._parser.should_keep_alive())

    def _say(self) -> None:
        exchange, data, self._request = self.exchange, self._request, b""
        if self._tls is not None:
            self._tls.write(data)
            data = self._tls_out.read()
        self._out += data
        if exchange is not None:
            exchange.sent = time.monotonic()
        self._send()

    def _send(self) -> None:
        if not self._out or not self.connected:
            return
        try:
            sent = self.socket.send(self._out)
        except BlockingIOError:
            return
        except OSError:
            raise Closed from None
        del self._out[:sent]

    def _shaken(self) -> bool:
        self._shake()
        self._send()
        return self.ready

    def _shake(self) -> None:
        assert self._tls is not None  # noqa: S101 - only called for TLS
        try:
            self._tls.do_handshake()
            self.ready = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            raise Closed from None
        self._out += self._tls_out.read()

    def _decrypted(self, data: bytes) -> bytes:
        assert self._tls is not None  # noqa: S101 - only called for TLS
        if data:
            self._tls_in.write(data)
        else:
            self._tls_in.write_eof()
        if not self.ready:
            if not self._shaken():
                if not data:
                    raise Closed
                return b""
            if self._request:
                self._say()
        parts = []
        try:
            while part := self._tls.read(_SIZE):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            if not parts:
                self._over()
        if not data and not parts:
            self._over()
        return b"".join(parts)


def lag_of(extra: list[tuple[int, int, bytes]]) -> float:
    """Seconds since the kernel got what was read; 0 where it does not say."""
    for level, kind, raw in extra:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(raw) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(raw)
            lag = time.time() - seconds - nanoseconds * 1e-9
            return lag if 0.0 < lag < _PLAUSIBLE else 0.0
    return 0.0
