"""What a gateway process holds while it lives, opened and closed in order."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cache.guard.outlook import foresight_for
from cache.guard.verifier import guard_for
from cache.question import namespace
from cache.response_cache import ResponseCache, lifetime
from core.breaker import Breaker
from core.clock import Clock, SystemClock
from core.config import Config, Tier, TierName, resolve_secret, store_address
from core.config.telemetry import Telemetry
from core.embedder import BatchingEmbedder
from core.errors import ConfigError, DependencyFault, Problem
from core.glance import Glance, glance_for
from gateway.admission import Admission
from gateway.auth import Keyring
from gateway.console.viewers import Sessions, secret_of
from gateway.console.watch import Watch
from gateway.embedding import EmbedderSlot, EncoderFactory, GlanceFactory, configured_encoder
from gateway.flight import Flights
from gateway.gauges import watch, watch_breaker
from gateway.journal import Journal, Write
from gateway.judge import Judge
from gateway.late import LateVectors
from gateway.learning import Learning
from gateway.limits.base import Ledger
from gateway.limits.limiter import Limiter
from gateway.limits.memory import MemoryLedger
from gateway.metrics import Metrics
from gateway.pool import MetricsPool
from gateway.probes import Probes
from gateway.savings import Savings
from gateway.settle import Settlement
from gateway.shadow import Shadow
from gateway.siblings import Alone, Siblings
from gateway.targets import Targets
from gateway.tier import TierGate, scales_from_zero
from gateway.timers import Timers
from gateway.tracing.tracer import Tracer
from gateway.upstream.client import UpstreamClient
from gateway.upstream.names import Names, Resolver, SystemResolver
from gateway.upstream.replicas import Replicas
from router.classifier import Classifier
from router.conversations import Conversations

if TYPE_CHECKING:
    from core.redis_link import RedisLink


class Load:
    """How many requests run, and the way down: `drain` once, then `idle` when the last one has ended."""

    def __init__(self) -> None:
        self.running = 0
        self.draining = False
        self._idle = asyncio.Event()

    def enter(self) -> None:
        """A request begins."""
        self.running += 1

    def leave(self) -> None:
        """A request has been settled."""
        self.running -= 1
        if self.draining and self.running == 0:
            self._idle.set()

    def drain(self) -> None:
        """Take no more requests."""
        self.draining = True
        if self.running == 0:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until the gateway drains and nothing runs."""
        await self._idle.wait()


@dataclass(slots=True)
class Services:
    """Everything a request may need."""

    config: Config
    clock: Clock
    keyring: Keyring
    targets: Targets
    tiers: Mapping[TierName, TierGate]
    metrics: Metrics
    settlement: Settlement
    cache: ResponseCache
    embedder: EmbedderSlot
    classifier: Classifier
    conversations: Conversations
    learning: Learning
    flights: Flights
    late: LateVectors
    shadow: Shadow
    judge: Judge
    names: Names
    limiter: Limiter
    breakers: Mapping[str, Breaker]
    pool: MetricsPool
    tracer: Tracer | None
    timers: Timers = field(default_factory=Timers)
    load: Load = field(default_factory=Load)
    savings: Savings = field(init=False)
    sessions: Sessions = field(init=False)

    def __post_init__(self) -> None:
        self.savings = Savings(self.metrics.saved_cost("router"))
        self.sessions = Sessions(secret_of(self.siblings), self.clock)

    @property
    def draining(self) -> bool:
        """Whether the process has been told to stop."""
        return self.load.draining

    @property
    def siblings(self) -> Siblings:
        """The other workers."""
        return self.pool.siblings

    @property
    def watch(self) -> Watch | None:
        """What the console shows; None where it is off."""
        return self.settlement.watch

    async def read_cache_sizes(self) -> None:
        """Set the gauges of the cache. On the event loop, before a scrape is rendered elsewhere."""
        exact = semantic = 0
        # What cannot be reached cannot be served.
        with contextlib.suppress(DependencyFault):
            stats = await self.cache.stats()
            exact, semantic = stats.exact, stats.semantic
        self.metrics.entries("exact").read = partial(float, exact)
        self.metrics.entries("semantic").read = partial(float, semantic)


@asynccontextmanager
async def opened(
    config: Config,
    *,
    clock: Clock | None = None,
    write: Write | None = None,
    make_encoder: EncoderFactory = configured_encoder,
    make_glance: GlanceFactory = glance_for,
    resolver: Resolver | None = None,
    siblings: Siblings | None = None,
    telemetry: Telemetry | None = None,
) -> AsyncIterator[Services]:
    """The services of one configuration, beside other workers. Raises ConfigError for what cannot be read."""
    clock, metrics = clock or SystemClock(), Metrics()
    keyring = Keyring(config.auth.keys)
    classifier = load_classifier(config)
    journal = Journal(clock, write)
    async with AsyncExitStack() as stack:
        stack.callback(journal.close)
        upstream = await stack.enter_async_context(UpstreamClient(clock))
        tiers = {name: _gate(name, tier, upstream, clock, metrics) for name, tier in config.tiers.items()}
        link = store_link("cache.store", config.cache.store, config, clock)
        if link is not None:
            await stack.enter_async_context(link)
        cache = await stack.enter_async_context(response_cache(config, clock, link))
        slot = await stack.enter_async_context(_slot(config, (make_encoder, make_glance), metrics, clock, cache))
        late = await stack.enter_async_context(LateVectors(cache, slot, metrics))
        shadow = Shadow(config.cache.semantic.shadow_rate, tiers, cache, slot, metrics)
        await stack.enter_async_context(shadow)
        names = await _names(stack, tiers, resolver, metrics)
        breakers = {"embedder": slot.breaker} | ({} if link is None else {"cache_store": link.breaker})
        limiter = await _limiter(stack, config, clock, metrics, breakers)
        await stack.enter_async_context(Probes(tiers.values()))
        pooling = MetricsPool(metrics, siblings or Alone(), shared_cache=link is not None)
        learning = await stack.enter_async_context(Learning(config, classifier, tiers, metrics, clock))
        services = Services(
            config=config,
            clock=clock,
            keyring=keyring,
            targets=Targets(config.tiers),
            tiers=tiers,
            metrics=metrics,
            settlement=Settlement(metrics, journal, clock, _watching(config, clock)),
            cache=cache,
            embedder=slot,
            classifier=classifier,
            conversations=await conversations(stack, link),
            learning=learning,
            flights=Flights(clock),
            late=late,
            shadow=shadow,
            judge=Judge(config.cache.semantic.judge, tiers, metrics, clock),
            names=names,
            limiter=limiter,
            breakers=breakers,
            pool=await stack.enter_async_context(pooling),
            tracer=None if telemetry is None else await stack.enter_async_context(Tracer(telemetry, clock)),
        )
        watch(services)
        yield services


def _watching(config: Config, clock: Clock) -> Watch | None:
    console = config.console
    return Watch(console.history, clock, words=console.show_prompts) if console.enabled else None


async def _names(
    stack: AsyncExitStack, tiers: Mapping[TierName, TierGate], resolver: Resolver | None, metrics: Metrics
) -> Names:
    urls = {gate.replicas: gate.settings.urls for gate in tiers.values()}
    names = Names(urls, resolver or SystemResolver(), partial(_count_error, metrics, kind="resolve"))
    return await stack.enter_async_context(names)


def _slot(
    config: Config, make: tuple[EncoderFactory, GlanceFactory], metrics: Metrics, clock: Clock, cache: ResponseCache
) -> EmbedderSlot:
    return EmbedderSlot(
        config.embedder,
        make[0],
        metrics,
        clock,
        wanted=wants_embedder(config),
        on_ready=partial(_understand, cache),
        make_glance=make[1],
    )


def wants_embedder(config: Config) -> bool:
    """Whether the cache or the router reads vectors."""
    return config.cache.semantic.enabled or len(config.tiers.items()) > 1


def load_classifier(config: Config) -> Classifier:
    """The configured classifier. Raises ConfigError with its key path."""
    name = config.router.classifier
    try:
        return Classifier.load(None if name == "default" else Path(name))
    except ConfigError as error:
        raise ConfigError([Problem("router.classifier", problem.message) for problem in error.problems]) from None


def store_link(key: str, store: str, config: Config, clock: Clock) -> "RedisLink | None":
    """The link to a shared store, not yet entered; None where there is none. Raises ConfigError with its key path."""
    if store == "memory":
        return None
    from core.redis_link import RedisLink  # noqa: PLC0415  # megabytes that a gateway of its own does not need

    try:
        address = store_address(store)
    except ConfigError as error:
        raise ConfigError([Problem(key, problem.message) for problem in error.problems]) from None
    name = {"cache.store": "the cache store", "auth.store": "the limits store"}[key]
    return RedisLink(address, clock, config.cache.timeout, name)


async def _limiter(
    stack: AsyncExitStack, config: Config, clock: Clock, metrics: Metrics, breakers: dict[str, Breaker]
) -> Limiter:
    link = store_link("auth.store", config.auth.store, config, clock)
    if link is not None:
        await stack.enter_async_context(link)
        breakers["limits_store"] = link.breaker
    limiter = Limiter(ledger(config, clock, link), partial(_count_unchecked, metrics))
    return await stack.enter_async_context(limiter)


def ledger(config: Config, clock: Clock, link: "RedisLink | None") -> Ledger:
    """Where limits are counted, not yet entered: over the link where there is one, else in memory."""
    if link is None:
        return MemoryLedger(clock)
    from gateway.limits.redis import RedisLedger  # noqa: PLC0415  # as above

    longest = max(tier.timeout.total + tier.queue.max_wait for _, tier in config.tiers.items())
    # An escalated request runs on two tiers, one after the other.
    return RedisLedger(link, clock, 2 * longest + 60)


def response_cache(config: Config, clock: Clock, link: "RedisLink | None") -> ResponseCache:
    """The configured response cache, not yet entered; over the link where there is one, else in memory."""
    settings = config.cache
    semantic = settings.semantic
    verifier = guard_for(config.embedder.model) if semantic.enabled and semantic.guard else None
    foresight = foresight_for(verifier, semantic.threshold, judge=semantic.judge is not None)
    if link is None:
        return ResponseCache(settings, clock=clock, verifier=verifier, foresight=foresight)
    from cache.stores.redis import RedisStore  # noqa: PLC0415  # as above

    store = partial(
        RedisStore,
        link,
        clock,
        max_bytes=settings.max_bytes,
        max_vectors=semantic.max_entries,
        lifetime=lifetime(settings),
    )
    return ResponseCache(settings, clock=clock, verifier=verifier, foresight=foresight, open_store=store)


async def conversations(stack: AsyncExitStack, link: "RedisLink | None") -> Conversations:
    """The conversations; shared over the link where there is one."""
    if link is None:
        return Conversations()
    from router.shared_conversations import SharedConversations  # noqa: PLC0415  # as above

    return Conversations(elsewhere=await stack.enter_async_context(SharedConversations(link)))


def _understand(cache: ResponseCache, embedder: BatchingEmbedder, glance: Glance | None) -> None:
    cache.understand(namespace(embedder.name, embedder.revision, embedder.dim), glance)


def _gate(name: TierName, tier: Tier, upstream: UpstreamClient, clock: Clock, metrics: Metrics) -> TierGate:
    authorization = authorization_of(name, tier)
    replicas = Replicas(
        name, upstream, clock, partial(_count_error, metrics, name), partial(_count_retry, metrics, name)
    )
    replicas.listeners.append(partial(watch_breaker, metrics, name))
    admission = Admission(name, tier.queue, clock, lambda: replicas.usable, patient=scales_from_zero(tier))
    return TierGate(name, tier, admission, replicas, authorization)


def authorization_of(name: TierName, tier: Tier) -> str | None:
    """The header value that a tier's servers want; None for none. Raises ConfigError with its key path."""
    if tier.api_key is None:
        return None
    try:
        return f"Bearer {resolve_secret(tier.api_key)}"
    except ConfigError as error:
        raise ConfigError([Problem(f"tiers.{name}.api_key", found.message) for found in error.problems]) from None


def _count_error(metrics: Metrics, tier: TierName, kind: str) -> None:
    metrics.upstream_errors(tier, kind).inc()


def _count_unchecked(metrics: Metrics, reason: str) -> None:
    metrics.limits_unchecked(reason).inc()


def _count_retry(metrics: Metrics, tier: TierName) -> None:
    metrics.retries(tier).inc()
