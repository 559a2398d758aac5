"""How fast a tier gets through its work, measured only while it is full: an idle tier says nothing about its speed."""

from collections import deque

from core.clock import Clock
from gateway.auth import PRIORITIES, Priority

# Departures of this many seconds count, and at most so many: enough to be right within a tenth or so, few enough that a
# tier that becomes slower is noticed within seconds.
WINDOW = 30.0
MAX_DEPARTURES = 128
# Weight of the newest request in the mean time inside.
SMOOTHING = 0.1


class DrainRate:
    """Tokens per second of full time, counted when their requests leave.

    `filled` when the last place is taken, `departed` for every departure, `freed` where nobody takes its place. Before
    one was seen from a full tier, the means of tokens and time inside stand in: so many places, so much in each.
    `each`: that mean of tokens.
    """

    def __init__(self, clock: Clock, places: int) -> None:
        self._clock, self._places = clock, places
        self._departures: deque[tuple[float, float, float, int]] = deque()
        self._tokens = [0.0, 0.0, 0.0]
        self._full_time = 0.0
        self._since: float | None = None
        self._inside = self.each = 0.0

    def renew(self, places: int) -> None:
        """There are so many places from here on."""
        self._places = places

    def filled(self) -> None:
        """Every place is taken."""
        if self._since is None:
            self._since = self._clock.monotonic()

    def freed(self) -> None:
        """A place is free."""
        self._since = None

    def departed(self, priority: Priority, inside: float, tokens: float) -> None:
        """A request of so many tokens has left after so many seconds inside."""
        weight = SMOOTHING if self._inside else 1.0
        self._inside += weight * (inside - self._inside)
        self.each += weight * (tokens - self.each)
        if self._since is None:
            return
        now = self._clock.monotonic()
        gap = now - self._since
        self._since = now
        rank = PRIORITIES.index(priority)
        self._departures.append((now, gap, tokens, rank))
        self._full_time += gap
        self._tokens[rank] += tokens
        while self._departures[0][0] < now - WINDOW or len(self._departures) > MAX_DEPARTURES:
            _, old, count, of = self._departures.popleft()
            self._full_time -= old
            self._tokens[of] -= count

    def per_second(self, priority: Priority = "high") -> float | None:
        """Tokens per second that the tier takes of this priority: what the higher ones leave of it.

        None before anything has left, and while nothing came of what did.
        """
        if not self._departures or self._full_time <= 0:
            return (self._places * self.each / self._inside or None) if self._inside else None
        span = self._full_time
        if self._since is not None:
            # The time since the last departure counts when it is longer than usual: the tier may stand still.
            waiting = self._clock.monotonic() - self._since
            span += waiting if waiting > span / len(self._departures) else 0.0
        # Where only higher ones were served so far, nothing is known yet, and the whole rate is the best guess.
        left = sum(self._tokens[PRIORITIES.index(priority) :])
        return (left if left > 0 else sum(self._tokens)) / span or None
