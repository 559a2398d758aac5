"""Passive health of one server: what its recent calls say about it.

Not `core.breaker`, which counts short calls as they end: calls to a tier take minutes and overlap, so what one says
about the server depends on when it began, and old ones must not outvote what has happened since.
"""

from collections import deque
from typing import Literal

from core.clock import Clock

State = Literal["closed", "half_open", "open"]
LEVELS: dict[State, float] = {"closed": 0, "half_open": 1, "open": 2}

# Faults are counted over this many seconds, and over at most so many calls.
WINDOW = 10.0
MAX_CALLS = 200
# It opens at so many faults, where they are at least this share of the calls.
MIN_FAULTS = 3
MIN_SHARE = 0.5
# Seconds for which it stays open at first; doubled each time that the trial fails.
FIRST_PAUSE = 2.0
LONGEST_PAUSE = 30.0


class Breaker:
    """Opens on faults of the server, lets one call through after a while, and closes when a call succeeds.

    The caller says what is a fault: never what the client asked wrong, and never that the server is full. Calls that
    began before the breaker opened say nothing about the server since, and are not counted then.
    """

    __slots__ = ("_calls", "_clock", "_opened_at", "_pause", "_trial_at", "_until")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._calls: deque[tuple[float, bool]] = deque(maxlen=MAX_CALLS)
        self._opened_at: float | None = None
        self._until = 0.0
        self._pause = FIRST_PAUSE
        self._trial_at: float | None = None

    @property
    def state(self) -> State:
        """Half open: the pause is over, and a call shows whether the server is well again."""
        if self._opened_at is None:
            return "closed"
        return "open" if self._clock.monotonic() < self._until else "half_open"

    @property
    def permits(self) -> bool:
        """Whether a call may go to the server while there are others."""
        state = self.state
        return state == "closed" or (state == "half_open" and self._trial_at is None)

    def begin(self) -> float:
        """A call goes out; the second at which it began. It must be ended once, with that second."""
        now = self._clock.monotonic()
        if self._opened_at is not None and now >= self._until and self._trial_at is None:
            self._trial_at = now
        return now

    def succeeded(self, began: float) -> None:
        """The server did its part."""
        if self._trial_at is not None:
            self.unknown(began)
        if self._opened_at is None:
            self._calls.append((self._clock.monotonic(), True))
        elif began >= self._opened_at:
            self._opened_at, self._pause = None, FIRST_PAUSE
            self._calls.clear()

    def failed(self, began: float, *, gone: bool = False) -> None:
        """A fault of the server. `gone`: nobody is there, so there is nothing to count."""
        self.unknown(began)
        now = self._clock.monotonic()
        if self._opened_at is not None:
            if began >= self._opened_at:
                self._pause = min(self._pause * 2, LONGEST_PAUSE)
                self._open(now)
            return
        self._calls.append((now, False))
        if gone or self._too_many(now):
            self._open(now)

    def unknown(self, began: float) -> None:
        """The call ended without saying anything about the server."""
        if self._trial_at == began:
            self._trial_at = None

    def _open(self, now: float) -> None:
        self._opened_at, self._until = now, now + self._pause

    def _too_many(self, now: float) -> bool:
        while self._calls and self._calls[0][0] < now - WINDOW:
            self._calls.popleft()
        faults = sum(not good for _, good in self._calls)
        return faults >= MIN_FAULTS and faults >= MIN_SHARE * len(self._calls)
