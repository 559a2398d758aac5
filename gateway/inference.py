"""A chat or text completion: asked before? else which tier, a place in it, its answer, and keeping that answer."""

from functools import partial

from core.embedder import BatchingEmbedder, Embedding, Vector
from core.request import RouteKind
from gateway.account import Account
from gateway.asked import Asked, Reader
from gateway.auth import ANYONE
from gateway.cascade import Cascade
from gateway.choice import Chooser, Plan
from gateway.comparing import Sample
from gateway.exchange import Exchange
from gateway.generation import Generation, Work
from gateway.interrupt import Interruptible
from gateway.services import Services
from gateway.stored import StoredAnswers
from gateway.witness import Witness
from router.decision import FREE, Decision


class Inference:
    """Answers `POST /v1/chat/completions` and `POST /v1/completions`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._stored = StoredAnswers(services.cache, services.config, services.metrics, services.clock)
        self._chooser = Chooser(services.config, services.tiers, services.classifier, services.conversations)
        self._cascade = Cascade(services, Generation(services, self._stored))
        self._reader = Reader(services.targets, services.config.cache)

    async def answer(self, kind: RouteKind, exchange: Exchange, account: Account, block: Interruptible) -> None:
        """One request inside the pipeline's shell."""
        services = self._services
        raw = await exchange.body(services.config.gateway.max_body_size, block)
        embedder = services.embedder.ready
        asked = self._reader.read(kind, raw, exchange.headers, account.identity or ANYONE, embedder)
        account.stream, account.model = asked.request.stream, asked.request.model
        services.decisions.remember(account, asked.request.user_text)
        hit = await self._stored.exact(asked.question, asked.controls, account)
        if hit is None:
            # From here on the request may wait, and the client may leave meanwhile.
            exchange.watch(block)
            plan = self._chooser.plan(asked)
            embedding, spent = await self._embed(plan, embedder)
            if embedder is not None and plan.semantic and asked.question is not None:
                hit = await self._stored.semantic(asked.question, embedding, asked.controls, account, spent)
            else:
                self._stored.no_semantic()
            if hit is None:
                vector = self._chooser.readable(embedding, embedder)
                decision = self._decide(asked, plan, vector, account)
                await self._generate(asked, decision, embedding if plan.semantic else None, exchange, account, block)
                return
        self._chooser.remember(asked, hit.tier)
        await self._stored.replay(hit, asked.request, exchange, account)

    async def _embed(self, plan: Plan, embedder: BatchingEmbedder | None) -> tuple[Embedding | None, float]:
        """The vector of the plan's text within the deadline, and the seconds that took."""
        if embedder is None or plan.text is None:
            return None, 0.0
        started = self._services.clock.monotonic()
        embedding = await embedder.embed(plan.text, self._services.config.cache.semantic.deadline)
        return embedding, self._services.clock.monotonic() - started

    def _decide(self, asked: Asked, plan: Plan, vector: Vector | None, account: Account) -> Decision:
        """The tier, noted everywhere it shows."""
        decision = self._chooser.decide(asked, plan, vector)
        self._chooser.remember(asked, decision.tier)
        account.tier, account.complexity, account.route_reason = decision.tier, decision.complexity, decision.reason
        drift = self._services.drift
        if decision.complexity is not None:
            self._services.metrics.complexity().observe(decision.complexity)
            drift.scored(decision.complexity)
        if decision.reason in FREE:
            drift.chose(decision.tier)
        return decision

    async def _generate(
        self,
        asked: Asked,
        decision: Decision,
        embedding: Embedding | None,
        exchange: Exchange,
        account: Account,
        block: Interruptible,
    ) -> None:
        """The answer of the tier; an answer that somebody listens to may be given up, or compared afterwards."""
        services, request = self._services, asked.request
        gate = services.tiers[decision.tier]
        ear = self._cascade.ear(request, decision, account)
        if ear is None:
            # Else it is counted when the ear has decided.
            services.metrics.decisions(decision.tier, decision.reason).inc()
        witness: Witness | None = None
        if decision.tier == "small" and decision.reason in FREE and services.comparing.wants(request):
            witness = Witness(request, ear)
        work = Work(
            request=request,
            gate=gate,
            model=asked.target.model or gate.settings.model,
            chosen=asked.target.tier is None,
            question=asked.question,
            controls=asked.controls,
            embedding=embedding,
            listener=witness or ear,
        )
        await self._cascade.run(work, ear, exchange, account, block, partial(self._chooser.remember, asked))
        if witness is not None and account.tier == "small" and (text := witness.text) is not None:
            services.comparing.offer(
                Sample(
                    request, account.request_id, text, account.complexity, str(account.route_reason), account.confidence
                )
            )
