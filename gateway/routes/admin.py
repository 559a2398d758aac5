"""`/admin`: what is inside, and the cache's eraser. The pipeline lets only administrators in.

Each of several workers keeps a cache of its own where the store is memory: what is erased is erased in all of them.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import asdict

from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from core.errors import DependencyFault, NotFound
from gateway.services import Services
from gateway.siblings import Answering, Question


def routes(services: Services) -> list[Route]:
    """The routes under /admin."""

    async def stats(_: Request) -> Response:
        state = await cache_state(services)
        for other in await _elsewhere(services, "cache"):
            if isinstance(other, dict):
                state |= _added(state, other)
        return JSONResponse(state)

    async def delete(request: Request) -> Response:
        entry = request.path_params["entry"]
        found = await services.cache.delete(entry)
        if not any([found, *await _elsewhere(services, "delete", entry=entry)]):
            raise NotFound(f"no cache entry {entry[:100]!r}", code="entry_not_found")
        return JSONResponse({"deleted": entry})

    async def purge(request: Request) -> Response:
        tenant = request.query_params.get("tenant")
        purged = await services.cache.purge(tenant)
        others = await _elsewhere(services, "purge", tenant=tenant)
        return JSONResponse({"purged": purged + sum(count for count in others if isinstance(count, int))})

    async def state(_: Request) -> Response:
        document = await describe(services) | {"config": public(services)}
        others = await services.siblings.ask("state")
        return JSONResponse(document | {"workers": {str(number): other for number, other in others.items()}})

    return [
        Route("/admin/cache/stats", stats),
        Route("/admin/cache/entries/{entry}", delete, methods=["DELETE"]),
        Route("/admin/cache/purge", purge, methods=["POST"]),
        Route("/admin/state", state),
    ]


def answers(services: Services) -> Mapping[str, Answering]:
    """What other workers ask here."""

    async def state(_: Question) -> JsonValue:
        return await describe(services)

    async def cache(_: Question) -> JsonValue:
        return await cache_state(services)

    async def delete(question: Question) -> JsonValue:
        return await services.cache.delete(str(question["entry"]))

    async def purge(question: Question) -> JsonValue:
        tenant = question["tenant"]
        return await services.cache.purge(None if tenant is None else str(tenant))

    return {"state": state, "cache": cache, "delete": delete, "purge": purge}


async def _elsewhere(services: Services, what: str, **details: JsonValue) -> list[JsonValue]:
    """What the other workers say where each has a cache of its own; of a shared one, this worker speaks for all."""
    if services.config.cache.store != "memory":
        return []
    return list((await services.siblings.ask(what, **details)).values())


def _added(state: Mapping[str, JsonValue], other: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The sums of what is a number in both."""
    pairs = [(name, mine, other.get(name)) for name, mine in state.items()]
    return {name: mine + theirs for name, mine, theirs in pairs if isinstance(mine, int) and isinstance(theirs, int)}


async def describe(services: Services) -> dict[str, JsonValue]:
    """Tiers, queues, cache and embedder of this worker."""
    tiers: dict[str, JsonValue] = {
        name: {
            "model": gate.settings.model,
            "inflight": gate.admission.inflight,
            "waiting": gate.admission.waiting,
            "expected_wait_s": gate.admission.expected_wait(),
            "replicas": [
                {
                    "url": replica.url,
                    "name": replica.server.host,
                    "health": replica.health,
                    "fault": replica.fault,
                    "breaker": replica.breaker.state,
                    "outstanding": replica.outstanding,
                }
                for replica in gate.replicas.all
            ],
            "unresolved": dict(gate.replicas.unresolved),
        }
        for name, gate in services.tiers.items()
    }
    return {
        "worker": services.siblings.number,
        "draining": services.draining,
        "running": services.load.running,
        "tasks": len(asyncio.all_tasks()),
        "tiers": tiers,
        "cache": await cache_state(services),
        "conversations": len(services.conversations),
        "router": {"drift": services.learning.drift.psi(), "warning": services.learning.drift.warning()},
        "embedder": {
            "state": services.embedder.state,
            "fault": services.embedder.fault,
            "backend": services.embedder.backend,
        },
    }


async def cache_state(services: Services) -> dict[str, JsonValue]:
    """Sizes of the cache, where they can be had, and how its store is."""
    kind = services.config.cache.store.partition(":")[0]
    breaker = services.breakers.get("cache_store")
    store: JsonValue = {"kind": kind, "breaker": None if breaker is None else breaker.state}
    sizes: dict[str, JsonValue] = {}
    with contextlib.suppress(DependencyFault):
        sizes = asdict(await services.cache.stats())
    return {**sizes, "store": store, "fault": services.cache.fault}


def public(services: Services) -> JsonValue:
    """The configuration; a key's digest, variable and file, and a tier's key reference, are left out."""
    tiers = {name: {"api_key"} for name in ("small", "frontier")}
    document: JsonValue = services.config.model_dump(
        mode="json", exclude={"auth": {"keys": {"__all__": {"sha256", "env", "file"}}}, "tiers": tiers}
    )
    return document
