"""A load, shared out among processes that start together."""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.load.loop import Job, Loop, Users
from bench.load.prompts import Prompts
from bench.load.records import Measured, measured, together
from bench.load.target import Target
from core.errors import ForebayError

# Between the last process being ready and the first request.
HEAD_START = 0.05
# Requests per second that one process sends without being late, on a core to itself, with eight chunks each.
PER_PROCESS = 1000.0


@dataclass(frozen=True)
class Load:
    """What is sent. `due`: ascending seconds after the start, one per question (open loop); None with `users`.

    `in_flight` bounds an open loop. `processes` None: one per 1,000 requests per second.
    """

    target: Target
    prompts: Prompts
    due: NDArray[np.float64] | None
    users: Users | None = None
    in_flight: int | None = None
    timeout_s: float = 600.0
    processes: int | None = None


def run(load: Load, tell: Callable[[int], None] | None = None) -> Measured:
    """Sends the load and waits for the answers. `tell` hears now and then how many there are.

    Raises ForebayError where a process fails.
    """
    load.target.resolve()
    context = multiprocessing.get_context("spawn")
    started: list[tuple[Any, Connection]] = []
    try:
        for number, job in enumerate(jobs(load)):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(job, number, theirs, tell is not None), daemon=True)
            process.start()
            theirs.close()
            started.append((process, ours))
        pipes = [pipe for _, pipe in started]
        for pipe in pipes:
            _take(pipe)
        start = time.monotonic() + HEAD_START
        for pipe in pipes:
            pipe.send(start)
        parts = _collect(pipes, tell)
        for process, _ in started:
            process.join(10)
    finally:
        for process, pipe in started:
            pipe.close()
            if process.is_alive():
                process.terminate()
                process.join()
    return together(parts)


def jobs(load: Load) -> list[Job]:
    """The load, dealt out in turn."""
    count = _processes(load)
    index = np.arange(len(load.prompts.texts), dtype=np.int64)
    due = np.zeros(0) if load.due is None else load.due
    made = []
    for number in range(count):
        users = load.users
        if users is not None:
            users = replace(users, users=len(range(number, users.users, count)))
        bound = None if load.in_flight is None else len(range(number, load.in_flight, count))
        made.append(
            Job(load.target, load.prompts, index[number::count], due[number::count], users, bound, load.timeout_s)
        )
    return made


def _processes(load: Load) -> int:
    if load.processes is not None:
        count = load.processes
    elif load.due is not None and len(load.due) > 1 and load.due[-1] > 0:
        count = int(-(-(len(load.due) / float(load.due[-1])) // PER_PROCESS))
    else:
        count = 1
    for bound in (load.users.users if load.users is not None else None, load.in_flight):
        count = count if bound is None else min(count, bound)
    return max(1, min(count, len(load.prompts.texts), (multiprocessing.cpu_count() or 1) * 2))


def _collect(pipes: Sequence[Connection], tell: Callable[[int], None] | None) -> list[Measured]:
    parts: dict[int, Measured] = {}
    counts = [0] * len(pipes)
    while len(parts) < len(pipes):
        open_ = [pipe for place, pipe in enumerate(pipes) if place not in parts]
        for pipe in wait(open_):
            place = pipes.index(pipe)
            got = _take(pipes[place])
            if isinstance(got, Measured):
                parts[place] = got
            else:
                counts[place] = int(got)
                if tell is not None:
                    tell(sum(counts))
    return [parts[place] for place in range(len(pipes))]


def _take(pipe: Connection) -> Any:
    try:
        got = pipe.recv()
    except EOFError:
        raise ForebayError("a process of the load generator has died") from None
    if isinstance(got, str):
        raise ForebayError(got)
    return got


def _work(job: Job, number: int, pipe: Connection, tells: bool) -> None:
    """One process: gets ready, starts when told, sends what it has measured."""
    try:
        loop = Loop(job)
        loop.open()
        pipe.send(0)
        start = pipe.recv()
        began = time.process_time()
        loop.run(start, pipe.send if tells else None)
        busy = (time.process_time() - began) / max(time.monotonic() - start, 1e-9)
        pipe.send(measured(loop.seen, start, loop.area, busy, number))
    except (KeyboardInterrupt, BrokenPipeError, EOFError):
        pass  # the parent has ended
    except ForebayError as error:
        pipe.send(str(error))
