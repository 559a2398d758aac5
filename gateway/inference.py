"""A chat or text completion: asked before, or by others just now? else which tier, its answer, and keeping that."""

from functools import partial

from cache.response_cache import SemanticLookup
from core.embedder import BatchingEmbedder, Embedding, Vector
from core.errors import RequestError
from core.request import RouteKind
from gateway.account import Account
from gateway.asked import Asked, Reader
from gateway.auth import ANYONE
from gateway.cascade import Cascade
from gateway.choice import Chooser, Plan, unlooked
from gateway.comparing import Sample
from gateway.console.words import Words
from gateway.exchange import Exchange
from gateway.flight import Flight, Key
from gateway.follow import Following, key_of
from gateway.forecast import need_of
from gateway.generation import Generation, Work
from gateway.interrupt import Interruptible
from gateway.services import Services
from gateway.stored import StoredAnswers
from gateway.witness import Witness
from router.decision import FREE, Decision
from router.features import FEATURE_CHARS

# In OpenTelemetry's words.
OPERATIONS: dict[RouteKind, str] = {"chat": "chat", "completion": "text_completion"}


class Inference:
    """Answers `POST /v1/chat/completions` and `POST /v1/completions`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._stored = StoredAnswers(services.cache, services.config, services.metrics, services.clock, services.judge)
        self._chooser = Chooser(services.config, services.tiers, services.classifier, services.conversations)
        self._generation = Generation(services, self._stored)
        self._cascade = Cascade(services, self._generation)
        self._exact = services.config.cache.exact.enabled
        self._flights = services.flights
        ping = services.config.gateway.sse_ping
        self._following = Following(self._flights, self._stored, services.metrics, services.clock, ping)
        self._reader = Reader(services.targets, services.config.cache)
        self._shows_words = services.watch is not None and services.watch.words

    async def answer(self, kind: RouteKind, exchange: Exchange, account: Account, block: Interruptible) -> None:
        """One request inside the pipeline's shell."""
        services = self._services
        raw = await exchange.body(services.config.gateway.max_body_size, block)
        embedder = services.embedder.ready
        asked = self._reader.read(kind, raw, exchange.headers, account.identity or ANYONE, embedder)
        account.stream, account.model = asked.request.stream, asked.request.model
        account.fingerprint = None if asked.question is None else asked.question.fingerprint
        if account.trace is not None:
            account.trace.asks(OPERATIONS[kind], asked.request.body)
        if self._shows_words:
            account.words = Words(asked.request)
        services.learning.decisions.remember(account, asked.request)
        hit = await self._stored.exact(asked.question, asked.controls, account)
        if hit is not None:
            self._reader.expect(raw, exchange.headers, asked)
            self._chooser.remember(asked, hit.tier)
            await self._stored.replay(hit, asked.request, exchange, account)
            return
        # From here on the request may wait, and the client may leave meanwhile.
        account.need = need_of(len(raw), asked.request.body)
        account.priority = (account.identity or ANYONE).urgency(exchange.headers.get(b"x-forebay-priority"))
        key = key_of(asked, account.priority, exact=self._exact)
        if key is None:
            exchange.watch(block)
            await self._make(asked, embedder, exchange, account, block)
            return
        if key in self._flights:
            tier = await self._following.answer(key, asked, exchange, account, block)
            if tier is not None:
                self._chooser.remember(asked, tier)
                return
        await self._lead(key, asked, embedder, exchange, account, block)

    async def _lead(
        self,
        key: Key,
        asked: Asked,
        embedder: BatchingEmbedder | None,
        exchange: Exchange,
        account: Account,
        block: Interruptible,
    ) -> None:
        """Answer a request that others may follow; what ends it ends for them as well."""
        with self._flights.lead(key, block) as flight:
            exchange.watch(flight)
            try:
                await self._make(asked, embedder, exchange, account, block, flight)
            except RequestError as error:
                flight.land(error)
                if flight.left is None:
                    raise
            if flight.left is not None:
                account.left_at = flight.left_at
                raise flight.left

    async def _make(
        self,
        asked: Asked,
        embedder: BatchingEmbedder | None,
        exchange: Exchange,
        account: Account,
        block: Interruptible,
        flight: Flight | None = None,
    ) -> None:
        """Answer from the semantic layer, else by a tier."""
        plan = self._chooser.plan(asked)
        late = False
        embedding: Embedding | None = None
        found: SemanticLookup | None = None
        if embedder is None:
            self._stored.no_semantic()
        elif not (late := await self._late(asked, plan, account)):
            embedding, spent = await self._embed(asked, plan, embedder)
            if plan.semantic and asked.question is not None:
                found = await self._stored.semantic(asked.question, embedding, asked.controls, account, spent)
            else:
                self._stored.no_semantic()
        if found is not None and found.hit is not None:
            if flight is not None:
                flight.land(found)
            self._chooser.remember(asked, found.hit.tier)
            await self._stored.replay(found.hit, asked.request, exchange, account)
            self._services.shadow.consider(asked, found.hit, exchange.request_id)
            return
        if asked.target.tier is None:
            await self._chooser.recall(asked)
        vector = self._chooser.readable(embedding, embedder)
        decision = self._decide(asked, plan, vector, account)
        if flight is not None:
            flight.tier = decision.tier
        work = self._work(asked, decision, embedding if plan.semantic else None, flight, late=late)
        if decision.reason == "override":
            # Nobody listens: the tier was not the classifier's choice.
            self._services.metrics.decisions(decision.tier, "override").value += 1
            await self._generation.run(work, exchange, account, block)
        else:
            await self._generate(work, asked, decision, exchange, account, block)

    async def _late(self, asked: Asked, plan: Plan, account: Account) -> bool:
        """Whether the vector is of no use before the answer is stored: not for the lookup, and not for the tier."""
        if asked.question is None or not plan.semantic or plan.ask is not None:
            return False
        return not await self._stored.promising(asked.question, asked.controls, account)

    async def _embed(self, asked: Asked, plan: Plan, embedder: BatchingEmbedder) -> tuple[Embedding | None, float]:
        """The vector of the plan's text within the deadline, and the seconds that took."""
        if plan.text is None:
            return None, 0.0
        started = self._services.clock.monotonic()
        deadline = self._services.config.cache.semantic.deadline
        owner = asked.tenant if asked.question is None else asked.question.tenant
        # The event loop has nothing else to do for this request meanwhile.
        question = unlooked(asked, plan)
        meanwhile = None if question is None else partial(self._stored.prepare, question)
        embedding = await embedder.embed(plan.text, deadline, owner, meanwhile)
        return embedding, self._services.clock.monotonic() - started

    def _decide(self, asked: Asked, plan: Plan, vector: Vector | None, account: Account) -> Decision:
        """The tier, noted everywhere it shows."""
        decision = self._chooser.decide(asked, plan, vector)
        self._chooser.remember(asked, decision.tier)
        account.tier, account.complexity, account.route_reason = decision.tier, decision.complexity, decision.reason
        account.truncated = plan.ask is not None and len(plan.ask) > FEATURE_CHARS
        drift = self._services.learning.drift
        if decision.complexity is not None:
            self._services.metrics.complexity().observe(decision.complexity)
            drift.scored(decision.complexity)
        if decision.reason in FREE:
            drift.chose(decision.tier)
        return decision

    def _work(
        self, asked: Asked, decision: Decision, embedding: Embedding | None, flight: Flight | None, *, late: bool
    ) -> Work:
        gate = self._services.tiers[decision.tier]
        return Work(
            request=asked.request,
            gate=gate,
            model=asked.target.model or gate.settings.model,
            chosen=asked.target.tier is None,
            question=asked.question,
            controls=asked.controls,
            embedding=embedding,
            flight=flight,
            late=late,
        )

    async def _generate(
        self,
        work: Work,
        asked: Asked,
        decision: Decision,
        exchange: Exchange,
        account: Account,
        block: Interruptible,
    ) -> None:
        """The answer of the tier; one that somebody listens to may be given up, or compared afterwards."""
        services, request = self._services, asked.request
        ear = self._cascade.ear(request, decision, account)
        if ear is None:
            # Else it is counted when the ear has decided.
            services.metrics.decisions(decision.tier, decision.reason).inc()
        witness: Witness | None = None
        if decision.tier == "small" and decision.reason in FREE and services.learning.comparing.wants(request):
            witness = Witness(request, ear)
        work.listener = witness or ear
        if ear is None:
            await self._generation.run(work, exchange, account, block)
        else:
            await self._cascade.run(work, ear, exchange, account, block, partial(self._chooser.remember, asked))
        if witness is not None and account.tier == "small" and (text := witness.text) is not None:
            reason = str(account.route_reason)
            services.learning.comparing.offer(
                Sample(request, account.request_id, text, account.complexity, reason, account.confidence)
            )
