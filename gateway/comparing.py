"""Labels from production: some of the small tier's answers are also asked of the frontier tier, and compared.

Opt-in. Everything happens after the client has its answer, one comparison at a time, and only in room of the frontier
tier that no client needs. What comes out is appended to one file, and goes nowhere else.
"""

import asyncio
import logging
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson
from pydantic import JsonValue

from core.background import Background
from core.clock import Clock
from core.config.records import Labels
from core.errors import RequestError
from core.request import InferenceRequest
from gateway.aside import NoRoom, ask, has_room, in_spare_room
from gateway.metering import usage_of
from gateway.metrics import Metrics
from gateway.tier import TierGate
from gateway.witness import said
from router.scoring import agreement

logger = logging.getLogger("forebay.labels")

# Comparisons that wait for their turn; more are dropped.
MAX_WAITING = 8
# Longest time for one comparison, in seconds.
PATIENCE = 120.0
# The file takes no more rows above this size, in bytes.
MAX_FILE = 1024**3
# Answers that agree less are counted as misrouted.
DIFFERENT = 0.35
# Whose the comparisons are, among the tenants that wait for the tier.
NOBODY = "-"
# Fields that concern how the client gets its answer, not which.
_DELIVERY = ("stream", "stream_options", "user", "logprobs", "top_logprobs", "n")


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer of the small tier that is to be compared."""

    request: InferenceRequest
    request_id: str
    answer: str
    complexity: float | None
    reason: str
    confidence: float | None


class LabelFile:
    """The file that labels are appended to, readable for its owner only. Rows are kept until the operator deletes them.

    Above MAX_FILE it takes no more rows, and says so once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._full = False

    async def append(self, row: Mapping[str, JsonValue]) -> None:
        """Add one row; what cannot be written is logged."""
        try:
            await asyncio.to_thread(self._append, orjson.dumps(row) + b"\n")
        except OSError as error:
            logger.warning("a label cannot be written: %s", error)

    def _append(self, line: bytes) -> None:
        out = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.fstat(out).st_size + len(line) <= MAX_FILE:
                os.write(out, line)
            elif not self._full:
                self._full = True
                logger.warning("%s is full: no more labels are kept", self._path)
        finally:
            os.close(out)


class Comparing:
    """Compares what is offered. An async context manager: leaving it drops what waits and ends what runs."""

    def __init__(
        self, settings: Labels, frontier: TierGate | None, file: LabelFile | None, metrics: Metrics, clock: Clock
    ) -> None:
        self._rate = settings.rate if frontier is not None and file is not None else 0.0
        self._frontier, self._file, self._metrics, self._clock = frontier, file, metrics, clock
        self._queue: asyncio.Queue[Sample] = asyncio.Queue(MAX_WAITING)
        self._background = Background()

    def wants(self, request: InferenceRequest) -> bool:
        """Whether the answer to this request is to be compared: drawn by chance, and only where that can be done."""
        if not self._rate or request.kind != "chat" or request.body.get("n") not in (None, 1):
            return False
        return random.random() < self._rate  # noqa: S311  # a sample, not a secret

    def offer(self, sample: Sample) -> None:
        """Compare it when there is time. Never waits; dropped where too many wait or the frontier tier is busy."""
        gate = self._frontier
        if gate is not None and gate.replicas.ready and has_room(gate) and not self._queue.full():
            self._queue.put_nowait(sample)

    async def __aenter__(self) -> Self:
        if self._frontier is not None and self._file is not None and self._rate:
            self._background.start(self._run(self._frontier, self._file), "comparing")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._background.aclose()

    async def _run(self, gate: TierGate, file: LabelFile) -> None:
        while True:
            sample = await self._queue.get()
            call = partial(ask, gate, _body(sample, gate), f"{sample.request_id}-compared")
            try:
                await self._compare(sample, await in_spare_room(gate, NOBODY, call, PATIENCE), gate, file)
            except NoRoom:
                logger.info("request %s was not compared: clients need the tier", sample.request_id)
            except (RequestError, TimeoutError) as error:
                logger.info("request %s was not compared: %s", sample.request_id, error)
            except Exception:  # a boundary: one odd answer must not end the comparing
                logger.exception("request %s could not be compared", sample.request_id)

    async def _compare(self, sample: Sample, answer: Mapping[str, JsonValue], gate: TierGate, file: LabelFile) -> None:
        usage = usage_of(answer.get("usage"))
        if usage is not None:
            self._metrics.tokens(gate.name, "input").inc(usage.input)
            self._metrics.tokens(gate.name, "output").inc(usage.output)
            self._metrics.tokens(gate.name, "cached").inc(usage.cached)
        text = said(dict(answer))
        if text is None:
            return
        agreed = round(agreement(sample.answer, text), 4)
        if agreed < DIFFERENT:
            # One of so many was looked at: the estimate is for all of them.
            self._metrics.misrouted("too_small").inc(1 / self._rate)
        await file.append(
            {
                "source": "comparison",
                "at": round(self._clock.time(), 3),
                "request_id": sample.request_id,
                "messages": sample.request.body.get("messages"),
                "weak": agreed,
                "strong": 1.0,
                "scorer": "agreement",
                "complexity": sample.complexity,
                "reason": sample.reason,
                "confidence": None if sample.confidence is None else {"first": round(sample.confidence, 5)},
            }
        )


def _body(sample: Sample, gate: TierGate) -> dict[str, JsonValue]:
    body = {name: value for name, value in sample.request.body.items() if name not in _DELIVERY}
    return body | {"model": gate.settings.model}
