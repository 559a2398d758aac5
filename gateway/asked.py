"""From the bytes of a request to everything that is settled before anything is looked up or sent."""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from cache.controls import Controls, controls
from cache.question import Question, namespace, question
from core.config.records import Cache
from core.embedder import BatchingEmbedder
from core.memo import Memo
from core.request import InferenceRequest, RouteKind, parse
from gateway.auth import Identity
from gateway.targets import Target, Targets

# Request headers that say how the cache may be used, in the order in which they are looked up.
_CACHE_HEADERS = ("cache-control", "x-forebay-cache", "x-forebay-threshold", "x-stainless-retry-count")
# Values of these headers that are kept as they were read.
MAX_CONTROLS = 64
_DEFAULT = Controls()
EVERYONE = "*"
# Repeated requests that are kept as they were read, and how long they may be.
MAX_REPEATED, MAX_REPEATED_BYTES = 256, 4096


class Asked(NamedTuple):
    """A request, what it asks for, who asks, and how the cache sees it.

    `question` is None where the cache is neither read nor written. `known`: read before, and kept.
    """

    request: InferenceRequest
    target: Target
    tenant: str
    controls: Controls
    question: Question | None
    known: bool = False


class Reader:
    """Reads chat and text completion requests."""

    def __init__(self, targets: Targets, cache: Cache) -> None:
        self._targets = targets
        self._shared = cache.scope == "global"
        self._cached = cache.exact.enabled or cache.semantic.enabled
        self._embedder: BatchingEmbedder | None = None
        self._space = ""
        # What has been read before need not be parsed and hashed again: half the cost of a hit.
        self._repeated: Memo[tuple[bytes, RouteKind, str, bytes | None, str], Asked] = Memo(MAX_REPEATED)

    def read(
        self,
        kind: RouteKind,
        raw: bytes,
        headers: Mapping[bytes, bytes],
        identity: Identity,
        embedder: BatchingEmbedder | None,
    ) -> Asked:
        """The request in a body. Raises RequestError."""
        allowed = _controls(headers, allowed=identity.cache and self._cached)
        tier, space = headers.get(b"x-forebay-tier"), self._namespace(embedder)
        if allowed is _DEFAULT and (known := self._repeated.get((raw, kind, identity.tenant, tier, space))) is not None:
            return known
        request = parse(raw, kind)
        target = self._targets.resolve(request.model, None if tier is None else tier.decode("latin-1"))
        seen: Question | None = None
        if allowed.read or allowed.write:
            tenant = EVERYONE if self._shared else identity.tenant
            seen = question(request, tenant=tenant, target=target.question, namespace=space)
        return Asked(request, target, identity.tenant, allowed, seen)

    def expect(self, raw: bytes, headers: Mapping[bytes, bytes], asked: Asked) -> None:
        """The same body will probably come again: it has been asked before, and its answer is known."""
        if asked.known or asked.controls is not _DEFAULT or asked.question is None or len(raw) > MAX_REPEATED_BYTES:
            return
        tier, space = headers.get(b"x-forebay-tier"), asked.question.namespace
        self._repeated.keep((raw, asked.request.kind, asked.tenant, tier, space), asked._replace(known=True))

    def _namespace(self, embedder: BatchingEmbedder | None) -> str:
        if embedder is not self._embedder:
            self._embedder = embedder
            self._space = "" if embedder is None else namespace(embedder.name, embedder.revision, embedder.dim)
        return self._space


def _controls(headers: Mapping[bytes, bytes], *, allowed: bool) -> Controls:
    get = headers.get
    given = (
        get(b"cache-control"), get(b"x-forebay-cache"), get(b"x-forebay-threshold"), get(b"x-stainless-retry-count")
    )  # fmt: skip
    return _read(given, allowed)


@lru_cache(MAX_CONTROLS)
def _read(given: tuple[bytes | None, ...], allowed: bool) -> Controls:
    """What these values of _CACHE_HEADERS say: clients repeat a few of them for ever."""
    found = {name: value.decode("latin-1") for name, value in zip(_CACHE_HEADERS, given, strict=True) if value}
    return controls(found, allowed=allowed) if found or not allowed else _DEFAULT
