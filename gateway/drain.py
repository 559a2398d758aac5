"""How fast a tier finishes requests, measured only while it is full: an idle tier says nothing about its speed."""

from collections import deque

from core.clock import Clock
from gateway.auth import PRIORITIES, Priority

# Departures of this many seconds count, and at most so many.
WINDOW = 30.0
MAX_DEPARTURES = 512
# Weight of the newest request in the mean time inside.
SMOOTHING = 0.1


class DrainRate:
    """Departures per second of full time.

    `filled` when the last place is taken, `departed` for every departure, `freed` where nobody takes its place. Before
    one was seen from a full tier, the mean time inside stands in: so many places, each free again after so long.
    """

    def __init__(self, clock: Clock, places: int) -> None:
        self._clock, self._places = clock, places
        self._departures: deque[tuple[float, float, int]] = deque()
        self._counts = [0, 0, 0]
        self._full_time = 0.0
        self._since: float | None = None
        self._inside: float | None = None

    def filled(self) -> None:
        """Every place is taken."""
        if self._since is None:
            self._since = self._clock.monotonic()

    def freed(self) -> None:
        """A place is free."""
        self._since = None

    def departed(self, priority: Priority, inside: float) -> None:
        """One has left after so many seconds inside."""
        self._inside = inside if self._inside is None else self._inside + SMOOTHING * (inside - self._inside)
        if self._since is None:
            return
        now = self._clock.monotonic()
        gap = now - self._since
        self._since = now
        rank = PRIORITIES.index(priority)
        self._departures.append((now, gap, rank))
        self._full_time += gap
        self._counts[rank] += 1
        while self._departures[0][0] < now - WINDOW or len(self._departures) > MAX_DEPARTURES:
            _, old, of = self._departures.popleft()
            self._full_time -= old
            self._counts[of] -= 1

    def per_second(self, priority: Priority = "high") -> float | None:
        """How many requests of this priority the tier takes per second: what the higher ones leave of it.

        None before anything has left.
        """
        total = sum(self._counts)
        if total == 0 or self._full_time <= 0:
            return None if not self._inside else self._places / self._inside
        span = self._full_time
        if self._since is not None:
            # The time since the last departure counts when it is longer than usual: the tier may stand still.
            waiting = self._clock.monotonic() - self._since
            span += waiting if waiting > span / total else 0.0
        # Where only higher ones were served so far, nothing is known yet, and the whole rate is the best guess.
        left = sum(self._counts[PRIORITIES.index(priority) :]) or total
        return left / span
