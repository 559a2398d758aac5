"""The response cache as the pipeline uses it: counted, and never the reason why a request fails."""

import logging

from cache.answer import Answer, Hit, as_json, as_sse, lasting
from cache.controls import Controls
from cache.question import Question
from cache.response_cache import ResponseCache, SemanticLookup
from core.clock import Clock
from core.config import Config, TierName
from core.config.records import Price
from core.embedder import Embedding
from core.errors import DependencyFault
from core.memo import Memo
from core.request import InferenceRequest
from gateway.account import Account
from gateway.envelope import JSON, Headers
from gateway.exchange import Exchange
from gateway.headers import EVENT_STREAM, answer_headers, hit_headers
from gateway.judge import Judge
from gateway.metering import Usage, usage_of
from gateway.metrics import Metrics
from gateway.settle import cost

logger = logging.getLogger("forebay.cache")

# Answers whose usage is kept as it was read, and how long they may be, in bytes: most hits are hits of a few.
MAX_USED, MAX_USED_BYTES = 256, 4096


class StoredAnswers:
    """Looks up, replays and stores. A cache that breaks is a miss."""

    def __init__(self, cache: ResponseCache, config: Config, metrics: Metrics, clock: Clock, judge: Judge) -> None:
        self._cache, self._metrics, self._clock, self._judge = cache, metrics, clock, judge
        self._found, self._not_found = metrics.lookups("exact", "hit"), metrics.lookups("exact", "miss")
        self._not_asked = metrics.lookups("semantic", "bypass")
        self._exact = config.cache.exact.enabled
        self._semantic = config.cache.semantic
        self._used: Memo[bytes, Usage | None] = Memo(MAX_USED)
        self._prices: dict[str, Price] = {name: tier.price for name, tier in config.tiers.items()}

    async def exact(self, question: Question | None, controls: Controls, account: Account) -> Hit | None:
        """The answer to this very question."""
        if question is None or not (self._exact and controls.read):
            self._metrics.lookups("exact", "bypass").inc()
            return None
        try:
            hit = await self._cache.exact(question, controls)
        except DependencyFault as fault:
            # Its breaker has the log line.
            account.cache = "miss"
            self._metrics.lookups("exact", "timeout" if fault.kind == "timeout" else "error").inc()
            return None
        except Exception:  # a boundary: whatever a store raises, the request goes on without it
            logger.exception("the exact cache layer failed")
            self._metrics.lookups("exact", "error").inc()
            return None
        if hit is None:
            account.cache = "miss"
            self._not_found.value += 1
        else:
            account.cache = "hit-exact"
            self._found.value += 1
        return hit

    async def semantic(
        self, question: Question, embedding: Embedding | None, controls: Controls, account: Account, spent: float
    ) -> SemanticLookup | None:
        """What another wording of it has. `spent`: seconds of the deadline that are gone."""
        left = max(self._semantic.deadline - spent, 0.001)
        try:
            found = await self._cache.semantic(question, embedding, controls, deadline=left)
            if found.doubt is not None:
                since = self._clock.monotonic()
                found = await self._judge.decide(question, found, account.tenant, account.request_id)
                account.held_s += self._clock.monotonic() - since
        except Exception:  # a boundary, as above
            logger.exception("the semantic cache layer failed")
            self._metrics.lookups("semantic", "error").inc()
            return None
        self._note(found, account)
        return found

    async def promising(self, question: Question, controls: Controls, account: Account) -> bool:
        """Whether a semantic lookup is worth an embedding; one that is not is counted as what it would have been."""
        try:
            promising = await self._cache.promising(question, controls)
        except Exception:  # a boundary, as above
            logger.exception("the first look of the semantic layer failed")
            return True
        if not promising:
            self._metrics.lookups("semantic", "miss" if controls.read else "bypass").inc()
            account.cache = "miss" if controls.read else account.cache
        return promising

    def prepare(self, question: Question) -> None:
        """What a semantic lookup needs besides the vector, as far as it can be had before it."""
        try:
            self._cache.prepare(question)
        except Exception:  # a boundary, as above
            logger.exception("a semantic lookup could not be prepared")

    def no_semantic(self) -> None:
        """Count a request whose semantic layer was not asked at all."""
        self._not_asked.value += 1

    def _note(self, found: SemanticLookup, account: Account) -> None:
        self._metrics.lookups("semantic", found.result).inc()
        account.semantic = found.result
        if found.result in ("hit", "miss", "guarded"):
            account.cache = "miss"
        if found.similarity is not None:
            self._metrics.similarity().observe(found.similarity)
        self.show(found, account)

    def show(self, found: SemanticLookup, account: Account) -> None:
        """Note what a lookup found where the request shows it."""
        account.similarity = found.similarity
        if found.verdict is not None:
            account.verdict = found.verdict
        if found.hit is not None:
            account.cache = "hit-semantic"

    async def store(
        self,
        question: Question,
        answer: Answer,
        embedding: Embedding | None,
        tier: TierName,
        controls: Controls,
        raw: bytes | None = None,
    ) -> bool:
        """Keep a complete answer, of which `raw` are the bytes where they came in one piece; whether it is kept."""
        kept = lasting(answer)
        body = raw if kept is answer else None
        try:
            reason = await self._cache.store(question, kept, embedding, tier=tier, controls=controls, body=body)
        except DependencyFault as fault:
            reason = f"store_{fault.kind}"
        except Exception:  # a boundary, as above
            logger.exception("an answer could not be stored")
            reason = "error"
        if reason is not None:
            self.skipped(reason)
        return reason is None

    def skipped(self, reason: str) -> None:
        """Count an answer that is not kept."""
        self._metrics.writes_skipped(reason).inc()

    def saved(self, hit: Hit) -> None:
        """Count the tokens and the cost that a hit saved."""
        usage = self._usage(hit)
        if usage is None:
            return
        self._metrics.saved_tokens(hit.layer).inc(usage.input + usage.output)
        price = self._prices.get(hit.tier)
        if price is not None:
            self._metrics.saved_cost(hit.layer).inc(cost(price, usage.input, usage.output))

    def _usage(self, hit: Hit) -> Usage | None:
        """What the tier counted when it made the answer."""
        body = hit.body
        if body in self._used:
            return self._used[body]
        usage = usage_of(hit.answer.get("usage")) if b'"usage"' in body else None
        if len(body) <= MAX_USED_BYTES:
            self._used.keep(body, usage)
        return usage

    async def replay(self, hit: Hit, request: InferenceRequest, exchange: Exchange, account: Account) -> None:
        """Send a stored answer as the client asked for it."""
        self.saved(hit)
        if account.words is not None:
            account.words.answered(hit.answer)
        headers: Headers = answer_headers(exchange, account, self._clock) + hit_headers(hit.age_s, hit.id)
        account.first_at = self._clock.monotonic()
        if not request.stream:
            headers.append(JSON)
            await exchange.respond(200, headers, as_json(hit))
            return
        if not exchange.started:
            await exchange.start(200, headers + EVENT_STREAM)
        await exchange.end(b"".join(as_sse(hit, include_usage=request.include_usage)))
