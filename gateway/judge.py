"""The judge: a tier is asked yes or no where the guard is unsure, within a deadline, a budget and a breaker of its own.

A judge that is late, busy, broken or out of order refuses: what is not decided is a miss.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from cache.judging import FEATURE, Opinions, judge_body, judged, opinion_in
from cache.question import Question
from cache.response_cache import Doubt, SemanticLookup
from cache.verdict import Verdict
from core.clock import Clock
from core.config import TierName
from core.errors import RequestError
from gateway.aside import NoRoom, ask, in_spare_room
from gateway.metering import usage_of
from gateway.metrics import Metrics
from gateway.tier import TierGate

logger = logging.getLogger("forebay.judge")

# How long a request waits for an opinion, in seconds: far less than a generation, which it may save.
DEADLINE = 1.0
# Opinions asked for at one time.
CONCURRENT = 4
# So many failures in a row, and nobody is asked for so many seconds.
FAILURES = 5
PAUSE = 30.0


class Judge:
    """Decides doubts by asking a tier; with `tier` None, no doubt is decided."""

    def __init__(
        self, tier: TierName | None, tiers: Mapping[TierName, TierGate], metrics: Metrics, clock: Clock
    ) -> None:
        self._gate = None if tier is None else tiers[tier]
        self._metrics, self._clock = metrics, clock
        self._opinions = Opinions()
        self._asking = self._failures = 0
        self._resumes = 0.0

    async def decide(self, question: Question, found: SemanticLookup, tenant: str, request_id: str) -> SemanticLookup:
        """What was found after the judge has spoken, where there is a doubt about it."""
        doubt = found.doubt
        if doubt is None or self._gate is None:
            return found
        opinion = self.remembered(question, doubt)
        if opinion is None:
            said, opinion = await self._asked(self._gate, question, doubt, tenant, request_id)
        else:
            said = "remembered"
        self._metrics.judge(said).inc()
        if opinion is None:
            verdict = Verdict(served=False, said=f"{FEATURE}_{said}", score=doubt.verdict.score)
            return replace(found, result="guarded", hit=None, verdict=verdict, doubt=None)
        verdict = judged(doubt.verdict, opinion)
        if opinion:
            return replace(found, result="hit", hit=doubt.hit, verdict=verdict, doubt=None)
        return replace(found, result="guarded", hit=None, verdict=verdict, doubt=None)

    def remembered(self, question: Question, doubt: Doubt) -> bool | None:
        """What the judge has said about this pair before; None where nothing."""
        return self._opinions.get(question.partition or "", doubt.text, question.text or "")

    async def _asked(
        self, gate: TierGate, question: Question, doubt: Doubt, tenant: str, request_id: str
    ) -> tuple[str, bool | None]:
        """How it went, as the metric has it, and the opinion."""
        if self._clock.monotonic() < self._resumes:
            return "stopped", None
        if self._asking >= CONCURRENT:
            return "busy", None
        asked = question.text or ""
        call = partial(ask, gate, judge_body(gate.settings.model, doubt.text, asked), f"{request_id}-judge")
        self._asking += 1
        try:
            answer = await in_spare_room(gate, tenant, call, DEADLINE)
            usage = usage_of(answer.get("usage"))
            if usage is not None:
                self._metrics.tokens(gate.name, "input").inc(usage.input)
                self._metrics.tokens(gate.name, "output").inc(usage.output)
            opinion = opinion_in(answer)
        except NoRoom:
            return "busy", None
        except TimeoutError:
            return self._failed("late", f"no opinion within {DEADLINE:g} s")
        except RequestError as error:
            return self._failed("error", error.message)
        finally:
            self._asking -= 1
        if opinion is None:
            return self._failed("error", "it said neither yes nor no")
        self._failures = 0
        self._opinions.put(question.partition or "", doubt.text, asked, opinion=opinion)
        return "yes" if opinion else "no", opinion

    def _failed(self, said: str, why: str) -> tuple[str, None]:
        self._failures += 1
        if self._failures >= FAILURES:
            self._failures = 0
            self._resumes = self._clock.monotonic() + PAUSE
            logger.warning("the judge failed %d times in a row and is not asked for %g s: %s", FAILURES, PAUSE, why)
        return said, None
