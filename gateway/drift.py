"""Whether live traffic still looks like what the classifier was trained on, and whether every tier is chosen."""

import logging
import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Sequence

from core.config import TierName

logger = logging.getLogger("forebay.router")

# Scores that are compared with the training sample, and the fewest that say something.
WINDOW, LEAST_SCORES = 1000, 100
# Free decisions in which a tier should have been chosen once.
LEAST_DECISIONS = 200


class Drift:
    """The last scores against the deciles of the training sample, and the last free choices of a tier.

    For one event loop: no locks; a note costs a few additions, memory is bounded by WINDOW.
    """

    def __init__(self, deciles: Sequence[float], tiers: Sequence[TierName]) -> None:
        self._deciles = list(map(float, deciles))
        self._bins: deque[int] = deque(maxlen=WINDOW)
        self._counts = [0] * (len(self._deciles) + 1)
        self._tiers = tuple(tiers)
        self._chosen: deque[TierName] = deque(maxlen=WINDOW)
        self._times: Counter[TierName] = Counter()
        self._warned: str | None = None

    def scored(self, complexity: float) -> None:
        """Note the complexity of a request."""
        if len(self._bins) == WINDOW:
            self._counts[self._bins[0]] -= 1
        own = bisect_right(self._deciles, complexity)
        self._bins.append(own)
        self._counts[own] += 1

    def psi(self) -> float:
        """The population stability index of the last scores: the sum over the parts of (p - q) ln(p / q).

        p is a part's share of live scores, q its share of the training sample (a tenth). As in credit scoring, below
        0.1 is stable and above 0.25 has shifted. Half a score is added to each part, so that none is empty. 0 before
        LEAST_SCORES scores.
        """
        seen = len(self._bins)
        if seen < LEAST_SCORES:
            return 0.0
        parts = len(self._counts)
        shares = [(count + 0.5) / (seen + parts / 2) for count in self._counts]
        return sum((share - 1 / parts) * math.log(share * parts) for share in shares)

    def chose(self, tier: TierName) -> None:
        """Note a tier that was chosen where both could have been."""
        if len(self._chosen) == WINDOW:
            self._times[self._chosen[0]] -= 1
        self._chosen.append(tier)
        self._times[tier] += 1
        warning = self.warning()
        if warning is not None and warning != self._warned:
            logger.warning("%s", warning)
        self._warned = warning

    def warning(self) -> str | None:
        """What is wrong with the choices; None where nothing is, or too few were seen."""
        if len(self._tiers) < 2 or len(self._chosen) < LEAST_DECISIONS:
            return None
        never = [tier for tier in self._tiers if not self._times[tier]]
        if not never:
            return None
        return f"router: the tier {never[0]} was not chosen once in the last {LEAST_DECISIONS} or more decisions"
