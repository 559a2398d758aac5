"""What a running `forebay up` writes down, so that `forebay down` can end it, and clean up after one that was killed.

One directory per user (`places.state_home`), readable by nobody else: the state, the lock, the gateway's resolved
configuration, and the logs.
"""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from core.errors import ForebayError
from deploy.processes import (
    abandoned_shared_memory,
    below_directory,
    end,
    is_alive,
    remove_shared_memory,
    shared_memory,
)

StepStatus = Literal["waiting", "running", "done", "failed"]


class AlreadyRunning(ForebayError):
    """Another `forebay up` of this user runs."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Step(_Record):
    """One thing that `up` waits for, for people."""

    name: str
    status: StepStatus = "waiting"
    detail: str = ""


class Started(_Record):
    """A process, by pid and by when it started (Unix time, as psutil gives it): pids are used again."""

    pid: int
    created: float

    @classmethod
    def of(cls, process: psutil.Process) -> "Started":
        """The process's entry."""
        return cls(pid=process.pid, created=process.create_time())

    def process(self) -> psutil.Process | None:
        """The same process, where it still runs."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            # psutil corrects for clock changes, which moves the value by a little.
            if abs(process.create_time() - self.created) < 1 and is_alive(process):
                return process
        return None


class RunningTier(_Record):
    """One tier as clients of `up --json` see it."""

    model: str
    url: str


class State(_Record):
    """Everything about one `up`."""

    supervisor: Started
    phase: Literal["starting", "ready", "failed"] = "starting"
    steps: tuple[Step, ...] = ()
    url: str | None = None
    tiers: dict[str, RunningTier] = {}
    metrics: str | None = None
    error: str | None = None
    log: str | None = None
    directory: str | None = None
    processes: tuple[Started, ...] = ()
    shared_memory: tuple[str, ...] = ()
    drain: float = 30.0


class Instance:
    """The state directory. Nothing is created before something is written."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.logs = directory / "logs"
        self.gateway_config = directory / "gateway.yaml"
        self._state, self._lock = directory / "up.json", directory / "up.lock"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Held for the life of one `up`; the kernel lets go when the process ends, however it ends.

        Raises AlreadyRunning.
        """
        self.prepare()
        with self._lock.open("a+", encoding="utf-8") as lock:
            for attempt in reversed(range(5)):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    # `is_running` of another command holds it for an instant.
                    if not attempt:
                        raise AlreadyRunning(self._busy()) from None
                    time.sleep(0.1)
            yield

    def prepare(self) -> None:
        """Create the directory, for this user only."""
        self.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.directory.chmod(0o700)

    def is_running(self) -> bool:
        """Whether an `up` holds the lock."""
        try:
            with self._lock.open("r", encoding="utf-8") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
        except OSError:
            pass
        return False

    def refuse_if_running(self) -> None:
        """Raise AlreadyRunning where an `up` holds the lock."""
        if self.is_running():
            raise AlreadyRunning(self._busy())

    def _busy(self) -> str:
        state = self.read()
        at = f" at {state.url}" if state and state.url else ""
        pid = f", pid {state.supervisor.pid}" if state else ""
        return f"already running{at}{pid}; `forebay down` stops it"

    def read(self) -> State | None:
        """The last state written, or None."""
        try:
            return State.model_validate_json(self._state.read_bytes())
        except (OSError, ValidationError):
            return None

    def write(self, state: State) -> None:
        """Replace the state, all at once."""
        self.write_private(self._state, state.model_dump_json(indent=1))

    def write_private(self, path: Path, text: str) -> None:
        """Write a file in the directory that only this user may read."""
        self.prepare()
        work = path.with_name(f".{path.name}.{os.getpid()}")
        with os.fdopen(os.open(work, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        work.replace(path)

    def forget(self) -> None:
        """Remove the state and the gateway's configuration; logs stay."""
        self._state.unlink(missing_ok=True)
        self.gateway_config.unlink(missing_ok=True)

    def sweep(self) -> int:
        """End what an `up` that was killed has left, remove its directory and state; how many processes were ended."""
        state = self.read()
        left = leftovers(state) if state else []
        if state:
            segments = shared_memory(left)
            end(left)
            # What was made between two looks of an `up` that was then killed is in no list.
            segments |= abandoned_shared_memory(state.supervisor.created)
            remove_shared_memory([*state.shared_memory, *segments])
            if state.directory:
                shutil.rmtree(state.directory, ignore_errors=True)
        self.forget()
        return len(left)

    def stop(self, patience: float) -> int | None:
        """End the `up` that runs, its way; the pid, or None where none runs. Killed after `patience` seconds."""
        if not self.is_running():
            return None
        state = self.read()
        process = state.supervisor.process() if state else None
        if process is None:
            # It holds the lock and has not written yet: its first write is a moment away.
            raise ForebayError("an `up` is just starting; try again in a moment")
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
        deadline = time.monotonic() + patience
        while is_alive(process) and time.monotonic() < deadline:
            time.sleep(0.1)
        if is_alive(process):
            with contextlib.suppress(psutil.Error):
                process.kill()
        while is_alive(process):
            time.sleep(0.1)
        return process.pid


def leftovers(state: State) -> list[psutil.Process]:
    """Processes of an `up` that still run although it does not: the recorded ones, and any that uses its directory."""
    known = [process for started in state.processes if (process := started.process())]
    if state.directory:
        known += below_directory(Path(state.directory))
    found = set(known)
    for process in known:
        with contextlib.suppress(psutil.Error):
            found.update(process.children(recursive=True))
    return sorted(found, key=lambda process: process.pid)
