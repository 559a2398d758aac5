"""Gauges that are read where the numbers are, when they are scraped: levels, and the settings they are judged by."""

from functools import partial
from typing import TYPE_CHECKING

from core.breaker import Breaker
from core.config import Config, TierName
from gateway.metrics import Metrics
from gateway.tier import TierGate
from gateway.upstream.breaker import LEVELS
from gateway.upstream.replicas import Replica

if TYPE_CHECKING:
    from gateway.services import Services


def watch(services: "Services") -> None:
    """Queues, servers, limits and prices of the tiers; breakers by what they guard; thresholds of the last reload."""
    metrics = services.metrics
    for dependency, breaker in services.breakers.items():
        metrics.dependency_breaker(dependency).read = partial(_level, breaker)
    for name, gate in services.tiers.items():
        metrics.queue_depth(name).read = partial(_waiting, gate)
        metrics.inflight(name).read = partial(_inflight, gate)
        metrics.replicas_up(name).read = partial(_up, gate)
        metrics.queue_limit(name).read = partial(_most_waiting, gate)
        metrics.inflight_limit(name).read = partial(_most_inflight, gate)
        metrics.token_price(name, "input").read = partial(_price_of_input, gate)
        metrics.token_price(name, "output").read = partial(_price_of_output, gate)
    metrics.cache_threshold().read = lambda: _tau(services.config)
    metrics.router_threshold().read = lambda: services.config.router.threshold


def watch_breaker(metrics: Metrics, tier: TierName, replica: Replica, joins: bool) -> None:
    """The breaker of a server that joins a tier or leaves it."""
    if joins:
        metrics.breaker_state(tier, replica.url).read = partial(_breaker, replica)
    else:
        metrics.breaker_state.drop(tier, replica.url)


def _tau(config: Config) -> float:
    return config.cache.semantic.threshold


def _breaker(replica: Replica) -> float:
    return LEVELS[replica.breaker.state]


def _waiting(gate: TierGate) -> float:
    return gate.admission.waiting


def _inflight(gate: TierGate) -> float:
    return gate.admission.inflight


def _up(gate: TierGate) -> float:
    return sum(replica.health == "up" for replica in gate.replicas.all)


def _most_waiting(gate: TierGate) -> float:
    return gate.settings.queue.max_waiting


def _most_inflight(gate: TierGate) -> float:
    return gate.settings.queue.max_inflight


def _price_of_input(gate: TierGate) -> float:
    return gate.settings.price.input


def _price_of_output(gate: TierGate) -> float:
    return gate.settings.price.output


def _level(breaker: Breaker) -> float:
    return breaker.level
