"""How many further tries a tier may cost: a share of its requests, so that retries never make an overload worse."""

from core.clock import Clock

# Further tries per request, and how many may be saved up.
SHARE = 0.2
MOST = 100.0
# What there is without any requests: so many at once, refilled at this rate per second.
FLOOR = 10.0
REFILL = 1.0


class RetryBudget:
    """A bucket of tries. Every request puts SHARE of a try in; every further try takes one out."""

    __slots__ = ("_clock", "_left", "_seen")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = FLOOR
        self._seen = clock.monotonic()

    def asked(self) -> None:
        """A request has come."""
        if self._left < MOST:
            self._left += SHARE

    def spend(self) -> bool:
        """Take one try out, where there is one."""
        now = self._clock.monotonic()
        if self._left < FLOOR:
            self._left = min(FLOOR, self._left + (now - self._seen) * REFILL)
        self._seen = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
