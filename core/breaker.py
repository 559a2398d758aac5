"""A breaker in front of something we depend on: after enough failures nobody waits for it until a trial succeeds.

    closed ──failures──▶ open ──cool──▶ half-open ──success──▶ closed
                          ▲────────────failure──────┘

Plain arithmetic on the caller's clock; no tasks, no threads. It belongs to one event loop. For dependencies whose calls
are short; the servers of a tier have `gateway.upstream.breaker`.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from core.clock import Clock
from core.errors import DependencyFault

State = Literal["closed", "half-open", "open"]
# As metrics show a state.
LEVELS: dict[State, int] = {"closed": 0, "half-open": 1, "open": 2}


@dataclass(frozen=True)
class Tolerance:
    """What opens a breaker, and for how long.

    `in_a_row` failures without a success between them, or failures in at least `share` of the last `outcomes` calls.
    `cool`: seconds until a trial may be made.
    """

    in_a_row: int = 5
    share: float = 0.5
    outcomes: int = 20
    cool: float = 1.0


class Breaker:
    """Counts outcomes and says whether a call may be made.

    `attempt` wraps a call; where that does not fit, every True of `admit` is followed by exactly one of `succeeded`,
    `failed` and `abandoned`. `reason` is that of the last call, None where
    it succeeded. `on_change(breaker)` is told every change of state.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        tolerance: Tolerance | None = None,
        on_change: "Callable[[Breaker], None] | None" = None,
    ) -> None:
        self.name = name
        self.state: State = "closed"
        self.reason: str | None = None
        self._clock, self._tolerance, self._on_change = clock, tolerance or Tolerance(), on_change
        self._in_a_row = 0
        self._outcomes: deque[bool] = deque(maxlen=self._tolerance.outcomes)
        self._trial_at = 0.0

    @property
    def level(self) -> int:
        """0 closed, 1 half-open, 2 open."""
        return LEVELS[self.state]

    def admit(self, *, trial: bool = True) -> bool:
        """Whether a call may be made. Where the breaker is open and has cooled, one call at a time is the trial.

        `trial` False: this call must not be it, because somebody else makes trials.
        """
        if self.state == "closed":
            return True
        if self.state == "open" and trial and self._clock.monotonic() >= self._trial_at:
            self._become("half-open")
            return True
        return False

    def succeeded(self) -> None:
        """The call did its work. A success of a call from before the breaker opened does not close it."""
        if self.state == "open":
            return
        self._in_a_row, self.reason = 0, None
        if self.state == "half-open":
            self._outcomes.clear()
            self._become("closed")
        self._outcomes.append(True)

    def failed(self, reason: str) -> None:
        """The call failed; the breaker opens where that was the trial, or one too many."""
        self.reason = reason
        if self.state == "open":
            return
        self._in_a_row += 1
        self._outcomes.append(False)
        if self.state == "half-open" or self._too_many():
            self._trial_at = self._clock.monotonic() + self._tolerance.cool
            self._become("open")

    def abandoned(self) -> None:
        """The call ended without saying anything about the dependency; a trial may be made again at once."""
        if self.state == "half-open":
            self._become("open")

    @contextmanager
    def attempt(self, *, trial: bool = True) -> Iterator[None]:
        """Counts the call inside. A DependencyFault is its failure; any other exception says nothing.

        Raises DependencyFault of kind `open` where the call may not be made.
        """
        if not self.admit(trial=trial):
            raise DependencyFault(f"{self.name} is left alone: {self.reason}", "open")
        try:
            yield
        except DependencyFault as fault:
            self.failed(str(fault))
            raise
        except BaseException:
            self.abandoned()
            raise
        self.succeeded()

    def _too_many(self) -> bool:
        tolerance, seen = self._tolerance, len(self._outcomes)
        full = seen == tolerance.outcomes
        return self._in_a_row >= tolerance.in_a_row or (
            full and self._outcomes.count(False) >= tolerance.share * tolerance.outcomes
        )

    def _become(self, state: State) -> None:
        self.state = state
        if self._on_change is not None:
            self._on_change(self)
