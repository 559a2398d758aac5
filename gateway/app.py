"""The gateway as one ASGI callable: the hot routes directly, everything else by Starlette, all under one shell."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from core.errors import DependencyFault, MethodNotAllowed, NotFound, RequestError, Unavailable
from core.request import RouteKind
from gateway import envelope
from gateway.account import Account
from gateway.console.site import UNSETTLED, Console
from gateway.exchange import Exchange
from gateway.explain import Explain
from gateway.feedback import Feedback
from gateway.headers import answer_headers
from gateway.inference import Inference
from gateway.interrupt import Interruptible
from gateway.passthrough import ROUTE, PassThrough
from gateway.pipeline import Answer, Pipeline
from gateway.routes import admin, health, models, openapi
from gateway.services import Services
from gateway.wire.asgi import Message, Receive, Scope, Send
from gateway.wire.http1 import HttpWire

App = Callable[[Scope, Receive, Send], Awaitable[None]]
HOT: Mapping[str, RouteKind] = {"/v1/chat/completions": "chat", "/v1/completions": "completion"}
EXPLAIN = "/v1/explain"
FEEDBACK = "/v1/feedback"
MODELS = "/v1/models"


class Application:
    """The ASGI application over opened services, and `hot` routes that need no ASGI.

    It has no lifespan: whoever opens the services ends them, and enters and leaves its `console`.
    """

    def __init__(self, services: Services) -> None:
        self.console = Console(services)
        self.renew(services)

    def renew(self, services: Services) -> None:
        """Read the settings again: they hold for every request that comes from here on."""
        self._clock, self.now = services.clock, services.clock.monotonic
        self.hot = {path.encode(): path for path in HOT}
        self._pipeline = Pipeline(services)
        inference = Inference(services)
        self._hot: dict[str, Answer] = {path: partial(inference.answer, kind) for path, kind in HOT.items()}
        self._hot[EXPLAIN] = Explain(services).answer
        learning = services.learning
        feedback = Feedback(learning.decisions, learning.file, services.metrics, services.clock, services.siblings)
        self._hot[FEEDBACK] = feedback.answer
        among = {"feedback": feedback.answer_sibling, **health.answers(services), **admin.answers(services)}
        among |= self.console.answers()
        services.siblings.answering(among)
        self._pass = PassThrough(services).answer
        own_port = services.config.gateway.metrics_port is not None
        routes = [*health.routes(services, metrics=not own_port), *openapi.routes(services)]
        routes += [*models.routes(services), *admin.routes(services), *self.console.routes()]
        self._starlette = starlette(routes)
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request."""
        path: str = scope["path"]
        if not path.startswith(("/v1/", "/admin/")) or path in UNSETTLED:
            await self._starlette(scope, receive, send)
            return
        exchange = Exchange.asgi(scope, receive, send, self._clock.monotonic())
        hot = self._hot.get(path)
        if hot is not None:
            await self._pipeline.run(exchange, path, hot if exchange.method == "POST" else _only_post)
        elif path == MODELS or path.startswith(f"{MODELS}/"):
            route = MODELS if path == MODELS else f"{MODELS}/{{id}}"
            await self._pipeline.run(exchange, route, partial(self._served, scope, receive, send))
        elif path.startswith("/admin/"):
            await self._pipeline.run(exchange, "/admin", partial(self._served, scope, receive, send), admin=True)
        else:
            await self._pipeline.run(exchange, ROUTE, self._pass)

    def serve(self, wire: HttpWire) -> Awaitable[None]:
        """One request of a hot route on a connection of our own server."""
        path = wire.path
        exchange = Exchange(wire, "POST", path, wire.head, wire.arrived)
        return self._pipeline.run(exchange, path, self._hot[path])

    async def _served(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        exchange: Exchange,
        account: Account,
        _block: Interruptible,
    ) -> None:
        """Let Starlette answer, with the headers that every answer has."""

        async def tagged(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.started, exchange.status = True, message["status"]
                message["headers"] = [*message["headers"], *answer_headers(exchange, account, self._clock)]
            elif not message.get("more_body", False):
                exchange.finished = True
            await send(message)

        await self._starlette(scope, receive, tagged)


async def _only_post(exchange: Exchange, _account: Account, _block: Interruptible) -> None:
    raise MethodNotAllowed(f"{exchange.path} takes POST, not {exchange.method}", "POST")


def starlette(routes: list[Route]) -> App:
    """The routes with every error in our envelope."""
    return Starlette(
        routes=routes,
        exception_handlers={
            HTTPException: _unrouted,
            RequestError: _refused,
            DependencyFault: _unreachable,
            Exception: _failed,
        },
    )


def metrics_application(services: Services) -> App:
    """What is served on `gateway.metrics_port`."""
    return starlette([health.metrics_route(services)])


async def _unrouted(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    allowed = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    fault: RequestError = NotFound(f"{request.method} {request.url.path} does not exist")
    if status == 405:
        fault = MethodNotAllowed(f"{request.url.path} does not take {request.method}", allowed.get("Allow", "GET"))
    return Response(envelope.body(fault), fault.status, allowed, media_type="application/json")


async def _refused(_: Request, error: Exception) -> Response:
    fault = error if isinstance(error, RequestError) else RequestError("the gateway failed on this request")
    headers = {name.decode(): value.decode() for name, value in envelope.headers(fault)}
    return Response(envelope.body(fault), fault.status, headers, media_type="application/json")


async def _unreachable(request: Request, error: Exception) -> Response:
    """What was asked for cannot be done without a store that does not answer."""
    return await _refused(request, Unavailable(str(error), code="store_unavailable", retry_after=2.0))


async def _failed(_request: Request, _error: Exception) -> Response:
    fault = RequestError("the gateway failed on this request", code="internal_error")
    return Response(envelope.body(fault), 500, media_type="application/json")
