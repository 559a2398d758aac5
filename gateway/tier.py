"""One tier as the gateway sees it."""

from dataclasses import dataclass

from core.config import Tier, TierName
from gateway.admission import Admission
from gateway.upstream.replicas import Replicas
from router.decision import TierFacts


@dataclass(frozen=True, slots=True)
class TierGate:
    """A tier's door and its servers. `authorization`: the header value that its servers want, None for none."""

    name: TierName
    settings: Tier
    admission: Admission
    replicas: Replicas
    authorization: str | None

    @property
    def context(self) -> int | None:
        """Context length in tokens: as configured, else as its servers say; None where neither is known."""
        return self.settings.context or self.replicas.context

    @property
    def facts(self) -> TierFacts:
        """What the router must know about it."""
        return TierFacts(self.settings.model, frozenset(self.settings.capabilities), self.context)
