"""One tier as the gateway sees it."""

from dataclasses import dataclass

from core.config import Tier, TierName
from gateway.admission import Admission
from gateway.upstream.replicas import Replicas


@dataclass(frozen=True, slots=True)
class TierGate:
    """A tier's door and its servers. `authorization`: the header value that its servers want, None for none."""

    name: TierName
    settings: Tier
    admission: Admission
    replicas: Replicas
    authorization: str | None
