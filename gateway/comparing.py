"""Labels from production: some of the small tier's answers are also asked of the frontier tier, and compared.

Opt-in. Everything happens after the client has its answer, one comparison at a time, and only while the frontier tier
is far from busy. What comes out is appended to one file, and goes nowhere else.
"""

import asyncio
import logging
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson
from pydantic import JsonValue

from core.clock import Clock
from core.config.records import Labels
from core.errors import RequestError
from core.request import InferenceRequest
from gateway.ear import parsed
from gateway.metering import usage_of
from gateway.metrics import Metrics
from gateway.ticket import Ticket
from gateway.tier import TierGate
from gateway.upstream.base import Call, Reply
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
# Of the tier's slots, so many may be taken when a comparison begins.
BUSY = 0.5
CHAT = "/v1/chat/completions"
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
        self._task: asyncio.Task[None] | None = None

    def wants(self, request: InferenceRequest) -> bool:
        """Whether the answer to this request is to be compared: drawn by chance, and only where that can be done."""
        if not self._rate or request.kind != "chat" or request.body.get("n") not in (None, 1):
            return False
        return random.random() < self._rate  # noqa: S311  # a sample, not a secret

    def offer(self, sample: Sample) -> None:
        """Compare it when there is time. Never waits; dropped where too many wait or the frontier tier is busy."""
        if not self._busy() and not self._queue.full():
            self._queue.put_nowait(sample)

    def _busy(self) -> bool:
        gate = self._frontier
        if gate is None or not gate.replicas.ready:
            return True
        return gate.admission.waiting > 0 or gate.admission.inflight > BUSY * gate.settings.queue.max_inflight

    async def __aenter__(self) -> Self:
        if self._rate:
            self._task = asyncio.create_task(self._run(), name="comparing")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            sample = await self._queue.get()
            if self._busy():
                continue
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._compare(sample)
            except (RequestError, TimeoutError) as error:
                logger.info("request %s was not compared: %s", sample.request_id, error)
            except Exception:  # a boundary: one odd answer must not end the comparing
                logger.exception("request %s could not be compared", sample.request_id)

    async def _compare(self, sample: Sample) -> None:
        answer = await self._ask(sample)
        text = None if answer is None else said(answer)
        if text is None or self._file is None:
            return
        agreed = round(agreement(sample.answer, text), 4)
        if agreed < DIFFERENT:
            # One of so many was looked at: the estimate is for all of them.
            self._metrics.misrouted("too_small").inc(1 / self._rate)
        await self._file.append(
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

    async def _ask(self, sample: Sample) -> Mapping[str, JsonValue] | None:
        gate = self._frontier
        if gate is None:
            return None
        body = {name: value for name, value in sample.request.body.items() if name not in _DELIVERY}
        headers = {"content-type": "application/json", "x-request-id": f"{sample.request_id}-compared"}
        if gate.authorization is not None:
            headers["authorization"] = gate.authorization
        raw = orjson.dumps(body | {"model": gate.settings.model})
        call = Call("POST", CHAT, headers, raw, gate.settings.timeout.connect)
        async with gate.admission.enter(Ticket(tenant="-", priority="low", cost=gate.forecast.usual)):
            opened = await gate.replicas.open(call, _whole)
            opened.close()
        answer = parsed(opened.begun)
        usage = None if answer is None else usage_of(answer.get("usage"))
        if usage is not None:
            self._metrics.tokens("frontier", "input").inc(usage.input)
            self._metrics.tokens("frontier", "output").inc(usage.output)
            self._metrics.tokens("frontier", "cached").inc(usage.cached)
        return answer


async def _whole(reply: Reply) -> bytes:
    parts: list[bytes] = []
    while chunk := await reply.read():
        parts.append(chunk)
    return b"".join(parts)
