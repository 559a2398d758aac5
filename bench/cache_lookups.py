"""The way of one request through reader, embedder, cache and router, without HTTP and without a tier."""

import time
from functools import partial

import orjson

from bench.cache_texts import ANSWER, Stored
from cache.controls import Controls
from cache.question import Question
from core.embedder import Embedding
from gateway.asked import Asked, Reader
from gateway.auth import ANYONE
from gateway.choice import Chooser, unlooked
from gateway.services import Services

PATIENCE = 60.0


class Lookups:
    """Looks up as `gateway.inference` does, and keeps the time of every part, in seconds."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._reader = Reader(services.targets, services.config.cache)
        self._chooser = Chooser(services.config, services.tiers, services.classifier, services.conversations)
        self.embed_times: list[float] = []
        self.search_times: list[float] = []
        self.embed_cpu = 0.0
        self.encoded = 0

    def body(self, text: str, model: str) -> bytes:
        """A chat request."""
        return orjson.dumps({"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 200})

    def read(self, text: str, model: str) -> Asked:
        """The request as the gateway reads it."""
        return self._reader.read("chat", self.body(text, model), {}, ANYONE, self._services.embedder.ready)

    async def store(self, one: Stored, model: str) -> None:
        """Put an answer to the text in the cache. Raises RuntimeError where it is not stored."""
        asked = self.read(one.text, model)
        if asked.question is None:
            raise RuntimeError("no question")
        refused = await self._services.cache.store(
            asked.question, ANSWER, one.embedding, tier="small", controls=asked.controls
        )
        if refused is not None:
            raise RuntimeError(refused)

    async def settled(self) -> None:
        """Wait until the index has taken in what was stored."""
        await self._services.cache.catalogue.settled()

    async def lookup(self, text: str) -> bool:
        """A semantic lookup; whether it hit."""
        asked = self.read(text, "auto")
        return await self._semantic(asked, await self._embed(text, asked.question))

    async def miss(self, text: str, model: str) -> bool:
        """Fingerprint, exact lookup, embedding, search, guard, and the tier; whether it was a miss."""
        asked = self.read(text, model)
        if asked.question is None or await self._services.cache.exact(asked.question, asked.controls) is not None:
            raise RuntimeError("an asked text is stored")
        plan = self._chooser.plan(asked)
        embedding, hit = None, False
        if plan.ask is not None or await self._services.cache.promising(asked.question, asked.controls):
            question = unlooked(asked, plan)
            embedding = await self._embed(plan.text, question) if plan.text is not None else None
            hit = await self._semantic(asked, embedding)
        self._chooser.decide(asked, plan, self._chooser.readable(embedding, self._services.embedder.ready))
        return not hit

    async def _embed(self, text: str, question: Question | None) -> Embedding:
        """The vector. Meanwhile the lookup of a question is prepared, as the gateway does."""
        embedder = self._services.embedder.ready
        began, cpu = time.perf_counter(), time.process_time()
        # By the model, and not remembered from an earlier round.
        meanwhile = None if question is None else partial(self._services.cache.prepare, question)
        embedding = await embedder.compute(text, PATIENCE, meanwhile) if embedder is not None else None
        if embedding is None:
            raise RuntimeError("there is no vector")
        self.embed_times.append(time.perf_counter() - began)
        self.embed_cpu += time.process_time() - cpu
        self.encoded += 1
        return embedding

    async def _semantic(self, asked: Asked, embedding: Embedding | None) -> bool:
        if asked.question is None:
            raise RuntimeError("no question")
        began = time.perf_counter()
        found = await self._services.cache.semantic(asked.question, embedding, Controls())
        self.search_times.append(time.perf_counter() - began)
        return found.hit is not None
