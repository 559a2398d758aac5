"""`/admin`: what is inside, and the cache's eraser. The pipeline lets only administrators in."""

from dataclasses import asdict

from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from core.errors import NotFound
from gateway.services import Services


def routes(services: Services) -> list[Route]:
    """The routes under /admin."""

    async def stats(_: Request) -> Response:
        return JSONResponse(asdict(services.cache.stats()))

    async def delete(request: Request) -> Response:
        entry = request.path_params["entry"]
        if not services.cache.delete(entry):
            raise NotFound(f"no cache entry {entry[:100]!r}", code="entry_not_found")
        return JSONResponse({"deleted": entry})

    async def purge(request: Request) -> Response:
        return JSONResponse({"purged": services.cache.purge(request.query_params.get("tenant"))})

    async def state(_: Request) -> Response:
        return JSONResponse(describe(services))

    return [
        Route("/admin/cache/stats", stats),
        Route("/admin/cache/entries/{entry}", delete, methods=["DELETE"]),
        Route("/admin/cache/purge", purge, methods=["POST"]),
        Route("/admin/state", state),
    ]


def describe(services: Services) -> dict[str, JsonValue]:
    """Tiers, queues, cache, embedder and the configuration without anything that proves who somebody is."""
    tiers: dict[str, JsonValue] = {
        name: {
            "model": gate.settings.model,
            "inflight": gate.admission.inflight,
            "waiting": gate.admission.waiting,
            "expected_wait_s": gate.admission.expected_wait(),
            "replicas": [
                {"url": r.url, "health": r.health, "fault": r.fault, "outstanding": r.outstanding}
                for r in gate.replicas.all
            ],
        }
        for name, gate in services.tiers.items()
    }
    return {
        "draining": services.draining,
        "running": services.load.running,
        "tiers": tiers,
        "cache": asdict(services.cache.stats()),
        "conversations": len(services.conversations),
        "embedder": {
            "state": services.embedder.state,
            "fault": services.embedder.fault,
            "backend": services.embedder.backend,
        },
        "config": public(services),
    }


def public(services: Services) -> JsonValue:
    """The configuration; a key's digest, variable and file, and a tier's key reference, are left out."""
    tiers = {name: {"api_key"} for name in ("small", "frontier")}
    document: JsonValue = services.config.model_dump(
        mode="json", exclude={"auth": {"keys": {"__all__": {"sha256", "env", "file"}}}, "tiers": tiers}
    )
    return document
