"""Shadow mode: a share of the semantic hits is also asked upstream, in the background, and the answers are compared."""

import logging
import random
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Self

from pydantic import JsonValue

from cache.agreement import Agreement, by_rule, by_similarity, cosine
from cache.answer import Hit, refusal_to_store
from cache.guard.lexicon import lexicon
from cache.response_cache import ResponseCache
from core.background import Background
from core.config import TierName
from core.errors import DependencyFault, RequestError
from gateway.aside import NoRoom, ask, has_room, in_spare_room, text_of
from gateway.asked import Asked
from gateway.embedding import EmbedderSlot
from gateway.metering import usage_of
from gateway.metrics import Metrics
from gateway.tier import TierGate

logger = logging.getLogger("forebay.shadow")

# Shadow calls at one time, and how long one may take, in seconds.
CONCURRENT = 2
LIMIT = 60.0
# So much of each answer is compared, in characters: what the embedder reads in full, in one short pass.
HEAD = 1000
# How long the embeddings of the two answers are waited for, in seconds.
EMBED = 10.0
# Comparisons remembered for people.
REMEMBERED = 1000


class Shadow:
    """An async context manager; leaving it gives up the comparisons that run.

    `chance`: uniform numbers in [0, 1). An entry whose shadow disagrees is deleted.
    """

    def __init__(
        self,
        rate: float,
        tiers: Mapping[TierName, TierGate],
        cache: ResponseCache,
        embedder: EmbedderSlot,
        metrics: Metrics,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._rate, self._tiers, self._cache, self._embedder = rate, tiers, cache, embedder
        self._metrics, self._chance = metrics, chance
        self._background = Background()
        # Ids of the entries that are being compared.
        self._running: set[str] = set()
        # Similarity of the questions, and whether the answers said the same: of the last comparisons.
        self.compared: deque[tuple[float, bool]] = deque(maxlen=REMEMBERED)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._background.aclose()

    def renew(self, rate: float) -> None:
        """Compare this share from here on."""
        self._rate = rate

    @property
    def running(self) -> int:
        """Comparisons under way."""
        return len(self._running)

    def consider(self, asked: Asked, hit: Hit, request_id: str) -> None:
        """A semantic hit was served: compare it, where it is drawn and the tier that made it has room."""
        if self._rate <= 0 or self._chance() >= self._rate:
            return
        gate = next((gate for name, gate in self._tiers.items() if name == hit.tier), None)
        if gate is None or hit.id in self._running:
            return
        if len(self._running) >= CONCURRENT or not has_room(gate):
            self._skipped("busy")
            return
        self._running.add(hit.id)
        self._background.start(self._run(asked, hit, gate, request_id), "shadow")

    async def _run(self, asked: Asked, hit: Hit, gate: TierGate, request_id: str) -> None:
        try:
            await self._compare(asked, hit, gate, request_id)
        finally:
            self._running.discard(hit.id)

    async def _compare(self, asked: Asked, hit: Hit, gate: TierGate, request_id: str) -> None:
        try:
            body = shadow_body(asked, gate)
            call = partial(ask, gate, body, f"{request_id}-shadow")
            fresh = await in_spare_room(gate, asked.tenant, call, LIMIT)
            self._count(gate, fresh)
            found = await self._agreement(text_of(hit.answer), fresh)
        except NoRoom:
            self._skipped("busy")
            return
        except TimeoutError:
            self._skipped("late")
            return
        except RequestError as error:
            self._skipped("error")
            logger.info("shadow of entry %s failed: %s", hit.id, error.code or error.status)
            return
        except Exception:  # a boundary: nobody waits for this, and the next hit is compared all the same
            self._skipped("error")
            logger.exception("shadow of entry %s failed", hit.id)
            return
        if found is None:
            self._skipped("incomparable")
            return
        verdict = "same" if found.same else "different"
        self._metrics.shadow(verdict).inc()
        self.compared.append((hit.similarity, found.same))
        if not found.same:
            try:
                await self._cache.delete(hit.id)
            except DependencyFault as fault:
                logger.warning("shadow: entry %s differs and could not be dropped: %s", hit.id, fault)
        logger.info(
            "shadow: entry %s %s by %s, similarity of the questions %.4f, request %s",
            hit.id,
            verdict if found.same else "different, dropped",
            found.feature,
            hit.similarity,
            request_id,
        )

    async def _agreement(self, stored: str | None, fresh: Mapping[str, JsonValue]) -> Agreement | None:
        """Whether the two answers say the same; None where that cannot be said."""
        said = text_of(fresh)
        if refusal_to_store(fresh) is not None or stored is None or said is None:
            return None
        stored, said = stored[:HEAD], said[:HEAD]
        if (found := by_rule(stored, said, lexicon())) is not None:
            return found
        embedder = self._embedder.ready
        if embedder is None:
            return None
        vectors = [await embedder.embed(text, EMBED) for text in (stored, said)]
        if vectors[0] is None or vectors[1] is None:
            return None
        return by_similarity(cosine(vectors[0].vector, vectors[1].vector))

    def _count(self, gate: TierGate, fresh: Mapping[str, JsonValue]) -> None:
        """The tokens are the tier's work, but no tenant's: nobody asked for them."""
        usage = usage_of(fresh.get("usage"))
        if usage is not None:
            self._metrics.tokens(gate.name, "input").inc(usage.input)
            self._metrics.tokens(gate.name, "output").inc(usage.output)

    def _skipped(self, reason: str) -> None:
        self._metrics.shadow_skipped(reason).inc()


def shadow_body(asked: Asked, gate: TierGate) -> dict[str, JsonValue]:
    """The body that asks for one fresh answer, at temperature 0: the dice of sampling would be counted otherwise."""
    body = {name: value for name, value in asked.request.body.items() if name not in ("stream", "stream_options")}
    body |= {"model": asked.target.model or gate.settings.model, "temperature": 0}
    if body.get("n") is not None:
        body["n"] = 1
    return body
