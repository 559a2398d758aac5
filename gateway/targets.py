"""Which tier a request names: by `model`, and by the `x-forebay-tier` header."""

from collections.abc import Mapping
from dataclasses import dataclass

from core.config.records import TIER_NAMES, TierName, Tiers
from core.errors import BadRequest, NotFound

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Target:
    """What a request asks for.

    `tier`: the tier it is bound to; None leaves the choice to the classifier. `model`: the name sent to that tier's
    engine; None with `tier`. `question`: the target as part of the cache's fingerprint; equal for every way to name
    the same model.
    """

    tier: TierName | None
    model: str | None
    question: str


class Targets:
    """Every name a client may ask for."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers: dict[TierName, Target] = {}
        self._names: dict[str, Target] = {}
        for name, tier in tiers.items():
            target = Target(name, tier.model, f"model={tier.model}")
            self._tiers[name] = self._names[name] = self._names[tier.model] = target
            for adapter in tier.adapters:
                self._names[adapter] = Target(name, adapter, f"model={adapter}")
        only = next(iter(self._tiers.values())) if len(self._tiers) == 1 else None
        both = "\n".join(f"{name}={target.model}" for name, target in self._tiers.items())
        # With one tier `auto` is another name for it.
        self._names[AUTO] = only or Target(None, None, f"{AUTO}\n{both}")

    @property
    def names(self) -> Mapping[str, Target]:
        """Every name a client may ask for, with what it stands for."""
        return self._names

    @property
    def only(self) -> Target | None:
        """The tier, where there is just one."""
        target = self._names[AUTO]
        return target if target.tier is not None else None

    def resolve(self, model: str, tier_header: str | None) -> Target:
        """The target of a request. Raises NotFound for an unknown model, BadRequest for an impossible tier."""
        target = self._names.get(model)
        if target is None:
            names = ", ".join(sorted(self._names))
            raise NotFound(
                f"the model {model[:200]!r} does not exist; known: {names}", code="model_not_found", param="model"
            )
        if tier_header is None:
            return target
        forced = next((known for name, known in self._tiers.items() if name == tier_header), None)
        if forced is None:
            legal = "not configured here" if tier_header in TIER_NAMES else f"one of {', '.join(TIER_NAMES)} is legal"
            raise BadRequest(f"x-forebay-tier {tier_header[:50]!r}: {legal}", param="x-forebay-tier")
        if target.tier is None or target is self._names[AUTO]:
            return forced
        if target.tier != forced.tier:
            message = f"x-forebay-tier {tier_header} contradicts the model {model!r}, which is the {target.tier} tier's"
            raise BadRequest(message, param="x-forebay-tier")
        return target
