"""Sends spans to a collector in batches, in the background. No request waits; what finds no room is dropped."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

import httpx

from core.config.telemetry import Telemetry
from gateway.tracing.otlp import as_json, as_protobuf
from gateway.tracing.span import Attribute, Span

logger = logging.getLogger("forebay.tracing")

# How long the end of the process may wait for the last batch, in seconds.
LAST = 2.0
# A collector that answers with one of these may take the same batch later.
AGAIN = (429, 502, 503, 504)


class Exporter:
    """An async context manager; leaving it sends what waits, where that is quick. `offer` returns at once."""

    def __init__(self, settings: Telemetry, resource: Mapping[str, Attribute]) -> None:
        self._settings, self._resource = settings, resource
        self._waiting: deque[Span] = deque()
        self._full = asyncio.Event()
        self._client: httpx.AsyncClient | None = None
        self._task: asyncio.Task[None] | None = None
        self._failing = False
        self.dropped = 0

    async def __aenter__(self) -> Self:
        # Without TLS nobody reads the certificate authorities, which takes longer than everything else.
        secure = self._settings.endpoint.startswith("https:")
        self._client = httpx.AsyncClient(timeout=self._settings.timeout, trust_env=False, verify=secure)
        self._task = asyncio.create_task(self._send_batches(self._client), name="trace export")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is None or self._client is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST):
                while self._waiting and await self._send(self._client):
                    pass
        await self._client.aclose()

    def offer(self, spans: Iterable[Span]) -> None:
        """Take spans, where there is room for them."""
        for span in spans:
            if len(self._waiting) >= self._settings.queue:
                self.dropped += 1
            else:
                self._waiting.append(span)
        if len(self._waiting) >= self._settings.batch:
            self._full.set()

    async def _send_batches(self, client: httpx.AsyncClient) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.delay):
                    await self._full.wait()
            self._full.clear()
            while self._waiting and await self._send(client):
                if len(self._waiting) < self._settings.batch:
                    break

    async def _send(self, client: httpx.AsyncClient) -> bool:
        """Send one batch; False where the collector is to be left alone until the next turn."""
        size = min(len(self._waiting), self._settings.batch)
        batch = [self._waiting.popleft() for _ in range(size)]
        json = self._settings.protocol == "http/json"
        body = (as_json if json else as_protobuf)(batch, self._resource)
        headers = {**self._settings.headers, "content-type": "application/json" if json else "application/x-protobuf"}
        try:
            answer = await client.post(self._settings.endpoint, content=body, headers=headers)
            fault = None if answer.is_success else f"status {answer.status_code}"
            again = answer.status_code in AGAIN
        except (httpx.HTTPError, OSError) as error:
            fault, again = f"{type(error).__name__}: {error}", True
        except asyncio.CancelledError:
            self._waiting.extendleft(reversed(batch))
            raise
        if fault is None:
            self._failing = False
            return True
        if again and len(self._waiting) + size <= self._settings.queue:
            self._waiting.extendleft(reversed(batch))
        else:
            self.dropped += size
        if not self._failing:
            logger.warning("traces cannot be sent: %s; what there is no room for is dropped", fault)
        self._failing = True
        return False
