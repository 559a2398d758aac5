"""`/admin`: what is inside, and the cache's eraser. The pipeline lets only administrators in."""

import contextlib
from dataclasses import asdict

from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from core.errors import DependencyFault, NotFound
from gateway.services import Services


def routes(services: Services) -> list[Route]:
    """The routes under /admin."""

    async def stats(_: Request) -> Response:
        return JSONResponse(await cache_state(services))

    async def delete(request: Request) -> Response:
        entry = request.path_params["entry"]
        if not await services.cache.delete(entry):
            raise NotFound(f"no cache entry {entry[:100]!r}", code="entry_not_found")
        return JSONResponse({"deleted": entry})

    async def purge(request: Request) -> Response:
        return JSONResponse({"purged": await services.cache.purge(request.query_params.get("tenant"))})

    async def state(_: Request) -> Response:
        return JSONResponse(await describe(services))

    return [
        Route("/admin/cache/stats", stats),
        Route("/admin/cache/entries/{entry}", delete, methods=["DELETE"]),
        Route("/admin/cache/purge", purge, methods=["POST"]),
        Route("/admin/state", state),
    ]


async def describe(services: Services) -> dict[str, JsonValue]:
    """Tiers, queues, cache, embedder and the configuration without anything that proves who somebody is."""
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
        "draining": services.draining,
        "running": services.load.running,
        "tiers": tiers,
        "cache": await cache_state(services),
        "conversations": len(services.conversations),
        "router": {"drift": services.learning.drift.psi(), "warning": services.learning.drift.warning()},
        "embedder": {
            "state": services.embedder.state,
            "fault": services.embedder.fault,
            "backend": services.embedder.backend,
        },
        "config": public(services),
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
