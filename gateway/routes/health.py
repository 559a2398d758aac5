"""`/health`, `/ready` and `/metrics`: for probes and scrapers, open to everyone who can reach the port."""

from collections.abc import Mapping

from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.metrics import CONTENT_TYPE
from gateway.services import Services
from gateway.siblings import Answering, Question


def routes(services: Services, *, metrics: bool) -> list[Route]:
    """The routes; `/metrics` only where it has no port of its own."""

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(_: Request) -> Response:
        ready, body = readiness(services)
        return JSONResponse(body, 200 if ready else 503, headers={} if ready else {"retry-after": "2"})

    open_routes = [Route("/health", health), Route("/ready", ready)]
    return [*open_routes, metrics_route(services)] if metrics else open_routes


def metrics_route(services: Services) -> Route:
    """`GET /metrics`."""

    async def scrape(_: Request) -> Response:
        await services.read_cache_sizes()
        return Response(await services.pool.render(), media_type=CONTENT_TYPE)

    return Route("/metrics", scrape)


def answers(services: Services) -> Mapping[str, Answering]:
    """What other workers ask here."""

    async def metrics(question: Question) -> JsonValue:
        await services.read_cache_sizes()
        return await services.pool.answer(question)

    return {"metrics": metrics}


def readiness(services: Services) -> tuple[bool, dict[str, JsonValue]]:
    """Whether traffic may come, and the state of every part; `degraded` lists what does not work as configured."""
    degraded: list[JsonValue] = []
    tiers: dict[str, JsonValue] = {}
    for name, gate in services.tiers.items():
        down = [replica for replica in gate.replicas.all if replica.health != "up"]
        up = len(gate.replicas.all) - len(down)
        tiers[name] = {"ready": up > 0, "up": up, "replicas": len(gate.replicas.all)}
        degraded += [f"tier {name}: {replica.url}: {replica.fault or 'not asked yet'}" for replica in down]
        degraded += [
            f"tier {name}: {host}: {fault}; its last known addresses are kept"
            for host, fault in gate.replicas.unresolved.items()
        ]
    embedder = services.embedder
    if embedder.state == "loading":
        degraded.append("embedder: loading, so no semantic layer yet")
    elif embedder.state == "failed":
        degraded.append(f"embedder: {embedder.fault}")
    if embedder.breaker.state != "closed":
        degraded.append(f"embedder: {embedder.breaker.reason}")
    limits = services.breakers.get("limits_store")
    if limits is not None and limits.state != "closed":
        degraded.append(f"limits: {limits.name} is left alone, so nothing is limited: {limits.reason}")
    if services.cache.fault is not None:
        degraded.append(f"cache: {services.cache.fault}")
    one_sided = services.learning.drift.warning()
    if one_sided is not None:
        degraded.append(one_sided)
    if services.draining:
        degraded.append("draining")
    ready = not services.draining and any(gate.replicas.ready for gate in services.tiers.values())
    body: dict[str, JsonValue] = {
        "ready": ready,
        "draining": services.draining,
        "tiers": tiers,
        "embedder": embedder.state,
        "embedder_backend": embedder.backend,
        "degraded": degraded,
    }
    return ready, body
