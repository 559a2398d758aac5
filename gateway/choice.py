"""Which tier, and what to embed on the way: the router as the pipeline uses it."""

from collections.abc import Mapping
from typing import NamedTuple

from cache.question import Question
from core.config import Config, TierName
from core.embedder import BatchingEmbedder, Embedding, Vector
from gateway.asked import Asked
from gateway.tier import TierGate
from router.classifier import Classifier, Score
from router.conversations import Conversations
from router.decision import Decision, ask, decide, named


class Plan(NamedTuple):
    """The one text of a request that is embedded, None for none, and who reads its vector.

    `semantic`: the cache's semantic layer does. `ask`: the classifier scores this text and reads its vector; None
    where the tier needs no score.
    """

    text: str | None
    semantic: bool
    ask: str | None


NOTHING = Plan(None, False, None)


def unlooked(asked: Asked, plan: Plan) -> Question | None:
    """The question whose lookup can be prepared while its vector is made; None where there is nothing to prepare.

    Where the tier needs no score, a first look has been taken before anything is embedded.
    """
    return asked.question if plan.ask is not None and plan.semantic and asked.controls.read else None


class Chooser:
    """Decides the tier of a request, and remembers it for the conversation."""

    def __init__(
        self,
        config: Config,
        gates: Mapping[TierName, TierGate],
        classifier: Classifier,
        conversations: Conversations,
    ) -> None:
        self._settings = config.router
        self._sticky = config.router.sticky and len(gates) > 1
        self._semantic = config.cache.semantic.enabled
        self._gates, self._classifier, self._conversations = gates, classifier, conversations

    def plan(self, asked: Asked) -> Plan:
        """What to embed: at most one text for cache and classifier together."""
        question, text = asked.question, None
        if self._semantic and question is not None and question.bypass is None and asked.controls.semantic:
            text = question.text
        if asked.target.tier is not None:
            return NOTHING if text is None else Plan(text, True, None)
        scored = ask(asked.request)
        # An approval ("yes, do it") is scored by what it refers to, which is not what the cache would compare.
        return Plan(scored, text is not None and text == scored, scored)

    async def recall(self, asked: Asked) -> None:
        """Fetch what other gateways know about the conversation, before `decide`."""
        if self._sticky and asked.target.tier is None:
            await self._conversations.recall(asked.tenant, asked.request)

    def decide(self, asked: Asked, plan: Plan, vector: Vector | None) -> Decision:
        """The tier; `vector` is that of the plan's text. Raises BadRequest where none can do what the request needs."""
        request, forced, threshold = asked.request, asked.target.tier, self._settings.threshold
        if forced is not None:
            return named(request, forced, self._gates[forced].facts, threshold)
        score: Score | None = None
        if plan.ask is not None:
            score = self._classifier.score(plan.ask, vector)
        floor = self._conversations.floor(asked.tenant, request) if self._sticky else None
        facts = {name: gate.facts for name, gate in self._gates.items()}
        return decide(request, facts, forced=None, floor=floor, score=score, threshold=threshold)

    def readable(self, embedding: Embedding | None, embedder: BatchingEmbedder | None) -> Vector | None:
        """The vector, where it is of the model that the classifier was trained with."""
        if embedding is None or embedder is None or embedder.name != self._classifier.embedder:
            return None
        return embedding.vector

    def remember(self, asked: Asked, tier: str) -> None:
        """The conversation has reached this tier."""
        if not self._sticky or asked.request.kind != "chat":
            return
        for name in self._gates:
            if name == tier:
                self._conversations.remember(asked.tenant, asked.request, name)
