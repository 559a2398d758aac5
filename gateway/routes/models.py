"""`/v1/models`: every name a client may ask for."""

from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from core.errors import NotFound
from gateway.services import Services


def routes(services: Services) -> list[Route]:
    """The two routes."""
    started = int(services.clock.time())
    names = services.targets.names

    async def every(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_card(services, name, started) for name in names]})

    async def one(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in names:
            raise NotFound(f"the model {name[:200]!r} does not exist", code="model_not_found", param="model")
        return JSONResponse(_card(services, name, started))

    # Names of models have slashes in them.
    return [Route("/v1/models", every), Route("/v1/models/{name:path}", one)]


def _card(services: Services, name: str, created: int) -> dict[str, JsonValue]:
    target = services.targets.names[name]
    context = services.tiers[target.tier].facts.context if target.tier is not None else None
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "forebay",
        "root": target.model or name,
        "parent": None,
        "max_model_len": context,
        "tier": target.tier or "auto",
    }
