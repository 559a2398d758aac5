"""The shell around every request under /v1: who asks, what goes wrong, and the one settlement at the end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from core.errors import Refused, RequestError, Unavailable
from gateway import envelope
from gateway.account import Account
from gateway.auth import Identity
from gateway.console.viewers import session_of
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
            async with Interruptible(exchange.task) as block:
                self._admit(exchange, account, admin)
                if account.identity is not None and not (admin or route.startswith(UNLIMITED)):
                    account.taken = await services.limiter.enter(account.identity)
                await answer(exchange, account, block)
            account.status = exchange.status or 0
        except ClientGone:
            account.status, account.reason = 499, "client_gone"
        except Exception as error:  # noqa: BLE001  # told apart, and logged where it is ours, in _failed
            await self._failed(exchange, account, error)
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

    async def _failed(self, exchange: Exchange, account: Account, error: Exception) -> None:
        """A marked boundary: the client gets an envelope; of a fault of ours, the log the traceback."""
        try:
            if not isinstance(error, RequestError):
                logger.error("request %s failed", exchange.request_id, exc_info=error)
                error = Internal("the gateway failed on this request")
            await self._fail(exchange, account, error)
        except asyncio.CancelledError:
            account.status, account.reason = exchange.status or 503, "stopped"
            raise

    def _admit(self, exchange: Exchange, account: Account, admin: bool) -> None:
        keyring, authorization = self._services.keyring, exchange.headers.get(b"authorization")
        identity = None
        if authorization is None and b"cookie" in exchange.headers and not keyring.open:
            identity = self._of_session(exchange)
        if identity is None:
            identity = keyring.admin(authorization) if admin else keyring.identify(authorization)
        account.identity, account.tenant = identity, identity.tenant
        if self._services.draining and not admin:
            raise Unavailable("the gateway is stopping", code="draining", reason="draining", retry_after=1.0)

    def _of_session(self, exchange: Exchange) -> Identity | None:
        """Who has signed in to the console and asks from its page."""
        session = session_of(exchange.method, exchange.headers)
        return None if session is None else self._services.sessions.identity(session, self._services.keyring)

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
