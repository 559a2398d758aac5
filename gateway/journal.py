"""One JSON line per request, and one per warning; never prompts, answers, keys or headers."""

import asyncio
import contextlib
import logging
import os
import select
import sys
from collections.abc import Callable
from datetime import UTC, datetime

import orjson
from pydantic import JsonValue

from core.clock import Clock
from gateway.account import Account

Write = Callable[[bytes], object]
# How long a request's line may wait for others, in seconds, and how many wait at most.
PATIENCE = 0.05
BATCH = 256


class Journal:
    """Writes request lines. `write` takes whole lines; it is the process's stderr unless something else is given."""

    def __init__(self, clock: Clock, write: Write | None = None) -> None:
        self._clock = clock
        self._stderr = Stderr()
        self._write: Write = write if write is not None else self._stderr
        self._second = 0
        self._written = ""

    def close(self) -> None:
        """Write what still waits."""
        self._stderr.flush()

    def request(self, account: Account, duration_s: float, overhead_s: float) -> None:
        """The line of one request."""
        usage = account.usage
        line: dict[str, JsonValue] = {
            "ts": self._now(),
            "event": "request",
            "request_id": account.request_id,
            "method": account.method,
            "route": account.route,
            "status": account.status,
            "reason": account.reason,
            "tenant": account.tenant,
            "key": account.key,
            "priority": account.priority,
            "model": account.model,
            "stream": account.stream,
            "tier": account.tier,
            "cache": account.cache,
            "semantic": account.semantic,
            "similarity": _rounded(account.similarity, 4),
            "guard": account.guard,
            "complexity": _rounded(account.complexity, 4),
            "truncated": account.truncated,
            "route_reason": account.route_reason,
            "confidence": _rounded(account.confidence, 4),
            "queue_ms": round(account.queue_s * 1000, 3),
            "upstream_ms": round(account.upstream_s * 1000, 3),
            "overhead_ms": round(overhead_s * 1000, 3),
            "ttft_ms": None if account.first_at is None else round((account.first_at - account.arrived) * 1000, 3),
            "duration_ms": round(duration_s * 1000, 3),
            "input_tokens": usage.input if usage else None,
            "output_tokens": usage.output if usage else None,
            "cached_tokens": usage.cached if usage else None,
            "retries": account.retries,
            "upstream": account.url,
        }
        self._write(orjson.dumps(line) + b"\n")

    def _now(self) -> str:
        """The time; all but the milliseconds is kept for a second."""
        now = self._clock.time()
        second = int(now)
        if second != self._second:
            self._second, self._written = second, timestamp(second)[:-4]
        return f"{self._written}{int((now - second) * 1000):03d}Z"


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


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


class Stderr:
    """The process's stderr, written in batches: a line costs an append, and every turn of the timer one system call."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._lines: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, line: bytes) -> None:
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
        lines, self._lines = self._lines, []
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
