"""Waiting for a condition of another process, without guessing how long it takes."""

import threading
from collections.abc import Callable


def until(holds: Callable[[], bool], within: float = 120.0, every: float = 0.1) -> None:
    """Look every `every` seconds. Raises TimeoutError after `within` seconds."""
    pause = threading.Event()
    left = within
    while not holds():
        if left <= 0:
            raise TimeoutError
        pause.wait(every)
        left -= every
