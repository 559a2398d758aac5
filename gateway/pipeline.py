"""The shell around every request under /v1: who asks, what goes wrong, and the one settlement at the end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from core.errors import Refused, RequestError, Unavailable
from gateway import envelope
from gateway.account import Account
from gateway.exchange import Exchange
from gateway.headers import answer_headers
from gateway.interrupt import ClientGone, Interruptible
from gateway.relay import error_event
from gateway.services import Services

logger = logging.getLogger("forebay.gateway")

Answer = Callable[[Exchange, Account, Interruptible], Awaitable[None]]
# How long the last words of a broken stream may take to go out, in seconds.
LAST_WORDS = 1.0
# Asking what there is costs nothing of a key's limits.
UNLIMITED = "/v1/models"


class Internal(RequestError):
    """A fault of ours."""

    code = "internal_error"


class Pipeline:
    """Runs an `Answer` inside the shell. `run` never raises but for a cancellation from the server."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def run(self, exchange: Exchange, route: str, answer: Answer, *, admin: bool = False) -> None:
        """One request from its first header to its settlement; `admin`: for administrators only."""
        services = self._services
        account = Account(exchange.request_id, exchange.method, route, exchange.arrived)
        services.load.enter()
        if services.tracer is not None:
            account.trace = services.tracer.begin(exchange.headers)
        try:
            await self._guarded(exchange, account, answer, admin)
        except asyncio.CancelledError:
            account.status, account.reason = exchange.status or 503, "stopped"
            raise
        finally:
            # Nothing here waits, so no cancellation can come between: this happens once, whatever happened above.
            services.load.leave()
            if account.taken is not None:
                services.limiter.leave(account.taken)
            exchange.unwatch()
            services.settlement.settle(account)
            if services.tracer is not None:
                services.tracer.end(account)

    async def _guarded(self, exchange: Exchange, account: Account, answer: Answer, admin: bool) -> None:
        try:
            async with Interruptible() as block:
                self._admit(exchange, account, admin)
                if account.identity is not None and not (admin or account.route.startswith(UNLIMITED)):
                    account.taken = await self._services.limiter.enter(account.identity)
                await answer(exchange, account, block)
            account.status = exchange.status or 0
        except ClientGone:
            account.status, account.reason = 499, "client_gone"
        except RequestError as error:
            await self._fail(exchange, account, error)
        except Exception:
            # A marked boundary: the client gets an envelope, the log the traceback.
            logger.exception("request %s failed", exchange.request_id)
            await self._fail(exchange, account, Internal("the gateway failed on this request"))

    def _admit(self, exchange: Exchange, account: Account, admin: bool) -> None:
        keyring, authorization = self._services.keyring, exchange.headers.get(b"authorization")
        account.identity = keyring.admin(authorization) if admin else keyring.identify(authorization)
        if self._services.draining and not admin:
            raise Unavailable("the gateway is stopping", code="draining", reason="draining", retry_after=1.0)

    async def _fail(self, exchange: Exchange, account: Account, error: RequestError) -> None:
        account.status, account.reason = error.status, error.reason or error.code
        account.shed = isinstance(error, Refused)
        if exchange.finished:
            return
        if not exchange.started:
            await exchange.discard()
            headers = answer_headers(exchange, account, self._services.clock)
            headers += [*envelope.headers(error), envelope.JSON]
            if isinstance(error, Unavailable) and self._services.draining:
                headers.append((b"connection", b"close"))
            await exchange.respond(error.status, headers, envelope.body(error))
            return
        if not account.event_stream:
            # The head is out: only an aborted connection says that the body is not complete.
            return
        try:
            async with asyncio.timeout(LAST_WORDS):
                await exchange.end(error_event(envelope.body(error)))
        except TimeoutError:
            return
