"""A clock for tests."""


class HandClock:
    """Time that stands still until it is moved: `now`, in monotonic seconds.

    The wall clock is `ahead` seconds in front of it, so that a reading of one taken for the other shows.
    """

    def __init__(self, now: float = 1000.0, ahead: float = 1_000_000.0) -> None:
        self.now, self.ahead = now, ahead

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + self.ahead
