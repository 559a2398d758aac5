"""The other tier in place of one that has no replica, where the operator allows it."""

from collections.abc import Mapping

from core.config import TierName
from core.errors import BadRequest, RequestError
from core.request import InferenceRequest
from gateway.tier import TierGate
from gateway.upstream.base import ConnectFailed, ConnectTimeout
from router.decision import decide

REASON = "fallback"


def stand_in(
    tiers: Mapping[TierName, TierGate], gate: TierGate, model: str, request: InferenceRequest, error: RequestError
) -> TierGate | None:
    """The tier that may answer instead of `gate` after this error; None where none may.

    Only for a tier without a replica: one that is full, slow or broken keeps its requests, or its load would bring
    down the other one too. An adapter lives on its own tier, and a tier must be able to do what the request needs.
    """
    other = gate.settings.fallback
    if other is None or model != gate.settings.model or not _no_replica(error):
        return None
    found = tiers[other]
    if not found.replicas.usable:
        return None
    try:
        decide(request, {other: found.facts}, forced=other, floor=None, score=None, threshold=0.0)
    except BadRequest:
        return None
    return found


def _no_replica(error: RequestError) -> bool:
    return error.reason == "no_replica" or isinstance(error, ConnectFailed | ConnectTimeout)
