"""What has been counted since the start, and how everything is at this moment: read for those who look."""

from collections.abc import Iterable, Mapping

from pydantic import JsonValue

from gateway.console.watch import UNSEEN
from gateway.metrics import Count, Family, Metrics
from gateway.routes.admin import cache_state
from gateway.routes.health import readiness
from gateway.services import Services

Document = dict[str, JsonValue]
Tally = dict[str, float]
# By section, by label value.
Totals = dict[str, Tally]
# Among several workers the worst state is shown.
WORST = ("closed", "half-open", "half_open", "open")


def totals(metrics: Metrics) -> Totals:
    """The counters of this process, each by one label."""
    asked = {labels: child for labels, child in metrics.requests.children.items() if labels[0] != UNSEEN}
    return {
        "cache": _by(asked.items(), 2),
        "tier": _by(asked.items(), 1),
        "status": _by(asked.items(), 3),
        "exact": _of(metrics.lookups, "exact"),
        "semantic": _of(metrics.lookups, "semantic"),
        "shed": _by(metrics.shed.children.items(), 1),
        "saved_tokens": _by(metrics.saved_tokens.children.items(), 0),
        "saved_cost": _by(metrics.saved_cost.children.items(), 0),
        "tokens": _by(metrics.tokens.children.items(), 1),
        "shadow": _by(metrics.shadow.children.items(), 0),
        "errors": _by(metrics.upstream_errors.children.items(), 1),
        "retries": _by(metrics.retries.children.items(), 0),
    }


def _by(children: Iterable[tuple[tuple[str, ...], Count]], position: int) -> Tally:
    found: Tally = {}
    for labels, child in children:
        found[labels[position]] = found.get(labels[position], 0.0) + child.value
    return found


def _of(family: Family[Count], layer: str) -> Tally:
    return {labels[1]: child.value for labels, child in family.children.items() if labels[0] == layer}


def added(parts: Iterable[Totals]) -> Totals:
    """The totals of several processes as those of one."""
    whole: Totals = {}
    for part in parts:
        for section, tally in part.items():
            mine = whole.setdefault(section, {})
            for name, value in tally.items():
                mine[name] = mine.get(name, 0.0) + value
    return whole


async def state(services: Services) -> Document:
    """Tiers, queues, servers, cache, embedder and breakers of this process."""
    config = services.config
    return {
        "tiers": {
            name: {
                "model": gate.settings.model,
                "inflight": gate.admission.inflight,
                "waiting": gate.admission.waiting,
                "max_inflight": gate.settings.queue.max_inflight,
                "max_waiting": gate.settings.queue.max_waiting,
                "servers": [
                    {
                        "url": replica.url,
                        "health": replica.health,
                        "fault": replica.fault,
                        "breaker": replica.breaker.state,
                        "outstanding": replica.outstanding,
                    }
                    for replica in gate.replicas.all
                ],
            }
            for name, gate in services.tiers.items()
        },
        "cache": await cache_state(services),
        "embedder": {"state": services.embedder.state, "fault": services.embedder.fault},
        "breakers": {name: breaker.state for name, breaker in services.breakers.items()},
        "degraded": readiness(services)[1]["degraded"],
        "draining": services.draining,
        "running": services.load.running,
        "settings": {
            "similarity": config.cache.semantic.threshold if config.cache.semantic.enabled else None,
            "guard": config.cache.semantic.guard,
            "complexity": config.router.threshold,
            "prices": {name: tier.price.model_dump(mode="json") for name, tier in config.tiers.items()},
            "history": config.console.history,
            "show_prompts": config.console.show_prompts,
            "keys": bool(config.auth.keys),
            "workers": services.siblings.count,
        },
    }


def together(mine: Document, others: Iterable[Mapping[str, JsonValue]], *, shared_cache: bool) -> Document:
    """The state of all workers: what queues and runs is added up, of servers and breakers the worst is shown."""
    whole = dict(mine)
    for other in others:
        whole["tiers"] = _tiers(_map(whole, "tiers"), _map(other, "tiers"))
        whole["breakers"] = {
            name: _worse(state, _map(other, "breakers").get(name)) for name, state in _map(whole, "breakers").items()
        }
        degraded = [*_list(whole, "degraded"), *_list(other, "degraded")]
        whole["degraded"] = list(dict.fromkeys(str(line) for line in degraded))
        whole["running"] = _sum(whole.get("running"), other.get("running"))
        if not shared_cache:
            cache, theirs = _map(whole, "cache"), _map(other, "cache")
            whole["cache"] = {
                name: _sum(value, theirs.get(name)) if isinstance(value, int) else value
                for name, value in cache.items()
            }
    return whole


def _tiers(mine: Mapping[str, JsonValue], theirs: Mapping[str, JsonValue]) -> JsonValue:
    found: Document = {}
    for name in mine:
        tier, other = dict(_map(mine, name)), _map(theirs, name)
        for number in ("inflight", "waiting", "max_inflight", "max_waiting"):
            tier[number] = _sum(tier.get(number), other.get(number))
        seen = {server["url"]: server for server in _list(other, "servers") if isinstance(server, Mapping)}
        servers = [server for server in _list(tier, "servers") if isinstance(server, Mapping)]
        tier["servers"] = [_server(server, seen.get(server["url"], {})) for server in servers]
        found[name] = tier
    return found


def _server(mine: Mapping[str, JsonValue], other: Mapping[str, JsonValue]) -> JsonValue:
    worse = other if mine["health"] == "up" and other.get("health", "up") != "up" else mine
    return {
        **worse,
        "breaker": _worse(mine["breaker"], other.get("breaker")),
        "outstanding": _sum(mine["outstanding"], other.get("outstanding")),
    }


def _worse(one: JsonValue, other: JsonValue) -> JsonValue:
    return max((one, other), key=lambda state: WORST.index(state) if state in WORST else -1)


def _sum(one: JsonValue, other: JsonValue) -> JsonValue:
    return (one if isinstance(one, int | float) else 0) + (other if isinstance(other, int | float) else 0)


def _map(document: Mapping[str, JsonValue], name: str) -> Mapping[str, JsonValue]:
    value = document.get(name)
    return value if isinstance(value, Mapping) else {}


def _list(document: Mapping[str, JsonValue], name: str) -> list[JsonValue]:
    value = document.get(name)
    return value if isinstance(value, list) else []
