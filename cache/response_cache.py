"""The response cache: an exact layer and a semantic layer over the same stored answers."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

import orjson

from cache.answer import Hit, Layer, refusal_to_store
from cache.controls import Controls
from cache.entries import Entries, Entry
from cache.index import Near, SimilarityIndex
from cache.question import Question
from cache.verdict import Side, Verdict, Verifier
from core.clock import Clock
from core.config.records import Cache
from core.embedder import Embedding

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
    """Sizes and what has left since the start. `exact`, `semantic`: entries that each layer can serve."""

    exact: int
    semantic: int
    partitions: int
    bytes: int
    evicted: int
    expired: int


class ResponseCache:
    """Answers in memory. An async context manager; closing it ends the search threads.

    All methods belong to one event loop. None raises for what a client sent. Cancelling a lookup abandons it.
    """

    def __init__(self, settings: Cache, *, clock: Clock, verifier: Verifier | None = None) -> None:
        if settings.semantic.enabled and settings.semantic.guard and verifier is None:
            raise ValueError("cache.semantic.guard is on but there is no verifier")
        self._settings, self._clock = settings, clock
        self._verifier = verifier
        self._entries = Entries(settings.max_bytes, settings.semantic.max_entries)
        self._index = SimilarityIndex()
        self._ttl: dict[Layer, float] = {
            "exact": settings.exact.ttl if settings.exact.enabled else 0.0,
            "semantic": settings.semantic.ttl if settings.semantic.enabled else 0.0,
        }
        self._expired = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._index.aclose()

    async def exact(self, question: Question, controls: Controls, *, touch: bool = True) -> Hit | None:
        """The answer to this very question. `touch` False leaves no trace in the order of eviction."""
        if not controls.read:
            return None
        entry = self._entries.get(question.id)
        if entry is None or entry.fingerprint != question.fingerprint or not self._fresh(entry, "exact", controls):
            return None
        return self._hit(entry, "exact", 1.0, touch)

    async def semantic(
        self,
        question: Question,
        embedding: Embedding | None,
        controls: Controls,
        *,
        touch: bool = True,
        deadline: float | None = None,
    ) -> SemanticLookup:
        """The answer to another wording of this question.

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
                near = await self._index.nearest(question.partition, embedding.vector, 2 * CANDIDATES)
        except TimeoutError:
            return SemanticLookup("timeout", threshold)
        return self._judge(question, embedding, self._live(near, controls), threshold, touch)

    async def store(
        self,
        question: Question,
        answer: Mapping[str, object],
        embedding: Embedding | None,
        *,
        tier: str,
        controls: Controls,
    ) -> str | None:
        """Stores a completion, in place of an older answer to the same question; None, or why it was not stored."""
        if not controls.write:
            return "off"
        if (reason := refusal_to_store(answer)) is not None:
            return reason
        semantic = embedding is not None and self._no_semantic_layer(question, embedding, controls) is None
        if not semantic and not self._settings.exact.enabled:
            return "disabled"
        self._sweep()
        entry = Entry(
            id=question.id,
            fingerprint=question.fingerprint,
            tenant=question.tenant,
            tier=tier,
            body=orjson.dumps(answer),
            stored_at=self._clock.monotonic(),
            partition=question.partition if semantic else None,
            text=question.text if semantic else None,
            vector=embedding.vector if semantic and embedding is not None else None,
        )
        left = self._entries.put(entry)
        self._forget(old for old in left if old is not entry)
        if entry in left:
            return "too_large"
        if entry.partition is not None and entry.vector is not None:
            self._index.add(entry.partition, entry.id, entry.vector)
        return None

    def delete(self, key: str) -> bool:
        """Removes one entry from both layers; whether it was there."""
        entry = self._entries.remove(key)
        self._forget([entry] if entry is not None else [])
        return entry is not None

    def purge(self, tenant: str | None = None) -> int:
        """Removes every entry, or every entry of one tenant; how many."""
        keys = [entry.id for entry in self._entries if tenant is None or entry.tenant == tenant]
        return sum(self.delete(key) for key in keys)

    def stats(self) -> Stats:
        """Sizes after what has expired is gone."""
        self._sweep()
        entries = self._entries
        exact = len(entries) if self._settings.exact.enabled else 0
        return Stats(exact, entries.vectors, self._index.partitions, entries.bytes, entries.evicted, self._expired)

    def _no_semantic_layer(self, question: Question, embedding: Embedding | None, controls: Controls) -> str | None:
        if not self._settings.semantic.enabled:
            return "disabled"
        if not controls.semantic:
            return "controls"
        if question.bypass is not None:
            return question.bypass
        # Two texts that differ past the embedder's window would have the same vector.
        return "window" if embedding is not None and embedding.truncated else None

    def _fresh(self, entry: Entry, layer: Layer, controls: Controls) -> bool:
        age = self._clock.monotonic() - entry.stored_at
        return age < self._ttl[layer] and (controls.max_age is None or age <= controls.max_age)

    def _live(self, near: Iterable[Near], controls: Controls) -> list[tuple[Entry, float]]:
        found = ((self._entries.get(candidate.id), candidate.similarity) for candidate in near)
        return [(e, score) for e, score in found if e is not None and self._fresh(e, "semantic", controls)]

    def _judge(
        self,
        question: Question,
        embedding: Embedding,
        live: list[tuple[Entry, float]],
        threshold: float,
        touch: bool,
    ) -> SemanticLookup:
        if not live:
            return SemanticLookup("miss", threshold)
        nearest, best = live[0][0].id, live[0][1]
        refused: Verdict | None = None
        doubt: Doubt | None = None
        for entry, similarity in live[:CANDIDATES]:
            if similarity < threshold - ROUNDING:
                break
            verdict = self._verify(question, embedding, entry)
            if verdict is None or verdict.served:
                hit = self._hit(entry, "semantic", similarity, touch)
                doubt = self._doubt(hit, entry, verdict)
                return SemanticLookup("hit", threshold, hit, nearest, best, verdict, doubt=doubt)
            doubt = doubt or self._doubt(self._hit(entry, "semantic", similarity, touch=False), entry, verdict)
            refused = refused or verdict
        result: LookupResult = "guarded" if refused else "miss"
        return SemanticLookup(result, threshold, None, nearest, best, refused, doubt=doubt)

    def _doubt(self, hit: Hit, entry: Entry, verdict: Verdict | None) -> Doubt | None:
        if self._settings.semantic.judge is None or verdict is None or not verdict.unsure:
            return None
        return Doubt(hit, entry.text or "", verdict)

    def _verify(self, question: Question, embedding: Embedding, entry: Entry) -> Verdict | None:
        if self._verifier is None or not self._settings.semantic.guard or entry.vector is None:
            return None
        asked = Side(question.text or "", embedding.vector)
        return self._verifier.verify(asked, Side(entry.text or "", entry.vector))

    def _hit(self, entry: Entry, layer: Layer, similarity: float, touch: bool) -> Hit:
        if touch:
            self._entries.touch(entry.id)
        age = self._clock.monotonic() - entry.stored_at
        return Hit(entry.id, age, entry.body, layer, similarity, entry.tier)

    def _sweep(self) -> None:
        gone = self._entries.expired(self._clock.monotonic() - max(self._ttl.values()))
        self._expired += len(gone)
        self._forget(gone)

    def _forget(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.partition is not None:
                self._index.remove(entry.partition, entry.id)
