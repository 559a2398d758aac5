"""The embedder's life in the gateway: loaded in the background, so that the gateway answers before torch is in."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Literal, Self

from core.background import Background
from core.breaker import Breaker, Tolerance
from core.clock import Clock
from core.config.records import Embedder
from core.embedder import BatchingEmbedder, Embedding, Encoder
from core.encoders import encoder_for
from core.glance import Glance, glance_for
from gateway.metrics import Metrics

logger = logging.getLogger("forebay.embedder")

EncoderFactory = Callable[[Embedder], Encoder]
GlanceFactory = Callable[[str], Glance | None]
Loaded = tuple[Encoder, Glance | None]
State = Literal["off", "loading", "ready", "failed"]
# A burst makes some vectors late; a model that hangs makes all of them late.
TOLERANCE = Tolerance(in_a_row=8, share=0.75, outcomes=40, cool=2.0)


def configured_encoder(settings: Embedder) -> Encoder:
    """The encoder that the configuration names. Blocking: seconds."""
    return encoder_for(settings.model, settings.source)


class EmbedderSlot:
    """The place of the embedder. An async context manager: entering starts the loading, leaving ends the embedder.

    `ready` is None until the model is in, and where it is off or failed; `fault` says why it failed; `backend` what
    computes the vectors. `on_ready` is told when it is in, with the glance that `make_glance` has for it.
    """

    def __init__(
        self,
        settings: Embedder,
        make: EncoderFactory,
        metrics: Metrics,
        clock: Clock,
        *,
        wanted: bool,
        on_ready: Callable[[BatchingEmbedder, Glance | None], None],
        make_glance: GlanceFactory = glance_for,
    ) -> None:
        self.breaker = Breaker("embedder", clock, TOLERANCE, _tell)
        self.state: State = "loading" if wanted else "off"
        self.fault: str | None = None
        self.ready: BatchingEmbedder | None = None
        self.backend: str | None = None
        self._settings, self._make, self._metrics, self._clock = settings, make, metrics, clock
        self._on_ready, self._make_glance = on_ready, make_glance
        self._background = Background()
        self._settled = asyncio.Event()
        if not wanted:
            self._settled.set()

    async def settled(self) -> None:
        """Wait until the model is in, off or failed."""
        await self._settled.wait()

    async def __aenter__(self) -> Self:
        if self.state == "loading":
            self._background.start(self._live(), "embedder slot")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._background.aclose()

    async def _live(self) -> None:
        try:
            encoder, glance = await self._load()
        except Exception as error:  # noqa: BLE001  # a boundary: model libraries raise anything, and we serve without
            self.state, self.fault = "failed", f"{type(error).__name__}: {error}"
            self._settled.set()
            logger.warning("the embedder cannot be loaded, so there is no semantic layer: %s", self.fault)
            return
        measured = MeasuredEncoder(encoder, self._metrics, self._clock)
        self.backend = encoder.backend
        async with SparingEmbedder(
            measured, self._settings.batch_size, self._settings.max_wait, self.breaker
        ) as embedder:
            self.ready, self.state = embedder, "ready"
            self._on_ready(embedder, glance)
            self._settled.set()
            logger.info("embedder %s is loaded, on %s", embedder.name, self.backend)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.ready = None

    async def _load(self) -> Loaded:
        """Load in a daemon thread: a stop while torch is being imported must not wait for it."""
        loop = asyncio.get_running_loop()
        loaded: asyncio.Future[Loaded] = loop.create_future()

        def deliver(found: Loaded | None, error: BaseException | None) -> None:
            if loaded.done():
                return
            if found is not None:
                loaded.set_result(found)
            else:
                loaded.set_exception(error or RuntimeError("no encoder"))

        def work() -> None:
            found: Loaded | None = None
            fault: BaseException | None = None
            try:
                encoder = self._make(self._settings)
                # The first pass sets up what all others use, and is many times slower.
                encoder.encode(["warm"])
                found = encoder, self._glance(encoder.name)
            except BaseException as error:  # noqa: BLE001  # handed over to the task that waits
                found, fault = None, error
            if not loop.is_closed():
                loop.call_soon_threadsafe(deliver, found, fault)

        threading.Thread(target=work, name="embedder loading", daemon=True).start()
        return await loaded

    def _glance(self, name: str) -> Glance | None:
        try:
            return self._make_glance(name)
        except (OSError, ValueError, KeyError) as error:
            logger.warning("no first look, so every question is embedded: %s: %s", type(error).__name__, error)
            return None


class SparingEmbedder(BatchingEmbedder):
    """An embedder behind a breaker: one that hangs costs a few requests their deadline, then a trial at times."""

    def __init__(self, encoder: Encoder, batch_size: int, max_wait: float, breaker: Breaker) -> None:
        super().__init__(encoder, batch_size, max_wait)
        self._breaker = breaker

    async def compute(
        self, text: str, deadline: float, meanwhile: Callable[[], None] | None = None
    ) -> Embedding | None:
        """The embedding of `text`; None also, and at once, while the breaker is open."""
        if not self._breaker.admit():
            return None
        try:
            embedding = await super().compute(text, deadline, meanwhile)
        except BaseException:
            self._breaker.abandoned()
            raise
        if embedding is None:
            self._breaker.failed(f"no vector within {deadline * 1000:.0f} ms")
        else:
            self._breaker.succeeded()
        return embedding


def _tell(breaker: Breaker) -> None:
    if breaker.state == "open":
        logger.warning("the embedder is left alone for %g s: %s", TOLERANCE.cool, breaker.reason)


class MeasuredEncoder:
    """An encoder whose passes are measured."""

    def __init__(self, encoder: Encoder, metrics: Metrics, clock: Clock) -> None:
        self.name, self.revision, self.dim = encoder.name, encoder.revision, encoder.dim
        self.backend, self.shares = encoder.backend, encoder.shares
        self._encoder, self._clock = encoder, clock
        self._seconds, self._sizes = metrics.embed(), metrics.embed_batch()

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        """One unit vector per text, in order."""
        started = self._clock.monotonic()
        vectors = self._encoder.encode(texts)
        self._seconds.observe(self._clock.monotonic() - started)
        self._sizes.observe(len(texts))
        return vectors
