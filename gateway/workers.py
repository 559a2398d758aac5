"""Several gateway processes on one port: started, watched, replaced when one dies, and ended together.

The supervisor holds the listening sockets, so that no connection is lost while a worker is replaced, and does nothing
else: no event loop, no threads, no requests. Its children are the workers and, where vectors are wanted, the one
process that holds the embedder for all of them. A child whose supervisor is gone ends by itself.
"""

import logging
import os
import selectors
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn, Protocol

import orjson

from core.config import Config
from core.config.live import renewal
from core.errors import ConfigError, ForebayError, Problem
from gateway.embedder_process import listen, serve
from gateway.reload import check_secrets, one_line

logger = logging.getLogger("forebay.workers")

# A child that lived for so long is replaced at once; one that did not waits, longer each time. Seconds.
STABLE, FIRST_PAUSE, LONGEST_PAUSE = 10.0, 0.5, 30.0
# Beyond the drain limit, until a worker that does not end is killed, in seconds.
MARGIN = 8.0
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


class Work(Protocol):
    """What a child does, with the configuration of the moment; gives its exit code. Raises ForebayError."""

    def __call__(self, lifeline: "Lifeline", config: Config) -> int: ...


@dataclass
class Child:
    """One place for a process. `pid` 0: none runs, and one is due at `due`.

    `up`: it does its work; `behind`: the configuration has changed since it was started.
    """

    name: str
    work: Work
    pid: int = 0
    due: float = 0.0
    since: float = 0.0
    deaths: int = 0
    up: bool = False
    behind: bool = False
    told: bytes = b""
    pipe: int = -1


@dataclass(frozen=True)
class Lifeline:
    """A child's ties to its supervisor: `tell` sends it one document; `parent` is readable when it is gone."""

    writing: int
    parent: int

    def up(self) -> None:
        """The child does its work."""
        os.write(self.writing, b'{"up":true}\n')

    def failed(self, error: ForebayError) -> None:
        """The child cannot do its work."""
        problems = error.problems if isinstance(error, ConfigError) else ()
        document = {"error": str(error), "problems": [[problem.path, problem.message] for problem in problems]}
        os.write(self.writing, orjson.dumps(document) + b"\n")


class Supervisor:
    """Runs the children until a signal. `run` is called once."""

    def __init__(self, config: Config, read: Callable[[], Config] | None, workers: Sequence[Work]) -> None:
        self._config, self._read = config, read
        self._workers = [Child(f"worker {number}", work) for number, work in enumerate(workers)]
        self._embedder: Child | None = None
        self._selector = selectors.DefaultSelector()
        self._parent: tuple[int, int] = (-1, -1)
        self._stopping = self._announced = False
        self._kill_at = 0.0
        self._failure: ForebayError | None = None

    def with_embedder(self, listening: socket.socket) -> None:
        """Have a process that computes vectors on this socket."""

        def work(lifeline: Lifeline, config: Config) -> int:
            threading.Thread(target=_end_with_parent, args=(lifeline.parent,), daemon=True).start()
            lifeline.up()
            serve(listening, config.embedder)
            return 0

        self._embedder = Child("embedder", work)

    def run(self, announce: Callable[[], None]) -> int:
        """Until everything has ended; `announce` is called when all workers are up. Raises ForebayError."""
        self._parent = os.pipe()
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        os.set_blocking(reading, False)
        self._selector.register(reading, selectors.EVENT_READ)
        before = [(number, signal.signal(number, _noted)) for number in _FORWARDED]
        wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        try:
            self._loop(reading, announce)
        finally:
            for child in self._children:
                if child.pid:
                    os.kill(child.pid, signal.SIGKILL)
                    os.waitpid(child.pid, 0)
            signal.set_wakeup_fd(wakeup)
            for number, handler in before:
                signal.signal(number, handler)
            for end in (reading, writing, *self._parent):
                os.close(end)
            self._selector.close()
        if self._failure is not None:
            raise self._failure
        return 0

    @property
    def _children(self) -> list[Child]:
        return [*self._workers, *([] if self._embedder is None else [self._embedder])]

    def _loop(self, wakeups: int, announce: Callable[[], None]) -> None:
        while not self._stopping or any(child.pid for child in self._workers):
            now = time.monotonic()
            for child in self._children:
                if not child.pid and child.due <= now and not self._stopping:
                    self._spawn(child)
            if self._stopping and now >= self._kill_at:
                self._signal(signal.SIGKILL)
                self._kill_at = now + MARGIN
            for key, _ in self._selector.select(self._timeout()):
                if key.fd == wakeups:
                    for number in os.read(wakeups, 1024):
                        self._heard(number)
                else:
                    self._told(key.data)
            self._reap()
            if not self._announced and all(child.up for child in self._workers):
                self._announced = True
                announce()

    def _timeout(self) -> float | None:
        now = time.monotonic()
        if self._stopping:
            return max(self._kill_at - now, 0.0)
        return min((max(child.due - now, 0.0) for child in self._children if not child.pid), default=None)

    def _heard(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self._stop()
        elif number == signal.SIGHUP:
            self._reload()

    def _stop(self) -> None:
        """The first signal lets the workers finish their streams, the second does not."""
        if not self._stopping:
            self._stopping = True
            self._kill_at = time.monotonic() + self._config.gateway.drain + MARGIN
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        for child in self._workers:
            if child.pid:
                os.kill(child.pid, number)

    def _reload(self) -> None:
        """Check the file here, so that what is wrong is said once; the workers read it themselves."""
        if self._read is not None:
            try:
                new = renewal(self._config, self._read())
                check_secrets(new.config)
            except ConfigError as error:
                logger.error("configuration not reloaded, the old one stays: %s", one_line(error))  # noqa: TRY400
                return
            self._config = new.config
        for child in self._workers:
            child.behind = True
            self._catch_up(child)

    def _catch_up(self, child: Child) -> None:
        """Have a worker read the file, once it can hear that."""
        if child.behind and child.up and child.pid:
            child.behind = False
            os.kill(child.pid, signal.SIGHUP)

    def _spawn(self, child: Child) -> None:
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal that comes now must not be taken for one of the supervisor's.
        signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        pid = os.fork()
        if not pid:
            _be(
                partial(child.work, config=self._config), Lifeline(writing, self._parent[0]), (reading, self._parent[1])
            )
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        os.close(writing)
        child.pid, child.since, child.up, child.told, child.pipe = pid, time.monotonic(), False, b"", reading
        child.behind = False
        self._selector.register(reading, selectors.EVENT_READ, child)

    def _told(self, child: Child) -> None:
        """Something came from a child, or its end of the pipe is closed."""
        piece = os.read(child.pipe, 65536)
        child.told += piece
        child.up = child.up or child.told.startswith(b'{"up"')
        self._catch_up(child)
        if not piece:
            self._selector.unregister(child.pipe)
            os.close(child.pipe)
            child.pipe = -1

    def _reap(self) -> None:
        for child in self._children:
            if child.pid and (ended := os.waitpid(child.pid, os.WNOHANG))[0]:
                child.pid = 0
                while child.pipe >= 0:
                    self._told(child)
                if not self._stopping:
                    self._died(child, os.waitstatus_to_exitcode(ended[1]))

    def _died(self, child: Child, code: int) -> None:
        lived = time.monotonic() - child.since
        if not self._announced and child in self._workers:
            # It never came up: what is wrong is wrong for all of them.
            self._failure = _failure_of(child, code)
            self._stop()
            return
        child.deaths = 1 if lived >= STABLE else child.deaths + 1
        pause = 0.0 if lived >= STABLE else min(FIRST_PAUSE * 2 ** (child.deaths - 1), LONGEST_PAUSE)
        child.due = time.monotonic() + pause
        child.up = False
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        logger.error("%s ended with %s after %.0f s and is started again in %.1f s", child.name, how, lived, pause)


def _failure_of(child: Child, code: int) -> ForebayError:
    for line in child.told.splitlines():
        document = orjson.loads(line)
        if document.get("problems"):
            return ConfigError([Problem(path, message) for path, message in document["problems"]])
        if "error" in document:
            return ForebayError(document["error"])
    return ForebayError(f"{child.name} ended while starting, with {'signal' if code < 0 else 'exit code'} {abs(code)}")


def _be(work: Callable[[Lifeline], int], lifeline: Lifeline, foreign: tuple[int, ...]) -> NoReturn:
    """The life of a child, from the fork to its end."""
    code = 1
    try:
        for end in foreign:
            os.close(end)
        signal.set_wakeup_fd(-1)
        for number in _FORWARDED:
            signal.signal(number, signal.SIG_DFL)
        # Ctrl-C goes to the whole group: the supervisor hears it, and tells. Nobody reloads before it serves.
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        code = work(lifeline)
    except ForebayError as error:
        lifeline.failed(error)
    except BaseException:  # noqa: BLE001  # nothing may return into the supervisor's stack
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        # No clean-up of what belongs to the supervisor.
        os._exit(code)


def _end_with_parent(parent: int) -> None:
    os.read(parent, 1)
    os._exit(0)


def _noted(_number: int, _frame: object) -> None:
    """Its number has been written to the wakeup pipe."""


def runtime_folder(stack: ExitStack) -> Path:
    """A folder of this user alone for the sockets of the workers, removed with the stack."""
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-")))


# The name of its socket in the workers' folder.
EMBEDDER = "embedder"


def embedder_socket(folder: Path, stack: ExitStack) -> socket.socket:
    """The socket of the embedder's process in that folder."""
    return stack.enter_context(listen(folder / EMBEDDER))
