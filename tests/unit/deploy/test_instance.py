"""What a running `up` writes down is enough to find it, and to clean up after it; nothing else is touched."""

import os
import shutil
import stat
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from core.errors import ForebayError
from deploy.instance import AlreadyRunning, Instance, Started, State, Step
from deploy.local import short_directory
from deploy.processes import abandoned_shared_memory, descendants, end, is_alive, remove_shared_memory, shared_memory

SLEEP = "import time; print(flush=True); time.sleep(600)"
Start = Callable[..., psutil.Process]


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance(tmp_path / "state" / "forebay")


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a Python process; it runs by the time it is returned. All are ended in the end."""
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str = SLEEP, *words: str) -> psutil.Process:
        process = subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return psutil.Process(process.pid)

    yield run
    for process in started:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


@pytest.fixture
def directory() -> Iterator[Path]:
    path = short_directory()
    yield path
    shutil.rmtree(path, ignore_errors=True)


def me() -> Started:
    return Started.of(psutil.Process())


def test_a_state_comes_back_as_it_was_written(instance: Instance) -> None:
    state = State(
        supervisor=me(), steps=(Step(name="Ray", status="done"),), processes=(me(),), shared_memory=("psm_a",)
    )
    instance.write(state)
    assert instance.read() == state


def test_nobody_else_may_read_it(instance: Instance) -> None:
    instance.write(State(supervisor=me()))
    assert stat.S_IMODE(instance.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((instance.directory / "up.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("text", [None, "", "{", '{"unknown": 1}'])
def test_no_state_and_a_broken_one_are_none(instance: Instance, text: str | None) -> None:
    instance.prepare()
    if text is not None:
        (instance.directory / "up.json").write_text(text)
    assert instance.read() is None


def test_two_of_them_do_not_run_at_once(instance: Instance) -> None:
    other = Instance(instance.directory)
    assert not instance.is_running()
    with instance.locked():
        assert instance.is_running()
        with pytest.raises(AlreadyRunning, match="already running"), other.locked():
            pass
        with pytest.raises(AlreadyRunning):
            other.refuse_if_running()
    assert not instance.is_running()
    other.refuse_if_running()


def test_where_nothing_was_ever_started_nothing_is_stopped(instance: Instance) -> None:
    assert instance.stop(patience=1) is None
    assert instance.sweep() == 0
    assert not instance.directory.exists()


def test_what_a_killed_one_left_is_ended_and_removed(instance: Instance, start: Start, directory: Path) -> None:
    left = start()
    (directory / "session").mkdir()
    instance.write(State(supervisor=me(), processes=(Started.of(left),), directory=str(directory)))
    assert instance.sweep() == 1
    assert not is_alive(left)
    assert not directory.exists()
    assert instance.read() is None


def test_processes_that_were_not_written_down_are_found_by_their_directory(
    instance: Instance, start: Start, directory: Path
) -> None:
    named = start(SLEEP, f"--log={directory}/a.log")
    code = f"import os, sys; os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), 2); sys.argv[1] = ''; {SLEEP}"
    writes = start(f"import sys; sys.argv.append({str(directory / 'b.log')!r}); {code}".replace("; ", "\n"))
    stranger = start()
    instance.write(State(supervisor=me(), directory=str(directory)))
    assert instance.sweep() == 2
    assert not is_alive(named)
    assert not is_alive(writes)
    assert stranger.is_running()


def test_a_pid_that_was_used_again_is_left_alone(instance: Instance, start: Start) -> None:
    stranger = start()
    reused = Started(pid=stranger.pid, created=stranger.create_time() - 1000)
    assert reused.process() is None
    instance.write(State(supervisor=me(), processes=(reused,)))
    assert instance.sweep() == 0
    assert stranger.is_running()


HOLD = """
import os, signal, sys
from pathlib import Path
import psutil
from deploy.instance import Instance, Started, State
instance = Instance(Path(sys.argv[1]))
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with instance.locked():
    if sys.argv[2] != "mute":
        instance.write(State(supervisor=Started.of(psutil.Process())))
    print(flush=True)
    signal.pause()
"""


def test_the_one_that_runs_is_told_to_end(instance: Instance, start: Start) -> None:
    running = start(HOLD, str(instance.directory), "polite")
    assert instance.stop(patience=20) == running.pid
    assert not instance.is_running()


def test_one_that_does_not_listen_is_killed(instance: Instance, start: Start) -> None:
    running = start(HOLD, str(instance.directory), "deaf")
    assert instance.stop(patience=0.5) == running.pid
    assert not instance.is_running()


def test_one_that_has_not_written_yet_is_not_guessed_at(instance: Instance, start: Start) -> None:
    running = start(HOLD, str(instance.directory), "mute")
    with pytest.raises(ForebayError, match="just starting"):
        instance.stop(patience=1)
    assert running.is_running()


def test_processes_that_ignore_sigterm_are_ended(start: Start) -> None:
    stubborn = start(f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}")
    end([stubborn], patience=0.3)
    assert not is_alive(stubborn)


def test_descendants_leave_out_what_is_below_others(start: Start) -> None:
    spawn = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1); {SLEEP}"
    mine, other = start(spawn), start(spawn)
    found = set(descendants(but=[other]))
    assert {mine, *mine.children()} <= found
    assert not {other, *other.children()} & found
    end([*mine.children(), *other.children()])


MAP = """
import signal, sys
from multiprocessing.shared_memory import SharedMemory
segment = SharedMemory(name=sys.argv[1], create=True, size=4096)
segment.buf[0] = 1
print(flush=True)
signal.pause()
"""
# A semaphore of a process that others may open; no shared memory besides.
LOCK = """
import multiprocessing, pathlib, signal, sys
lock = multiprocessing.get_context("spawn").RLock()
pathlib.Path(sys.argv[1]).write_text(lock._semlock.name)
print(flush=True)
signal.pause()
"""
MEMORY = Path("/dev/shm")  # noqa: S108  # where the kernel keeps it


def test_shared_memory_of_killed_processes_is_removed_and_no_other(start: Start) -> None:
    name = f"psm_{uuid.uuid4().hex[:8]}"
    process = start(MAP, name)
    assert shared_memory([process]) == {name}
    kept = MEMORY / f"other_{os.getpid()}"
    kept.write_bytes(b"x")
    try:
        # Its resource tracker would tidy up after a death in peace.
        assert name not in abandoned_shared_memory(0)
        processes = [*process.children(), process]
        end(processes, patience=0)
        # What a process has mapped is let go when it is gone, a moment after it was killed.
        assert psutil.wait_procs(processes, 30)[1] == []
        made = (MEMORY / name).stat().st_mtime
        assert name in abandoned_shared_memory(made - 1)
        assert name not in abandoned_shared_memory(made + 1)
        assert kept.name not in abandoned_shared_memory(0)
        remove_shared_memory([name, kept.name, "../shm/" + kept.name])
        assert not (MEMORY / name).exists()
        assert kept.exists()
    finally:
        kept.unlink()


def test_semaphores_are_found_too(start: Start, tmp_path: Path) -> None:
    process = start(LOCK, str(tmp_path / "name"))
    name = f"sem.{(tmp_path / 'name').read_text().removeprefix('/')}"
    assert shared_memory([process]) == {name}
    for tracker in process.children():
        tracker.kill()
    end([process], patience=0)
    remove_shared_memory([name])
    assert not (MEMORY / name).exists()
