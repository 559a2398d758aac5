"""Time as an argument, so that tests move it instead of waiting."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings of time.

    `monotonic()`: seconds since an arbitrary point, never going back; for durations and deadlines.
    `time()`: seconds since the Unix epoch; for `created` fields and entry ages that are shown to people.
    """

    def monotonic(self) -> float: ...

    def time(self) -> float: ...


class SystemClock:
    """The machine's clocks."""

    # A request reads the clock a dozen times: the functions themselves, without a call around each.
    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)
