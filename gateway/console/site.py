"""The routes of the console: the page and its files, the way in, the events, and the lookups to try thresholds on.

They are no requests of clients: nothing of them is queued, counted or settled, and an open page keeps no gateway from
stopping.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from types import TracebackType
from typing import Self, cast
from urllib.parse import parse_qs, urlsplit

from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from core.errors import Forbidden, NotFound, RequestError
from gateway.auth import Identity
from gateway.console.hub import Hub, read
from gateway.console.lookups import REASONS, SEMANTIC, TIERS, columns
from gateway.console.static import Asset, assets
from gateway.console.viewers import COOKIE, LIFE, digest_of, viewer
from gateway.services import Services
from gateway.siblings import Answering, Question
from gateway.wire.asgi import Receive, Scope, Send

logger = logging.getLogger("forebay.console")

CONSOLE, EVENTS, LOOKUPS = "/console", "/admin/events", "/admin/lookups"
# Served apart from all other requests under /admin.
UNSETTLED = frozenset({EVENTS, LOOKUPS})
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
GUARDED = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # The form's own origin must be told, or nobody could say where it was posted from.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
# What a page needs before anybody has signed in; nothing in it says anything about this gateway.
PUBLIC = frozenset({"style.css", "icon.svg"})
LONGEST_FORM = 8192


class Console:
    """An async context manager: leaving it ends the streams. `routes` are those of the configuration as it is."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._assets = assets()
        self.hub = Hub(services)

    async def __aenter__(self) -> Self:
        await self.hub.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.hub.__aexit__(kind, error, trace)

    def routes(self) -> list[Route]:
        """None where the console is off."""
        if self._services.watch is None:
            return []
        return [
            Route(CONSOLE, self._page),
            Route(f"{CONSOLE}/session", self._sign_in, methods=["POST"]),
            Route(f"{CONSOLE}/leave", self._sign_out, methods=["POST"]),
            Route(f"{CONSOLE}/{{name:path}}", self._file),
            Route(EVENTS, self._events),
            Route(LOOKUPS, self._lookups),
        ]

    def answers(self) -> Mapping[str, Answering]:
        """What other workers ask here."""
        if self._services.watch is None:
            return {}
        return {**self.hub.answers(), "lookups": self._tell_lookups}

    def _viewer(self, request: Request) -> Identity:
        headers: dict[bytes, bytes] = dict(request.scope["headers"])
        peer = None if request.client is None else request.client.host
        return viewer(self._services.keyring, self._services.sessions, request.method, headers, peer)

    async def _page(self, request: Request) -> Response:
        try:
            self._viewer(request)
        except Forbidden as error:
            return self._closed(error.message)
        return _sent(self._assets["index.html"], request)

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in PUBLIC:
            self._viewer(request)
        found = self._assets.get(name)
        if found is None or name.endswith(".html"):
            raise NotFound(f"GET {CONSOLE}/{name[:100]} does not exist")
        return _sent(found, request)

    def _closed(self, why: str) -> Response:
        """The way in, or why there is none."""
        name = "closed.html" if self._services.keyring.open else "signin.html"
        body = self._assets[name].body.replace(b"{{why}}", _escaped(why))
        return Response(body, 403, {**GUARDED, "cache-control": "no-store"}, media_type="text/html; charset=utf-8")

    async def _sign_in(self, request: Request) -> Response:
        if self._services.keyring.open:
            return self._closed("no keys are configured, so there is nothing to sign in with")
        if not _from_here(request):
            return self._closed("this form was sent from another site")
        key = await _key_in(request)
        digest = digest_of(key)
        if digest not in self._services.keyring.administrators:
            logger.warning("console: a sign-in with a key that is not an administrator's")
            return self._closed("this is not an administrator's key")
        secure = request.headers.get("origin", "").startswith("https:")
        response = RedirectResponse(CONSOLE, 303, {"cache-control": "no-store"})
        session = self._services.sessions.issue(digest)
        response.set_cookie(COOKIE, session, LIFE, path="/", secure=secure, httponly=True, samesite="strict")
        return response

    async def _sign_out(self, _: Request) -> Response:
        response = RedirectResponse(CONSOLE, 303, {"cache-control": "no-store"})
        response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return response

    async def _events(self, request: Request) -> Response:
        self._viewer(request)
        given = request.headers.get("last-event-id") or request.query_params.get("after") or ""
        stream = self.hub.stream(read(given) if given else None)
        # What is refused is refused before there is a response.
        return EventStream(await anext(stream), stream)

    async def _lookups(self, request: Request) -> Response:
        self._viewer(request)
        services = self._services
        found = [await self._tell_lookups({}), *(await services.siblings.ask("lookups")).values()]
        parts = [part for part in found if isinstance(part, dict)]
        semantic = services.config.cache.semantic
        return JSONResponse(
            {
                "columns": _joined([cast("dict[str, list[JsonValue]]", part["columns"]) for part in parts]),
                "words": {"semantic": list(SEMANTIC), "reason": list(REASONS), "tier": list(TIERS)},
                "shadows": [pair for part in parts for pair in cast("list[JsonValue]", part["shadows"])],
                "settings": {
                    "similarity": semantic.threshold if semantic.enabled else None,
                    "complexity": services.config.router.threshold,
                    "prices": {n: tier.price.model_dump(mode="json") for n, tier in services.config.tiers.items()},
                },
            },
            headers={"cache-control": "no-store", **GUARDED},
        )

    async def _tell_lookups(self, _: Question) -> JsonValue:
        watch = self._services.watch
        if watch is None:
            return None
        block, count = watch.lookups.copy()
        found = await asyncio.to_thread(columns, block, count, watch.offset())
        shadows = [[round(similarity, 4), same] for similarity, same in self._services.shadow.compared]
        return {"columns": cast("JsonValue", found), "shadows": cast("JsonValue", shadows)}


class EventStream(Response):
    """Server-sent events for as long as there are any and somebody reads them."""

    def __init__(self, first: bytes, stream: AsyncIterator[bytes]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", **GUARDED}
        super().__init__(None, 200, headers, media_type="text/event-stream; charset=utf-8")
        del self.headers["content-length"]
        self._first, self._stream = first, stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what comes; the stream has something every second, so nobody who left is served for long."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        gone = asyncio.create_task(_gone(receive), name="console reader")
        try:
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for chunk in self._stream:
                if gone.done() or scope["method"] == "HEAD":
                    break
                if chunk:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            await cast("AsyncGenerator[bytes, None]", self._stream).aclose()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _sent(asset: Asset, request: Request) -> Response:
    """A file, or that the browser has it already."""
    headers = {**GUARDED, "etag": asset.tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == asset.tag:
        return Response(None, 304, headers)
    return Response(asset.body, 200, headers, media_type=asset.kind)


def _from_here(request: Request) -> bool:
    """Whether a form was posted from a page of this gateway: browsers say where from."""
    origin = request.headers.get("origin")
    names = (request.headers.get("host"), request.headers.get("x-forwarded-host"))
    return origin is None or urlsplit(origin).netloc in names


async def _key_in(request: Request) -> str:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LONGEST_FORM:
            raise RequestError("the form is too large")
    fields = parse_qs(body.decode("utf-8", "replace"))
    return fields.get("key", [""])[0].strip()


def _joined(parts: list[dict[str, list[JsonValue]]]) -> dict[str, list[JsonValue]]:
    """The rows of all workers."""
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}


def _escaped(text: str) -> bytes:
    return text.replace("&", "&amp;").replace("<", "&lt;").encode()
