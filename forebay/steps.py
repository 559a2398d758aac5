"""How `forebay up` shows what it waits for: a moving table on a terminal, one line per change anywhere else."""

import sys
import time
from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from deploy.instance import Step


class Display(Protocol):
    """`show(steps)` is given all steps whenever one of them changes; after `close` only as plain lines."""

    def show(self, steps: Sequence[Step]) -> None: ...

    def close(self) -> None: ...


class Lines:
    """One line per change on stderr, with the seconds since the beginning."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._shown: dict[str, Step] = {}

    def show(self, steps: Sequence[Step]) -> None:
        """Print what changed."""
        for step in self.changed(steps):
            elapsed = time.monotonic() - self._began
            print(f"[{elapsed:4.0f} s] {step.name}: {_said(step)}", file=sys.stderr, flush=True)

    def changed(self, steps: Sequence[Step]) -> list[Step]:
        """The steps that are not as they were shown last."""
        new = [step for step in steps if step.status != "waiting" and self._shown.get(step.name) != step]
        self._shown |= {step.name: step for step in steps}
        return new

    def close(self) -> None:
        """Nothing to undo."""


class Table:
    """A line per step with a spinner and its time, on a terminal."""

    def __init__(self) -> None:
        columns = (
            SpinnerColumn(finished_text=" "),
            TextColumn("{task.description:<14}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[said]}"),
        )
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._progress.start()
        self._tasks: dict[str, TaskID] = {}
        self._lines: Lines | None = None
        self._last: Sequence[Step] = ()

    def show(self, steps: Sequence[Step]) -> None:
        """Update the lines."""
        if self._lines is not None:
            self._lines.show(steps)
            return
        for step in steps:
            task = self._tasks.get(step.name)
            if task is None:
                task = self._tasks[step.name] = self._progress.add_task(step.name, total=1, start=False, said="")
            if step.status != "waiting":
                self._progress.start_task(task)
            done = step.status in ("done", "failed")
            self._progress.update(task, completed=1 if done else 0, said=_said(step))
            if done:
                self._progress.stop_task(task)
        self._last = steps

    def close(self) -> None:
        """Leave the table as it is."""
        if self._lines is None:
            self._progress.stop()
            self._lines = Lines()
            self._lines.changed(self._last)


def display() -> Display:
    """The display that suits stderr."""
    return Table() if sys.stderr.isatty() else Lines()


def _said(step: Step) -> str:
    return step.detail or {"waiting": "", "running": "starting", "done": "ready", "failed": "failed"}[step.status]
