"""Ending exactly the processes that were started here, and what they leave behind when they are killed."""

import contextlib
import ctypes
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

# prctl(2): orphans below this process become its children instead of init's, so that they can be found and reaped.
_PR_SET_CHILD_SUBREAPER = 36
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # where the kernel keeps it, not a place for files of ours
# Python's shared memory and semaphores; their owners remove them only when they end in peace.
_SEGMENT = re.compile(r"(?:psm_|sem\.mp-)[\w-]+")
# Inode and path of a line of /proc/PID/maps.
_MAPPED = re.compile(r" (\d+) +/dev/shm/")


def adopt_orphans() -> None:
    """Make this process the parent of every orphan below it. Does nothing on systems other than Linux."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(but: Iterable[psutil.Process] = ()) -> list[psutil.Process]:
    """Every process below this one, except those given and what is below them."""
    left_out = set(but)
    for process in tuple(left_out):
        with contextlib.suppress(psutil.Error):
            left_out.update(process.children(recursive=True))
    return [process for process in psutil.Process().children(recursive=True) if process not in left_out]


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs: not gone, and not a zombie that its parent has yet to look at."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end(processes: Sequence[psutil.Process], patience: float = 3.0) -> None:
    """End processes: SIGTERM, `patience` seconds, SIGKILL. psutil knows a reused pid by its start time."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, stubborn = psutil.wait_procs(processes, timeout=patience)
    for process in stubborn:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(stubborn, timeout=patience)


def reap() -> None:
    """Collect the exit status of adopted orphans that have ended, so that none stays as a zombie."""
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error, ChildProcessError):
            if process.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(process.pid, os.WNOHANG)


def shared_memory(processes: Iterable[psutil.Process]) -> set[str]:
    """Names of the shared memory segments and semaphores that these processes have mapped."""
    inodes: set[int] = set()
    for process in processes:
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8", errors="replace")
            inodes.update(map(int, _MAPPED.findall(maps)))
    # By inode, because a semaphore is mapped under a name that it had while it was made.
    found = set()
    for path in _SHARED_MEMORY.iterdir() if _SHARED_MEMORY.is_dir() else ():
        with contextlib.suppress(OSError):
            if _SEGMENT.fullmatch(path.name) and path.stat().st_ino in inodes:
                found.add(path.name)
    return found


def abandoned_shared_memory(since: float) -> set[str]:
    """Names of this user's segments and semaphores made after `since` (epoch seconds) that no process has mapped."""
    held, mine = shared_memory(psutil.process_iter()), os.getuid()
    found = set()
    for path in _SHARED_MEMORY.iterdir() if _SHARED_MEMORY.is_dir() else ():
        with contextlib.suppress(OSError):
            status = path.stat()
            if _SEGMENT.fullmatch(path.name) and status.st_uid == mine and status.st_mtime >= since:
                found.add(path.name)
    return found - held


def remove_shared_memory(names: Iterable[str]) -> None:
    """Remove segments whose processes were ended."""
    for name in names:
        if _SEGMENT.fullmatch(name):
            with contextlib.suppress(OSError):
                (_SHARED_MEMORY / name).unlink(missing_ok=True)


def below_directory(directory: Path) -> list[psutil.Process]:
    """This user's processes that were started with a file in `directory`, or write to one there."""
    prefix, mine = f"{directory}{os.sep}", os.getuid()
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error):
            if process.uids().real != mine:
                continue
            if any(prefix in word for word in process.cmdline()) or _writes_below(process.pid, prefix):
                found.append(process)
    return found


def _writes_below(pid: int, prefix: str) -> bool:
    for stream in (1, 2):
        with contextlib.suppress(OSError):
            if str(Path(f"/proc/{pid}/fd/{stream}").readlink()).startswith(prefix):
                return True
    return False
