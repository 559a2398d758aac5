"""The decode side's own engine, by its HTTP application."""

import logging
from collections.abc import Mapping, MutableMapping
from typing import Any

import orjson
from pydantic import JsonValue

from core.clock import Clock
from deploy.disconnect import AsgiApp, EndOnCancel, Send
from deploy.handoff.group import Json, Reply, Settings
from deploy.handoff.inside import ask, json_body, staying
from deploy.handoff.legs import given_ids, output_limit, tokenize_body
from deploy.handoff.opening import Opening
from deploy.handoff.prefixes import Prefixes
from deploy.handoff.request import Request, route

logger = logging.getLogger(__name__)


class Engine:
    """Runs requests on the engine's ASGI application, and says which prompts are better prefilled here."""

    def __init__(self, app: AsgiApp, settings: Settings, clock: Clock) -> None:
        self._app, self._settings, self._clock = EndOnCancel(app), settings, clock
        self._prefixes = Prefixes(settings.block_size, settings.remembered_blocks)

    async def keep(self, request: Request) -> str | None:
        """Why this prompt is prefilled here (short, cached, too_long, unmeasured), or None.

        Measures it: `request.tokens`. The engine's own limit is checked here, before anybody prefills in vain.
        """
        body, least = request.body or {}, self._settings.min_prompt_tokens
        # A token has at least one byte.
        if len(request.raw) < least:
            return "short"
        began = self._clock.monotonic()
        reply = await self.ask(request.scope, "/tokenize", tokenize_body(body))
        request.measured_s = self._clock.monotonic() - began
        tokens, most = reply.body.get("tokens"), reply.body.get("max_model_len")
        if reply.status != 200 or not isinstance(tokens, list):
            return "unmeasured"
        request.tokens = given_ids(body) or tokens  # type: ignore[assignment]  # token ids, as the engine says them
        if isinstance(most, int) and len(request.tokens) + output_limit(body) > most:
            return "too_long"
        if len(request.tokens) < max(least, self._settings.block_size):
            return "short"
        unknown = len(request.tokens) - self._prefixes.known(request.tokens, request.salt)
        return "cached" if unknown < least else None

    def remember(self, request: Request) -> None:
        """The engine has this prompt's KV."""
        self._prefixes.remember(request.tokens, request.salt)

    async def run(self, request: Request, send: Send) -> None:
        """The client's own body, as it came. What the engine's application raises goes on."""
        await self._app(request.scope, staying(request.raw), send)

    async def read(self, request: Request, body: Json, opening: Opening) -> None:
        """A body with blocks to read; the answer goes through `opening`, which has a verdict when this returns."""
        raw = orjson.dumps(body)
        try:
            await self._app(_scope(request.scope, route(request.scope), len(raw)), staying(raw), opening.send)
        except Exception as error:
            # Before the first content the request can go another way.
            if opening.verdict == "answer":
                raise
            logger.warning("the decode side failed with %s", type(error).__name__)
        finally:
            opening.over()

    async def ask(self, scope: MutableMapping[str, Any], path: str, body: Json) -> Reply:
        """A request of our own and its JSON answer; 500 where the application raised."""
        raw = orjson.dumps(body)
        try:
            status, answer = await ask(self._app, _scope(scope, path, len(raw)), raw)
            value: JsonValue = orjson.loads(answer) if answer else None
        except Exception as error:  # noqa: BLE001  # the engine's inside is not ours
            logger.warning("%s of the decode side failed with %s", path, type(error).__name__)
            return Reply(500, {})
        return Reply(status, value if isinstance(value, Mapping) else {})


def _scope(scope: MutableMapping[str, Any], path: str, length: int) -> MutableMapping[str, Any]:
    # The prefix that the application is mounted under stays where it is.
    return json_body(scope, str(scope["path"]).removesuffix(route(scope)) + path, length)
