"""From the bytes of a request to everything that is settled before anything is looked up or sent."""

from collections.abc import Mapping
from typing import NamedTuple

from cache.controls import Controls, controls
from cache.question import Question, namespace, question
from core.config.records import Cache
from core.embedder import BatchingEmbedder
from core.request import InferenceRequest, RouteKind, parse
from gateway.auth import Identity
from gateway.targets import Target, Targets

# Request headers that say how the cache may be used.
_CACHE_HEADERS = {
    b"cache-control": "cache-control",
    b"x-forebay-cache": "x-forebay-cache",
    b"x-forebay-threshold": "x-forebay-threshold",
    b"x-stainless-retry-count": "x-stainless-retry-count",
}
_DEFAULT = Controls()
EVERYONE = "*"


class Asked(NamedTuple):
    """A request, what it asks for, who asks, and how the cache sees it.

    `question` is None where the cache is neither read nor written.
    """

    request: InferenceRequest
    target: Target
    tenant: str
    controls: Controls
    question: Question | None


class Reader:
    """Reads chat and text completion requests."""

    def __init__(self, targets: Targets, cache: Cache) -> None:
        self._targets = targets
        self._shared = cache.scope == "global"
        self._cached = cache.exact.enabled or cache.semantic.enabled

    def read(
        self,
        kind: RouteKind,
        raw: bytes,
        headers: Mapping[bytes, bytes],
        identity: Identity,
        embedder: BatchingEmbedder | None,
    ) -> Asked:
        """The request in a body. Raises RequestError."""
        request = parse(raw, kind)
        tier = headers.get(b"x-forebay-tier")
        target = self._targets.resolve(request.model, None if tier is None else tier.decode("latin-1"))
        allowed = _controls(headers, allowed=identity.cache and self._cached)
        seen: Question | None = None
        if allowed.read or allowed.write:
            seen = question(
                request,
                tenant=EVERYONE if self._shared else identity.tenant,
                target=target.question,
                namespace="" if embedder is None else namespace(embedder.name, embedder.revision, embedder.dim),
            )
        return Asked(request, target, identity.tenant, allowed, seen)


def _controls(headers: Mapping[bytes, bytes], *, allowed: bool) -> Controls:
    found = {text: value.decode("latin-1") for name, text in _CACHE_HEADERS.items() if (value := headers.get(name))}
    return controls(found, allowed=allowed) if found or not allowed else _DEFAULT
