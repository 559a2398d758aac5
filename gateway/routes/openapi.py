"""`/openapi.json`."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.document import document
from gateway.services import Services


def routes(services: Services) -> list[Route]:
    """The one route."""
    text = document(list(services.targets.names), list(services.tiers))

    async def openapi(_: Request) -> Response:
        return JSONResponse(text)

    return [Route("/openapi.json", openapi)]
