"""Which tier, and what to embed on the way: the router as the pipeline uses it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cache.controls import Controls
from cache.question import Question
from core.config import Config, TierName
from core.embedder import BatchingEmbedder, Embedding, Vector
from core.request import InferenceRequest
from gateway.targets import Target
from gateway.tier import TierGate
from router.classifier import Classifier, Score
from router.conversations import Conversations
from router.decision import Decision, ask, decide


@dataclass(frozen=True, slots=True)
class Plan:
    """The one text of a request that is embedded, None for none, and who reads its vector.

    `controls`: the client's, without the semantic layer where that layer cannot have this vector. `ask`: the text the
    classifier scores, which then is the one that is embedded; None where the tier needs no score.
    """

    text: str | None
    controls: Controls
    ask: str | None


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
        self._semantic = config.cache.semantic.enabled
        self._gates, self._classifier, self._conversations = gates, classifier, conversations

    def plan(self, request: InferenceRequest, question: Question, target: Target, controls: Controls) -> Plan:
        """What to embed: at most one text for cache and classifier together."""
        asked = ask(request) if target.tier is None else None
        use = self._semantic and controls.semantic and (controls.read or controls.write) and question.bypass is None
        if asked is None:
            return Plan(question.text if use else None, controls, None)
        if use and question.text == asked:
            return Plan(asked, controls, asked)
        # The classifier reads what an approval ("yes, do it") refers to, which is not what the cache would compare.
        return Plan(asked, replace(controls, semantic=False), asked)

    def decide(
        self, request: InferenceRequest, target: Target, tenant: str, plan: Plan, vector: Vector | None
    ) -> Decision:
        """The tier; `vector` is that of the plan's text. Raises BadRequest where none can do what the request needs."""
        score: Score | None = None
        if plan.ask is not None:
            score = self._classifier.score(plan.ask, vector)
        floor = self._conversations.floor(tenant, request) if self._settings.sticky and target.tier is None else None
        facts = {name: gate.facts for name, gate in self._gates.items()}
        return decide(request, facts, forced=target.tier, floor=floor, score=score, threshold=self._settings.threshold)

    def readable(self, embedding: Embedding | None, embedder: BatchingEmbedder | None) -> Vector | None:
        """The vector, where it is of the model that the classifier was trained with."""
        if embedding is None or embedder is None or embedder.name != self._classifier.embedder:
            return None
        return embedding.vector

    def remember(self, tenant: str, request: InferenceRequest, tier: TierName) -> None:
        """The conversation has reached this tier."""
        if self._settings.sticky and request.kind == "chat":
            self._conversations.remember(tenant, request, tier)
