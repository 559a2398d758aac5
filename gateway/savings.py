"""What the choice of tier has saved, as a counter."""

from gateway.metrics import Count


class Savings:
    """Savings, less what was spent on answers that were given up.

    A counter cannot fall. What is lost is taken from the savings that come after it, so that over any time in which
    routing saves more than it loses the counter grows by the difference.
    """

    def __init__(self, counter: Count) -> None:
        self._counter, self._owed = counter, 0.0

    def saved(self, amount: float) -> None:
        """Add a saving, not negative."""
        paid = min(amount, self._owed)
        self._owed -= paid
        self._counter.inc(amount - paid)

    def lost(self, amount: float) -> None:
        """Take what was spent in vain, not negative."""
        self._owed += amount
