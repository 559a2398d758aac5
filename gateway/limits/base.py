"""The seam between what a key may use and where that is counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self

# `requests` and `tokens` count in any sliding WINDOW, `concurrency` what runs, `budget` in a calendar month of UTC.
Kind = Literal["requests", "tokens", "concurrency", "budget"]

WINDOW = 60.0
# What happened within one slot is forgotten together, when all of it is older than the window. Seconds.
SLOT = 0.25
SLOTS = round(WINDOW / SLOT)
# Who is told to come back when something else has ended, comes back after so many seconds.
SOON = 1.0


@dataclass(frozen=True, slots=True)
class Claim:
    """So much of one kind, of at most `limit`. Budgets are in billionths of the prices' unit."""

    kind: Kind
    limit: int
    amount: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Not taken: this kind has no room, and has some in so many seconds."""

    kind: Kind
    wait: float


@dataclass(frozen=True, slots=True)
class Taken:
    """Taken by `subject` under `mark` in that slot of time and month.

    `slot` None: it is not known to be counted, so nothing is put right, but what runs is released.
    """

    subject: str
    mark: str
    slot: int | None
    month: str
    claims: tuple[Claim, ...]


class Ledger(Protocol):
    """Counts. An async context manager, opened by the lifespan.

    `take` takes all claims or none, atomically among everyone who shares the ledger. Raises DependencyFault where it
    cannot be asked. `settle` puts right what was taken: `changes` are added to the amounts, in the order of the
    claims, and what runs ends. It never waits, never raises, and is called once for everything taken.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def take(self, subject: str, mark: str, claims: Sequence[Claim]) -> Taken | Refusal: ...

    def settle(self, taken: Taken, changes: Sequence[int]) -> None: ...
