"""The ledger of one process."""

from collections import OrderedDict
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from core.clock import Clock
from gateway.limits.base import SLOT, SLOTS, SOON, Claim, Kind, Refusal, Taken
from gateway.limits.month import month_of, rest_of_month


class Window:
    """A sliding sum: amounts by slot of time, as whole slots."""

    def __init__(self) -> None:
        self._slots: OrderedDict[int, int] = OrderedDict()
        self._sum = 0

    def used(self, slot: int) -> int:
        """The sum, as of this slot."""
        while self._slots and (oldest := next(iter(self._slots))) < slot - SLOTS:
            self._sum -= self._slots.pop(oldest)
        return self._sum

    def add(self, slot: int, amount: int) -> None:
        """Add to a slot that is not older than the window."""
        self._slots[slot] = self._slots.get(slot, 0) + amount
        self._sum += amount

    def wait(self, excess: int, now: float) -> float:
        """Seconds until so much of the sum is forgotten."""
        for slot, amount in self._slots.items():
            excess -= amount
            if excess <= 0:
                return (slot + 1 + SLOTS) * SLOT - now
        return SLOTS * SLOT


class Book:
    """What one subject has used."""

    def __init__(self) -> None:
        self.windows: dict[Kind, Window] = {"requests": Window(), "tokens": Window()}
        self.running: set[str] = set()
        self.month = ""
        self.spent = 0


class MemoryLedger:
    """Counts in this process; what it knows ends with it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._books: dict[str, Book] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def take(self, subject: str, mark: str, claims: Sequence[Claim]) -> Taken | Refusal:
        """All of the claims or none."""
        book = self._books.get(subject)
        if book is None:
            book = self._books[subject] = Book()
        now = self._clock.monotonic()
        slot = int(now / SLOT)
        if book.month != (month := month_of(self._clock.time())):
            book.month, book.spent = month, 0
        for claim in claims:
            wait = self._wait(book, claim, slot, now)
            if wait is not None:
                return Refusal(claim.kind, wait)
        for claim in claims:
            if claim.kind == "concurrency":
                book.running.add(mark)
            elif claim.kind == "budget":
                book.spent += claim.amount
            else:
                book.windows[claim.kind].add(slot, claim.amount)
        return Taken(subject, mark, slot, month, tuple(claims))

    def settle(self, taken: Taken, changes: Sequence[int]) -> None:
        """Put amounts right; a correction of what is out of the window already counts where it is more."""
        book = self._books.get(taken.subject)
        if book is None:
            return
        slot = int(self._clock.monotonic() / SLOT)
        for claim, change in zip(taken.claims, changes, strict=True):
            if claim.kind == "concurrency":
                book.running.discard(taken.mark)
            elif taken.slot is None or change == 0:
                continue
            elif claim.kind == "budget":
                book.spent += change if book.month == taken.month else 0
            elif taken.slot >= slot - SLOTS:
                book.windows[claim.kind].add(taken.slot, change)
            elif change > 0:
                book.windows[claim.kind].add(slot, change)

    def _wait(self, book: Book, claim: Claim, slot: int, now: float) -> float | None:
        """Seconds until there may be room; None where there is."""
        if claim.kind == "concurrency":
            return SOON if len(book.running) >= claim.limit else None
        if claim.kind == "budget":
            return rest_of_month(self._clock.time()) if book.spent + claim.amount > claim.limit else None
        window = book.windows[claim.kind]
        excess = window.used(slot) + claim.amount - claim.limit
        return window.wait(excess, now) if excess > 0 else None
