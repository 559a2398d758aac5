"""A breaker for each prefill replica, as this decode replica sees it."""

from collections import OrderedDict

from core.breaker import Breaker, Tolerance
from core.clock import Clock

# Replicas come and go; those that were not asked for longest are forgotten.
_KEPT = 256
TOLERANCE = Tolerance(in_a_row=3, cool=5.0)


class Pairs:
    """Which prefill replicas not to ask, because blocks from them did not arrive here.

    The pair is what fails: another decode replica may read from the same one (its addresses are fresh).
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._breakers: OrderedDict[str, Breaker] = OrderedDict()

    def of(self, peer: str) -> Breaker:
        """The breaker of this pair."""
        breaker = self._breakers.pop(peer, None) or Breaker(peer, self._clock, TOLERANCE)
        self._breakers[peer] = breaker
        if len(self._breakers) > _KEPT:
            self._breakers.popitem(last=False)
        return breaker
