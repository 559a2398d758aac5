"""What runs inside the replicas of a tier whose prefill and decode are apart.

Imported on replicas and by `deploy.tiers` when it builds an application: it needs Ray and vLLM.
"""

import asyncio
import dataclasses
import logging
import random
from collections.abc import Mapping
from typing import Any

from ray.serve.handle import DeploymentHandle
from ray.util import metrics

from deploy.disconnect import AsgiApp, EndOnCancel
from deploy.handoff import Decoder, Settings
from deploy.handoff.group import Mode
from deploy.handoff.inside import ask, json_body, post
from deploy.handoff.probe import Misconfigured, probe
from deploy.peers import ServeGroup
from deploy.server import EngineServer

logger = logging.getLogger("ray.serve")

# How long the start waits for a prefill replica. Where the prompt may be computed here, the tier can begin without one.
_PROBE_WAIT: Mapping[str, float] = {"decode": 120.0, "error": 900.0}
# Seconds; Ray's shortest interval between reports.
_REPORT = 1.0
_BOUNDARIES = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0]


class PrefillServer(EngineServer):
    """A replica that computes prompts: asked by decode replicas through Serve, never by clients."""

    async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]  # as Serve awaits it
        await super().__init__(*args, **kwargs)
        self._app = await self.__serve_build_asgi_app__()

    async def prefill(self, path: str, raw: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """One leg: status and body of the engine's answer. Cancellation aborts it in the engine."""
        scope = json_body(post(path, headers), path, len(raw))
        return await ask(EndOnCancel(self._app), scope, raw)


class RayMeter:
    """The hand-off's metrics, on Ray's metrics port."""

    def __init__(self) -> None:
        self._prefill = metrics.Counter(
            "forebay_prefill_total", "Requests by where their prompt was computed", ("mode", "reason")
        )
        self._handoff = metrics.Histogram(
            "forebay_kv_handoff_seconds", "Prefill side's answer to decode side's first content", _BOUNDARIES
        )
        self._orphaned = metrics.Gauge("forebay_kv_orphaned_blocks", "Blocks that prefill replicas keep for nobody")
        self._blocks = 0

    def prefilled(self, mode: Mode, reason: str) -> None:
        self._prefill.inc(1, {"mode": mode, "reason": reason})

    def handed_over(self, seconds: float) -> None:
        self._handoff.observe(seconds)

    def orphaned(self, blocks: int) -> None:
        self._blocks = blocks
        self._orphaned.set(blocks)

    async def repeat(self) -> None:
        """Say the gauge again and again: Ray forgets one that was not set for two of its reports."""
        while True:
            self._orphaned.set(self._blocks)
            await asyncio.sleep(_REPORT)


class DecodeServer(EngineServer):
    """A replica that owns requests: it asks prefill replicas, and generates."""

    async def __init__(  # type: ignore[misc]  # as Serve awaits it
        self, llm_config: Any, *, prefill_server: DeploymentHandle, settings: dict[str, Any], **kwargs: Any
    ) -> None:
        self._group, self._settings = ServeGroup(prefill_server), Settings(**settings)
        await super().__init__(llm_config, **kwargs)

    async def __serve_build_asgi_app__(self) -> AsgiApp:
        app = await super().__serve_build_asgi_app__()
        meter = RayMeter()
        self._repeating = asyncio.ensure_future(meter.repeat())
        policy = self._settings.on_prefill_failure
        logger.info("prefill and decode apart: %s", dataclasses.asdict(self._settings))
        trial = Decoder(app, self._group, self._settings, meter)
        model = self._llm_config.model_id
        found = await probe(trial, model, self._settings.block_size, _PROBE_WAIT[policy], random.SystemRandom())
        if found == "unreachable":
            if policy == "error":
                raise Misconfigured("no prefill replica answered, and on_prefill_failure is error")
            logger.warning("no prefill replica answered: prompts are computed here until one does")
        app.middleware_stack = None  # type: ignore[attr-defined]  # built for the probe
        app.add_middleware(  # type: ignore[attr-defined]  # vLLM's application is FastAPI's
            Decoder, group=self._group, settings=self._settings, meter=meter
        )
        return app
