"""What the router learns from live traffic: drift, labels, comparisons, feedback."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from core.clock import Clock
from core.config import Config, TierName
from gateway.comparing import Comparing, LabelFile
from gateway.drift import Drift
from gateway.feedback import Decisions
from gateway.metrics import Metrics
from gateway.tier import TierGate
from router.classifier import Classifier


class Learning:
    """The four parts, with one life: an async context manager that ends the comparisons."""

    def __init__(
        self,
        config: Config,
        classifier: Classifier,
        tiers: Mapping[TierName, TierGate],
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        labels = config.router.labels
        self.file = None if labels.path is None else LabelFile(Path(labels.path))
        self.drift = Drift(classifier.deciles.tolist(), list(tiers))
        self.comparing = Comparing(labels, tiers.get("frontier"), self.file, metrics, clock)
        self.decisions = Decisions(prompts=self.file is not None)
        metrics.drift().read = self.drift.psi

    async def __aenter__(self) -> Self:
        await self.comparing.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.comparing.__aexit__(kind, error, trace)
