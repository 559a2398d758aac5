"""How long a request waits for its tier: to the first content, between two chunks, and in all."""

from core.clock import Clock
from core.config.records import Timeout
from core.errors import UpstreamTimeout
from gateway.interrupt import Interruptible
from gateway.timers import Timed, Timers

# What is there within this time was there already, in seconds.
AT_ONCE = 20e-6


class Patience:
    """Trips the block with UpstreamTimeout when the tier takes too long, and adds up the time spent waiting for it.

    One timer for all limits, set again only when it fires: a chunk costs two readings of the clock. A limit is noticed
    at most a tick of `timers` after it is over. The time in which the client does not read its answer counts towards
    `total` only. `waited` is in seconds. `work`: what was spent on the piece that came last; where the next one is not
    there yet, the tier was waited for all the same, and nobody had to wait for the work.
    """

    __slots__ = (
        "_block", "_clock", "_content", "_due", "_ends", "_limits", "_loop", "_since", "_timer", "_timers", "waited",
        "work",
    )  # fmt: skip

    def __init__(self, block: Interruptible, limits: Timeout, clock: Clock, timers: Timers) -> None:
        self._block, self._limits, self._clock = block, limits, clock
        self._loop, self._timers = block.loop, timers
        self._timer: set[Timed] | None = None
        self._since: float | None = None
        self._content = False
        self._due = self._ends = 0.0
        self.waited = self.work = 0.0

    def begin(self) -> None:
        """The request is being sent, for the first time or again."""
        now = self._clock.monotonic()
        self._content = False
        self._due = now + self._limits.first_token
        if self._since is None:
            self._since = now
        if self._timer is None:
            self._ends = now + self._limits.total
        else:
            self._timer.discard(self)
        self._arm(now)

    def content(self) -> None:
        """The first content has come: between chunks, `idle` counts."""
        self._content = True

    def wait(self) -> float:
        """Something of the tier is waited for; returns the clock's reading."""
        self._since = now = self._clock.monotonic()
        return now

    def got(self, came: float | None = None) -> float:
        """It came, and had come at that second already where one is given; returns the clock's reading."""
        now = self._clock.monotonic()
        if self._since is not None:
            spent = (now if came is None else came) - self._since
            if spent > AT_ONCE:
                self.waited += spent + self.work
            elif spent > 0:
                self.waited += spent
            self._since, self.work = None, 0.0
        return now

    def again(self, came: float | None = None) -> None:
        """As `got`, and more is waited for."""
        self._since = self.got(came)

    def cause(self) -> BaseException | None:
        """What ended the block from outside: a limit of these, or the client; None where nothing has."""
        return self._block.cause

    def end(self) -> None:
        """No more waiting."""
        if self._since is not None:
            self.got()
        if self._timer is not None:
            self._timer.discard(self)
            self._timer = None

    def _arm(self, now: float) -> None:
        """Look again when the first limit could be over, whichever phase it is in by then."""
        since, at = self._since, self._ends
        idle = (now if since is None or not self._content else since) + self._limits.idle
        at = min(at, idle)
        if not self._content:
            at = min(at, self._due)
        self._timer = self._timers.add(self._loop, now, at, self)

    def late(self) -> None:
        """Look whether a limit is over."""
        now = self._clock.monotonic()
        limits = self._limits
        if now >= self._ends:
            self._trip("total", limits.total)
            return
        if not self._content:
            due = self._due
            name, limit = "first_token", limits.first_token
        else:
            due = (now if self._since is None else self._since) + limits.idle
            name, limit = "idle", limits.idle
        if now >= due:
            self._trip(name, limit)
        else:
            self._arm(now)

    def _trip(self, name: str, limit: float) -> None:
        self._timer = None
        message = f"the tier took longer than timeout.{name} ({limit:g} s)"
        self._block.trip(UpstreamTimeout(message, reason=f"timeout_{name}"))
