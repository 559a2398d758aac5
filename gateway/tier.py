"""One tier as the gateway sees it."""

from dataclasses import dataclass, field

from core.config import Tier, TierName
from gateway.admission import Admission
from gateway.forecast import Forecast
from gateway.upstream.replicas import Replicas
from router.decision import TierFacts


@dataclass(slots=True)
class TierGate:
    """A tier's door and its servers.

    `authorization`: the header value that its servers want, None for none. `forecast`: what its answers
    are like. `facts`: what the router must know. `sessions`: its servers want to know which requests belong together.
    """

    name: TierName
    settings: Tier
    admission: Admission
    replicas: Replicas
    authorization: str | None
    forecast: Forecast = field(default_factory=Forecast)
    facts: TierFacts = field(init=False)
    sessions: bool = field(init=False)

    def __post_init__(self) -> None:
        self.learn()

    def renew(self, settings: Tier, authorization: str | None) -> None:
        """Go on with these settings; what runs and what waits stays."""
        self.settings, self.authorization = settings, authorization
        self.admission.renew(settings.queue, patient=scales_from_zero(settings))
        self.learn()

    def learn(self) -> None:
        """Bring `facts` up to date: the context length is as configured, else as the servers say."""
        self.sessions = several(self.settings)
        context = self.settings.context or self.replicas.context
        self.facts = TierFacts(self.settings.model, frozenset(self.settings.capabilities), context)


def several(tier: Tier) -> bool:
    """Whether one address of the tier may stand for several replicas, each with a prefix cache of its own."""
    apart = tier.disaggregation
    groups = [tier.replicas] if apart is None else [apart.prefill.replicas, apart.decode.replicas]
    return any(group.max > 1 for group in groups)


def scales_from_zero(tier: Tier) -> bool:
    """Whether a tier without replicas is only asleep: its requests wait for one, unless another tier may answer."""
    return tier.replicas.min == 0 and tier.fallback is None
