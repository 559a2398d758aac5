"""What would happen to a request, and why: the pipeline's decisions, with nothing sent and no trace left."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace

import orjson
from pydantic import JsonValue

from cache.question import NOT_ASKED
from cache.response_cache import SemanticLookup
from cache.verdict import Side, Verdict
from core.config import Config
from core.config.records import Auth
from core.embedder import Embedding
from core.errors import DependencyFault
from gateway.account import Account
from gateway.asked import Asked, Reader
from gateway.auth import ANYONE, Identity
from gateway.cascade import may_escalate
from gateway.choice import Chooser
from gateway.embedding import EncoderFactory, configured_encoder
from gateway.envelope import JSON
from gateway.exchange import Exchange
from gateway.headers import answer_headers
from gateway.interrupt import Interruptible
from gateway.services import Services, opened
from router.decision import Decision

Document = dict[str, JsonValue]
# Nobody waits for a token here, so the embedding may take longer than on the request path, in seconds.
PATIENCE = 10.0
# Stored questions that are shown.
NEAREST = 6


class Explain:
    """Answers `POST /v1/explain`: a chat request in, the decisions about it out."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._reader = Reader(services.targets, services.config.cache)
        self._chooser = Chooser(services.config, services.tiers, services.classifier, services.conversations)

    async def answer(self, exchange: Exchange, account: Account, block: Interruptible) -> None:
        """One request inside the pipeline's shell."""
        raw = await exchange.body(self._services.config.gateway.max_body_size, block)
        exchange.watch(block)
        document = await self.document(raw, exchange.headers, account.identity or ANYONE)
        headers = [*answer_headers(exchange, account, self._services.clock), JSON]
        await exchange.respond(200, headers, orjson.dumps(document))

    async def document(self, raw: bytes, headers: Mapping[bytes, bytes], identity: Identity) -> Document:
        """The decisions about one request. Raises RequestError where it would be refused."""
        embedder = self._services.embedder.ready
        asked = self._reader.read("chat", raw, headers, identity, embedder)
        cache, settings = self._services.cache, self._services.config.cache
        plan = self._chooser.plan(asked)
        embedding = None
        if embedder is not None and plan.text is not None:
            embedding = await embedder.embed(plan.text, PATIENCE)
        exact, found = None, None
        if asked.question is not None:
            with contextlib.suppress(DependencyFault):
                exact = await cache.exact(asked.question, asked.controls, touch=False)
            controls = asked.controls if plan.semantic else replace(asked.controls, semantic=False)
            found = await cache.semantic(asked.question, embedding, controls, touch=False)
        vector = self._chooser.readable(embedding, embedder)
        await self._chooser.recall(asked)
        decision = self._chooser.decide(asked, plan, vector)
        reads = asked.controls.read and settings.exact.enabled
        return {
            "cache": {
                "exact": "hit" if exact is not None else "miss" if reads else "bypass",
                "semantic": _semantic(found, asked, settings.semantic.threshold, loaded=embedder is not None)
                | {"judge": self._judge(found, asked), "nearest": await self._nearest(asked, embedding)},
            },
            "fingerprint": _fingerprint(asked),
            "router": {
                "tier": decision.tier,
                "complexity": decision.complexity,
                "threshold": decision.threshold,
                "reason": decision.reason,
                **self._cascade(asked, decision),
            },
            "embedder": self._services.embedder.state,
            "embedder_backend": self._services.embedder.backend,
        }

    async def _nearest(self, asked: Asked, embedding: Embedding | None) -> list[JsonValue]:
        """The stored questions that are nearest, whatever their similarity, and what the guard makes of each."""
        question = asked.question
        if question is None or embedding is None or embedding.truncated or question.partition is None:
            return []
        cache, settings = self._services.cache, self._services.config.cache.semantic
        known = await cache.catalogue.nearest(question.partition, embedding.vector, NEAREST)
        oldest = self._services.clock.monotonic() - settings.ttl
        guard = cache.verifier if settings.guard else None
        found: list[JsonValue] = []
        for near in (each for each in known if each.known.stored_at > oldest):
            pair = Side(question.text or "", embedding.vector), Side(near.known.text, near.vector)
            features = [] if guard is None else guard.features(*pair)
            found.append(
                {
                    "id": near.known.id,
                    "similarity": round(near.similarity, 6),
                    "guard": None if guard is None else _verdict(guard.verify(*pair)),
                    "features": [
                        {"name": each.name, "value": round(each.value, 4), "worth": round(each.worth, 4)}
                        for each in features
                    ],
                }
            )
        return found

    def _judge(self, found: SemanticLookup | None, asked: Asked) -> str | None:
        """What the judge has said about this pair, or that it would be asked; None where the guard is sure."""
        if found is None or found.doubt is None or asked.question is None:
            return None
        opinion = self._services.judge.remembered(asked.question, found.doubt)
        return "would be asked" if opinion is None else "yes" if opinion else "no"

    def _cascade(self, asked: Asked, decision: Decision) -> Document:
        """What the small tier's answer would have to reach, where the decision is not final."""
        if not may_escalate(self._services.config, asked.request, decision):
            return {}
        settings = self._services.config.router.cascade
        least: Document = {"threshold": settings.threshold, "tokens": settings.tokens, "below": "frontier (escalated)"}
        return {"cascade": least}


def _semantic(found: SemanticLookup | None, asked: Asked, threshold: float, *, loaded: bool) -> Document:
    if found is None or asked.question is None:
        return _layer("bypass", "controls", threshold)
    if found.result == "timeout" and not loaded:
        return _layer("bypass", "no_embedder", found.threshold)
    reason = found.reason
    if reason == "controls" and asked.controls.semantic and asked.controls.read:
        # What was embedded is what an approval refers to.
        reason = asked.question.bypass or "approval"
    return _layer(found.result, reason, found.threshold) | {
        "nearest_id": found.nearest_id,
        "similarity": found.similarity,
        "guard": None if found.verdict is None else _verdict(found.verdict),
    }


def _verdict(verdict: Verdict) -> Document:
    return {"served": verdict.served, "feature": verdict.feature, "score": verdict.score}


def _fingerprint(asked: Asked) -> Document | None:
    """What makes the question the one it is, and which fields count; None where nothing is looked up.

    Names of fields, never their values.
    """
    question = asked.question
    if question is None:
        return None
    given: list[JsonValue] = [*sorted(asked.request.body)]
    return {
        "id": question.id,
        "fingerprint": question.fingerprint,
        "tenant": question.tenant,
        "target": asked.target.question,
        "kind": asked.request.kind,
        "fields": [name for name in given if name not in NOT_ASKED],
        "left_out": [name for name in given if name in NOT_ASKED],
        "partition": question.partition,
        "no_semantic_layer": question.bypass,
        "embedder": question.namespace or None,
    }


def _layer(verdict: str, reason: str | None, threshold: float) -> Document:
    return {
        "nearest_id": None,
        "similarity": None,
        "threshold": threshold,
        "guard": None,
        "verdict": verdict,
        "reason": reason,
    }


def decide_offline(
    config: Config, body: dict[str, JsonValue], make_encoder: EncoderFactory = configured_encoder
) -> Document:
    """The document of a chat request to a gateway that has just started: empty caches, no conversations.

    Loads the embedder where cache or classifier need one. Raises RequestError for a request that would be refused.
    """
    return asyncio.run(_offline(config, body, make_encoder))


async def _offline(config: Config, body: dict[str, JsonValue], make_encoder: EncoderFactory) -> Document:
    async with opened(without_servers(config), write=len, make_encoder=make_encoder) as services:
        await services.embedder.settled()
        return await Explain(services).document(orjson.dumps(body), {}, ANYONE)


def without_servers(config: Config) -> Config:
    """The same decisions without servers to ask or secrets to read."""
    tiers: dict[str, object] = {
        name: tier.model_copy(update={"urls": (), "api_key": None}) for name, tier in config.tiers.items()
    }
    cache = config.cache.model_copy(update={"store": "memory"})
    return config.model_copy(update={"tiers": config.tiers.model_copy(update=tiers), "auth": Auth(), "cache": cache})
