"""Vectors that are made after the answer: of questions whose lookup did not need one."""

import logging
from collections import deque
from types import TracebackType
from typing import Self

from cache.controls import Controls
from cache.question import Question
from cache.response_cache import ResponseCache
from core.background import Background
from core.errors import DependencyFault
from gateway.embedding import EmbedderSlot
from gateway.metrics import Metrics

logger = logging.getLogger("forebay.cache")

# Questions that wait; what comes on top stays in the exact layer only.
LIMIT = 1000
# Nobody waits for these vectors, in seconds.
PATIENCE = 10.0


class LateVectors:
    """An async context manager; leaving it gives up what waits.

    One text at a time is embedded, so that it delays a request by no more than itself. It is passed to the embedder
    before the answer is sent, so who asks the same in other words next is embedded after it, and finds it.
    """

    def __init__(self, cache: ResponseCache, embedder: EmbedderSlot, metrics: Metrics) -> None:
        self._cache, self._embedder, self._metrics = cache, embedder, metrics
        self._waiting: deque[tuple[Question, Controls]] = deque()
        self._background = Background()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._background.aclose()

    @property
    def waiting(self) -> int:
        """Questions whose vector is still to be made."""
        return len(self._waiting) + len(self._background)

    def add(self, question: Question, controls: Controls) -> None:
        """The answer to this question has been stored without a vector."""
        if len(self._waiting) >= LIMIT:
            self._metrics.writes_skipped("busy").inc()
            return
        self._cache.expect(question)
        self._waiting.append((question, controls))
        if not self._background:
            self._background.start(self._run(), "late vectors")

    async def _run(self) -> None:
        while self._waiting:
            await self._one(*self._waiting.popleft())

    async def _one(self, question: Question, controls: Controls) -> None:
        embedder, embedding = self._embedder.ready, None
        try:
            if embedder is not None and question.text is not None:
                embedding = await embedder.embed(question.text, PATIENCE, question.tenant)
            if embedding is None:
                self._metrics.writes_skipped("no_vector").inc()
            await self._cache.add_wording(question, embedding, controls)
        except DependencyFault as fault:
            self._metrics.writes_skipped("error").inc()
            logger.debug("a question could not be stored: %s", fault)
        except Exception:  # a boundary: nobody waits for this, and the next question is stored all the same
            self._metrics.writes_skipped("error").inc()
            logger.exception("a question could not be stored")
