"""`/openapi.json`."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.document import document


def routes() -> list[Route]:
    """The one route."""
    text = document()

    async def openapi(_: Request) -> Response:
        return JSONResponse(text)

    return [Route("/openapi.json", openapi)]
