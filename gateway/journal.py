"""One JSON line per request, and one per warning; never prompts, answers, keys or headers."""

import asyncio
import contextlib
import logging
import os
import select
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import orjson
from pydantic import JsonValue

from cache.question import entry_id
from core.clock import Clock
from core.memo import Memo
from gateway.account import NOBODY, Account

# A line: what is never the same twice by a template, the rest from a table. All of it as JSON costs thrice as much.
WORDS = (
    "method", "route", "status", "reason", "tenant", "key", "priority", "model", "stream", "tier", "cache", "semantic",
    "guard", "truncated", "route_reason", "retries", "upstream",
)  # fmt: skip
MAX_SAID = 1000
TOKENS = b'"input_tokens":%d,"output_tokens":%d,"cached_tokens":%d'
NO_TOKENS = b'"input_tokens":null,"output_tokens":null,"cached_tokens":null'
LINE = (
    b'{"ts":"%b","event":"request","request_id":"%b","fingerprint":%b,%b,"similarity":%b,"complexity":%b,"confidence":%b,'
    b'"queue_ms":%.3f,"upstream_ms":%.3f,"overhead_ms":%.3f,"ttft_ms":%b,"duration_ms":%.3f,%b}\n'
)

Write = Callable[[bytes], object]
# How long a request's line may wait for others, in seconds, and how many wait at most.
PATIENCE = 0.05
BATCH = 64


class Journal:
    """Writes request lines. `write` takes whole lines; it is the process's stderr unless something else is given."""

    def __init__(self, clock: Clock, write: Write | None = None) -> None:
        self._clock = clock
        self._write: Write = write if write is not None else Stderr()
        self._second = self._milli = 0
        self._written = self._stamp = b""
        self._said: Memo[tuple[JsonValue, ...], bytes] = Memo(MAX_SAID)

    def close(self) -> None:
        """Write what still waits."""
        if isinstance(self._write, Stderr):
            self._write.flush()

    def request(self, account: Account, duration_s: float, overhead_s: float) -> None:
        """The line of one request, which is settled: what its account says does not change any more."""
        now, write = self._clock.time(), self._write
        if isinstance(write, Stderr):
            # It waits for others anyway, and many in a row are written twice as fast as one here and there.
            write(partial(self._line, account, now, duration_s, overhead_s))
        else:
            write(self._line(account, now, duration_s, overhead_s))

    def _line(self, account: Account, now: float, duration_s: float, overhead_s: float) -> bytes:
        identity, usage, first_at = account.identity, account.usage, account.first_at
        key = NOBODY if identity is None else identity.name
        words = (
            account.method, account.route, account.status, account.reason, account.tenant, key, account.priority,
            account.model, account.stream, account.tier, account.cache, account.semantic, account.guard,
            account.truncated, account.route_reason, account.retries, account.url,
        )  # fmt: skip
        said = self._said.get(words)
        if said is None:
            said = self._say(words)
        return LINE % (
            self._stamped(now),
            account.request_id.encode("ascii", "replace"),
            b"null" if account.fingerprint is None else b'"%b"' % entry_id(account.fingerprint).encode(),
            said,
            _decimals(account.similarity),
            _decimals(account.complexity),
            _decimals(account.confidence),
            account.queue_s * 1000,
            account.upstream_s * 1000,
            overhead_s * 1000,
            b"null" if first_at is None else b"%.3f" % ((first_at - account.arrived) * 1000),
            duration_s * 1000,
            NO_TOKENS if usage is None else TOKENS % usage,
        )

    def _say(self, words: tuple[JsonValue, ...]) -> bytes:
        """The part of a line that most requests share with others: written once."""
        return self._said.keep(words, orjson.dumps(dict(zip(WORDS, words, strict=True)))[1:-1])

    def _stamped(self, now: float) -> bytes:
        """The time, kept as long as it is the same millisecond; all but the milliseconds, for a second."""
        milli = int(now * 1000)
        if milli != self._milli:
            second = milli // 1000
            if second != self._second:
                self._second, self._written = second, timestamp(second)[:-4].encode()
            self._milli, self._stamp = milli, b"%b%03dZ" % (self._written, milli % 1000)
        return self._stamp


class JsonLines(logging.Formatter):
    """Log records of the standard library as the same kind of line."""

    def format(self, record: logging.LogRecord) -> str:
        """One JSON object, exception included as text."""
        line: dict[str, JsonValue] = {
            "ts": timestamp(record.created),
            "event": "log",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line).decode()


def timestamp(seconds: float) -> str:
    """UTC in ISO 8601 with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _decimals(value: float | None) -> bytes:
    return b"null" if value is None else b"%.4f" % value


class Stderr:
    """The process's stderr, written in batches: a line costs an append, and every turn of the timer one system call.

    A line may also be given as what makes it, which is asked for it when it is written.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._lines: list[bytes | Callable[[], bytes]] = []
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, line: bytes | Callable[[], bytes]) -> None:
        """Take a line; it is written within the patience. On the event loop only."""
        self._lines.append(line)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._patience, self.flush)
        elif len(self._lines) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Write what was taken."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._lines = self._lines, []
        lines = [line if isinstance(line, bytes) else line() for line in waiting]
        # Nobody reads the log any more: that must not end a request.
        with contextlib.suppress(OSError):
            self._out(lines)

    def _out(self, lines: list[bytes]) -> None:
        sys.stderr.buffer.write(b"".join(lines))
        sys.stderr.buffer.flush()


class SharedStderr(Stderr):
    """The stderr of several processes: a pipe takes each write as a whole, so that lines stay whole."""

    def _out(self, lines: list[bytes]) -> None:
        piece = b""
        for line in lines:
            if piece and len(piece) + len(line) > select.PIPE_BUF:
                os.write(2, piece)
                piece = b""
            piece += line
        if piece:
            os.write(2, piece)
