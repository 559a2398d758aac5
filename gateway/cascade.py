"""Small first: where the small tier's own confidence is low, its answer is given up and the frontier tier is asked.

The client sees one answer. Until the verdict nothing of the small tier's answer is passed on; what it cost is counted.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from core.config import Config, TierName
from core.errors import Refused, Unavailable, UpstreamError
from core.request import InferenceRequest
from gateway.account import Account
from gateway.ear import Ear, Unsure
from gateway.exchange import Exchange
from gateway.generation import Generation, Work
from gateway.interrupt import Interruptible
from gateway.services import Services
from gateway.settle import cost
from gateway.upstream.base import ConnectTimeout
from router.decision import Decision

logger = logging.getLogger("forebay.cascade")

# Decisions that left both tiers able to answer.
_OPEN = ("complexity", "unfamiliar", "sticky")
# With these an answer is not one sequence of sampled tokens.
_ALONE = ("n", "best_of", "use_beam_search", "echo")
# Without a configured threshold: the lowest part of recent answers is escalated, once so many have been seen.
LOWEST, LEAST_SEEN, REMEMBERED = 0.25, 20, 500

Remember = Callable[[TierName], None]


class Confidences:
    """The confidences of recent answers, and the threshold that they give where none is configured."""

    def __init__(self, configured: float | None) -> None:
        self._configured = configured
        self._recent: deque[float] = deque(maxlen=REMEMBERED)

    def add(self, confidence: float) -> None:
        """Remember one."""
        self._recent.append(confidence)

    def threshold(self) -> float | None:
        """The least confidence that is kept; None while nothing is known."""
        if self._configured is not None:
            return self._configured
        if len(self._recent) < LEAST_SEEN:
            return None
        return sorted(self._recent)[int(LOWEST * len(self._recent))]


class Cascade:
    """Runs the work of requests that may be escalated."""

    def __init__(self, services: Services, generation: Generation) -> None:
        self._services, self._generation = services, generation
        self._settings = services.config.router.cascade
        self._on = self._settings.enabled
        self._confidences = Confidences(self._settings.threshold)

    def ear(self, request: InferenceRequest, decision: Decision, account: Account) -> Ear | None:
        """What listens to the small tier's answer; None where the request is not the cascade's business."""
        if not self._on or not may_escalate(self._services.config, request, decision):
            return None
        return Ear(request, self._settings, self._services.clock, self._confidences.threshold, account)

    async def run(
        self,
        work: Work,
        ear: Ear,
        exchange: Exchange,
        account: Account,
        block: Interruptible,
        remember: Remember,
    ) -> None:
        """The work, on the small tier first, where the ear listens. `remember` is told the tier of an escalation."""
        reason = account.route_reason or ""
        try:
            await self._generation.run(work, exchange, account, block)
        except Unsure:
            self._heard(ear)
            await self._escalate(work, exchange, account, block, remember)
        except BaseException:
            self._heard(ear)
            self._services.metrics.decisions("small", reason).inc()
            raise
        else:
            self._heard(ear)
            self._services.metrics.decisions("small", reason).inc()

    def _heard(self, ear: Ear) -> None:
        """Count the verdict, and what an answer that is given up has cost."""
        metrics = self._services.metrics
        if ear.confidence is not None:
            self._confidences.add(ear.confidence)
        if ear.verdict is not None:
            metrics.cascade_held(ear.verdict).observe(ear.held_s)
        if ear.verdict == "escalated" and ear.usage is not None:
            metrics.tokens("small", "input").inc(ear.usage.input)
            metrics.tokens("small", "output").inc(ear.usage.output)
            metrics.tokens("small", "cached").inc(ear.usage.cached)
            price = self._services.tiers["small"].settings.price
            self._services.savings.lost(cost(price, ear.usage.input, ear.usage.output))

    async def _escalate(
        self, work: Work, exchange: Exchange, account: Account, block: Interruptible, remember: Remember
    ) -> None:
        metrics, gate, reason = self._services.metrics, self._services.tiers["frontier"], account.route_reason
        account.held_s += account.queue_s + account.upstream_s
        account.queue_s = account.upstream_s = 0.0
        account.tier, account.route_reason = "frontier", "escalated"
        above = replace(work, gate=gate, model=gate.settings.model, listener=None)
        try:
            await self._generation.run(above, exchange, account, block)
        except (Refused, Unavailable, UpstreamError, ConnectTimeout) as error:
            if exchange.started or (work.flight is not None and work.flight.began):
                metrics.decisions("frontier", "escalated").inc()
                raise
            metrics.decisions("small", reason or "").inc()
            # A middling answer is better than none.
            logger.warning("request %s stays on the small tier: %s", exchange.request_id, error.message)
            account.tier, account.route_reason = "small", reason
            await self._generation.run(replace(work, listener=None), exchange, account, block)
        except BaseException:
            metrics.decisions("frontier", "escalated").inc()
            raise
        else:
            metrics.decisions("frontier", "escalated").inc()
            self._services.learning.drift.chose("frontier")
            remember("frontier")


def may_escalate(config: Config, request: InferenceRequest, decision: Decision) -> bool:
    """Whether the decision may be revised by the small tier's confidence."""
    if not config.router.cascade.enabled or decision.tier != "small" or decision.reason not in _OPEN:
        return False
    return all(request.body.get(name) in (None, 1, False) for name in _ALONE)
