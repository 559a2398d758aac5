"""The response cache: an exact layer and a semantic layer over the same stored answers.

What may be served is decided here, once for every store; a store only keeps entries, and a catalogue finds questions.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Literal, Self

import orjson

from cache.answer import Hit, Layer, refusal_to_store
from cache.catalogue import Catalogue, Known, Near
from cache.controls import Controls
from cache.first_look import FirstLook
from cache.question import Question
from cache.stores.base import Entry, Store, Wording
from cache.stores.memory import MemoryStore
from cache.verdict import Foresight, Notes, Side, Verdict, Verifier
from core.clock import Clock
from core.config.records import Cache
from core.embedder import Embedding
from core.errors import DependencyFault
from core.glance import Glance

LookupResult = Literal["hit", "miss", "bypass", "guarded", "timeout", "error"]
# Candidates at or above the threshold that the guard is asked about, nearest first.
CANDIDATES = 3
# Two roundings of the same unit vector differ by less.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Doubt:
    """A candidate whose score lies near the guard's cut: what would be served, its question, the guard's verdict."""

    hit: Hit
    text: str
    verdict: Verdict


@dataclass(frozen=True)
class SemanticLookup:
    """What the semantic layer found.

    `nearest_id`, `similarity`: the nearest live entry of the partition, whatever its similarity. `threshold`: what was
    demanded. `verdict`: the guard's on the entry that is served, else on the nearest one it saw. `result`: as counted
    in the metrics; `reason` says why where it is `bypass`. `doubt`: what a judge may decide, where one is configured:
    about the hit, or about the nearest candidate that was refused.
    """

    result: LookupResult
    threshold: float
    hit: Hit | None = None
    nearest_id: str | None = None
    similarity: float | None = None
    verdict: Verdict | None = None
    reason: str | None = None
    doubt: Doubt | None = None


@dataclass(frozen=True)
class Stats:
    """Sizes, and what has left since the store began. `exact`, `semantic`: entries that each layer can serve.

    `known`, `partitions`: questions that this process can find by meaning, and how many partitions hold one.
    """

    exact: int
    semantic: int
    known: int
    partitions: int
    bytes: int
    evicted: int
    expired: int


OpenStore = Callable[[Catalogue], Store]


class ResponseCache:
    """Policy over a store. An async context manager; entering opens the store, leaving closes it.

    `foresight` tells for the verifier, before there is a vector, which stored questions are worth one. `open_store`
    makes the store that `catalogue` will follow; by default entries are kept in this process. All methods belong to one
    event loop. None raises for what a client sent; where the store fails, those that do not say so raise
    DependencyFault. Cancelling a lookup abandons it.
    """

    def __init__(
        self,
        settings: Cache,
        *,
        clock: Clock,
        verifier: Verifier | None = None,
        foresight: Foresight | None = None,
        open_store: OpenStore | None = None,
    ) -> None:
        if settings.semantic.enabled and settings.semantic.guard and verifier is None:
            raise ValueError("cache.semantic.guard is on but there is no verifier")
        self._settings, self._clock = settings, clock
        self.verifier, self._foresight = verifier, foresight
        self._ttl: dict[Layer, float] = {
            "exact": settings.exact.ttl if settings.exact.enabled else 0.0,
            "semantic": settings.semantic.ttl if settings.semantic.enabled else 0.0,
        }
        self.catalogue = Catalogue(settings.semantic.max_entries)
        self._store: Store = (open_store or self._in_memory)(self.catalogue)

    def renew(self, settings: Cache) -> None:
        """Go on with another threshold and deadline; everything else must be the same."""
        self._settings = settings
        if self.catalogue.first_look is not None:
            self.catalogue.first_look.renew(settings.semantic.threshold)

    @property
    def lifetime(self) -> float:
        """Seconds after which neither layer serves an entry."""
        return lifetime(self._settings)

    @property
    def fault(self) -> str | None:
        """What does not work at the moment; None where everything does."""
        return self._store.fault

    def understand(self, namespace: str, glance: Glance | None = None) -> None:
        """The embedder is there: from here on the questions of its namespace can be found, and only those.

        `glance` is a cheap approximation of its vectors, where there is one.
        """
        least = None if glance is None else glance.least(self._settings.semantic.threshold)
        if glance is not None and least is not None:
            self.catalogue.first_look = FirstLook(glance, least, self._foresight)
        self.catalogue.namespace = namespace

    async def promising(self, question: Question, controls: Controls) -> bool:
        """Whether the semantic layer may have an answer: False spares the question its embedding before the lookup.

        True where there is no cheap way to tell, and where it takes too long.
        """
        first_look = self.catalogue.first_look
        if first_look is None or not self._settings.exact.enabled:
            return True
        if not controls.read or question.partition is None or question.text is None:
            return False
        try:
            async with asyncio.timeout(self._settings.semantic.deadline):
                return await first_look.promising(question.partition, question.text)
        except TimeoutError:
            return True

    def prepare(self, question: Question) -> None:
        """The vector for a lookup is being made: compare meanwhile what the lookup is likely to compare."""
        first_look = self.catalogue.first_look
        if first_look is not None and question.partition is not None and question.text is not None:
            first_look.prepare(question.partition, question.text)

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._store.__aexit__(kind, error, trace)
        finally:
            await self.catalogue.aclose()

    async def exact(self, question: Question, controls: Controls, *, touch: bool = True) -> Hit | None:
        """The answer to this very question. `touch` False leaves no trace in the order of eviction."""
        if not controls.read or not self._settings.exact.enabled:
            return None
        entry = await self._store.get(question.tenant, question.id, touch=touch)
        if entry is None or not self._answers(entry, question) or not self._fresh(entry.stored_at, "exact", controls):
            return None
        return self._hit(entry, "exact", 1.0)

    async def semantic(
        self,
        question: Question,
        embedding: Embedding | None,
        controls: Controls,
        *,
        touch: bool = True,
        deadline: float | None = None,
    ) -> SemanticLookup:
        """The answer to another wording of this question; a store that fails is a `timeout` or an `error`.

        `embedding` is None where it was not ready in time. `deadline`: seconds for the search, by default
        `cache.semantic.deadline`. `touch` False leaves no trace in the order of eviction.
        """
        settings = self._settings.semantic
        threshold = max(settings.threshold, controls.threshold or 0.0)
        reason = self._no_semantic_layer(question, embedding, controls)
        if reason is None and not controls.read:
            reason = "controls"
        if reason is not None:
            return SemanticLookup("bypass", threshold, reason=reason)
        if embedding is None or question.partition is None:
            return SemanticLookup("timeout", threshold)
        try:
            async with asyncio.timeout(settings.deadline if deadline is None else deadline):
                near = await self.catalogue.nearest(question.partition, embedding.vector, 2 * CANDIDATES)
                live = self._live(near, controls)
                fetch = partial(self._fetched, question, controls, touch)
                return await self._first_served(question, embedding, live, threshold, fetch)
        except TimeoutError:
            return SemanticLookup("timeout", threshold)
        except DependencyFault as fault:
            return SemanticLookup("timeout" if fault.kind == "timeout" else "error", threshold)

    async def store(
        self,
        question: Question,
        answer: Mapping[str, object],
        embedding: Embedding | None,
        *,
        tier: str,
        controls: Controls,
        body: bytes | None = None,
    ) -> str | None:
        """Stores a completion, in place of an older answer to the same question; None, or why it was not stored.

        `body`: the completion as JSON, where it has been written already.
        """
        if not controls.write:
            return "off"
        if (reason := refusal_to_store(answer)) is not None:
            return reason
        semantic = embedding is not None and self._no_semantic_layer(question, embedding, controls) is None
        if not semantic and not self._settings.exact.enabled:
            return "disabled"
        entry = Entry(
            id=question.id,
            fingerprint=question.fingerprint,
            tenant=question.tenant,
            tier=tier,
            body=body or orjson.dumps(answer),
            stored_at=self._clock.monotonic(),
            partition=question.partition if semantic else None,
        )
        wording = None
        if semantic and embedding is not None:
            wording = self._wording(question, embedding)
        return None if await self._store.put(entry, wording) else "too_large"

    def expect(self, question: Question) -> None:
        """The vector of a stored question is being made: other wordings of it are promising already."""
        first_look = self.catalogue.first_look
        if first_look is not None and question.partition is not None and question.text is not None:
            first_look.add(question.id, question.partition, question.text, self._notes(question.text))

    async def add_wording(self, question: Question, embedding: Embedding | None, controls: Controls) -> None:
        """Lets the semantic layer find an answer that was stored without its vector, where it is still there.

        `embedding` None ends the expectation.
        """
        try:
            if embedding is None or self._no_semantic_layer(question, embedding, controls) is not None:
                return
            entry = await self._store.get(question.tenant, question.id, touch=False)
            if entry is not None and self._answers(entry, question):
                await self._store.put(replace(entry, partition=question.partition), self._wording(question, embedding))
        finally:
            if self.catalogue.first_look is not None and self.catalogue.version(question.id) is None:
                self.catalogue.first_look.remove(question.id)

    async def delete(self, key: str) -> bool:
        """Removes one entry from both layers; whether it was there."""
        return await self._store.remove(key=key) > 0

    async def purge(self, tenant: str | None = None) -> int:
        """Removes every entry, or every entry of one tenant; how many."""
        return await self._store.remove(tenant=tenant)

    async def stats(self) -> Stats:
        """Sizes after what has expired is gone."""
        sizes, known = await self._store.sizes(), self.catalogue
        exact = sizes.entries if self._settings.exact.enabled else 0
        return Stats(exact, sizes.vectors, len(known), known.partitions, sizes.bytes, sizes.evicted, sizes.expired)

    def _in_memory(self, catalogue: Catalogue) -> Store:
        most, vectors = self._settings.max_bytes, self._settings.semantic.max_entries
        return MemoryStore(catalogue, self._clock, max_bytes=most, max_vectors=vectors, lifetime=self.lifetime)

    def _no_semantic_layer(self, question: Question, embedding: Embedding | None, controls: Controls) -> str | None:
        if not self._settings.semantic.enabled:
            return "disabled"
        if not controls.semantic:
            return "controls"
        if question.bypass is not None:
            return question.bypass
        # Two texts that differ past the embedder's window would have the same vector.
        return "window" if embedding is not None and embedding.truncated else None

    def _wording(self, question: Question, embedding: Embedding) -> Wording:
        """What other questions are compared with. Notes are taken here, as the text is still at hand."""
        text, look = question.text or "", self.catalogue.first_look
        notes = None if look is None else look.notes(question.id)
        return Wording(question.namespace, text, embedding.vector, notes or self._notes(text))

    def _notes(self, text: str) -> Notes:
        return Notes(None if self.verifier is None else self.verifier.note(text))

    def _answers(self, entry: Entry, question: Question) -> bool:
        """Whether the entry is what the question's id and tenant led to, and not something that lies in its place."""
        return entry.fingerprint == question.fingerprint and entry.tenant == question.tenant

    def _fresh(self, stored_at: float, layer: Layer, controls: Controls) -> bool:
        age = self._clock.monotonic() - stored_at
        return age < self._ttl[layer] and (controls.max_age is None or age <= controls.max_age)

    def _live(self, near: Iterable[Near], controls: Controls) -> list[Near]:
        """Those that may be served, as far as the catalogue knows. What has expired leaves the catalogue."""
        live = []
        for found in near:
            if self._clock.monotonic() - found.known.stored_at >= self._ttl["semantic"]:
                self.catalogue.remove(found.known.id)
            elif self._fresh(found.known.stored_at, "semantic", controls):
                live.append(found)
        return live

    async def _first_served(
        self,
        question: Question,
        embedding: Embedding,
        live: list[Near],
        threshold: float,
        fetch: Callable[[Known], Awaitable[Entry | None]],
    ) -> SemanticLookup:
        """The nearest one that is near enough, that the guard agrees to, and whose answer is still there."""
        refused: Verdict | None = None
        doubt: Doubt | None = None
        asked = 0
        while asked < min(len(live), CANDIDATES):
            near = live[asked]
            if near.similarity < threshold - ROUNDING:
                break
            verdict = self._verify(question, embedding, near)
            refuses, unsure = verdict is not None and not verdict.served, self._unsure(verdict)
            if refuses:
                refused = refused or verdict
            if refuses and (doubt is not None or not unsure):
                asked += 1
                continue
            entry = await fetch(near.known)
            if entry is None:
                del live[asked]
                continue
            hit = self._hit(entry, "semantic", near.similarity)
            own = Doubt(hit, near.known.text, verdict) if unsure and verdict is not None else None
            if not refuses:
                nearest = live[0]
                return SemanticLookup("hit", threshold, hit, nearest.known.id, nearest.similarity, verdict, doubt=own)
            doubt = own
            asked += 1
        if not live:
            return SemanticLookup("miss", threshold)
        result: LookupResult = "guarded" if refused else "miss"
        return SemanticLookup(result, threshold, None, live[0].known.id, live[0].similarity, refused, doubt=doubt)

    def _unsure(self, verdict: Verdict | None) -> bool:
        return self._settings.semantic.judge is not None and verdict is not None and verdict.unsure

    async def _fetched(self, question: Question, controls: Controls, touch: bool, known: Known) -> Entry | None:
        """The entry behind a known question, from the store: only it says whether the entry is still there.

        It is asked for under the tenant of the question, and must lie in the question's partition.
        """
        entry = await self._store.get(question.tenant, known.id, touch=touch)
        if entry is None or entry.partition is None:
            self.catalogue.remove(known.id)
            return None
        belongs = entry.partition == question.partition and entry.tenant == question.tenant
        return entry if belongs and self._fresh(entry.stored_at, "semantic", controls) else None

    def _verify(self, question: Question, embedding: Embedding, near: Near) -> Verdict | None:
        if self.verifier is None or not self._settings.semantic.guard:
            return None
        asked = Side(question.text or "", embedding.vector)
        return self.verifier.verify(asked, Side(near.known.text, near.vector, near.known.notes))

    def _hit(self, entry: Entry, layer: Layer, similarity: float) -> Hit:
        age = max(0.0, self._clock.monotonic() - entry.stored_at)
        return Hit(entry.id, age, entry.body, layer, similarity, entry.tier)


def lifetime(settings: Cache) -> float:
    """Seconds after which neither layer serves an entry; at least a little, where both are off."""
    exact, semantic = settings.exact, settings.semantic
    return max(exact.ttl if exact.enabled else 0.0, semantic.ttl if semantic.enabled else 0.0)
