"""The way into a tier: the key's limits, the queue, and what is written down about the wait and the work."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from core.errors import Refused
from gateway.account import Account
from gateway.auth import ANYONE
from gateway.deadline import deadline_of
from gateway.exchange import Exchange
from gateway.forecast import Need
from gateway.services import Services
from gateway.ticket import Ticket
from gateway.tier import TierGate

NOTHING = Need(0, 0)


@asynccontextmanager
async def admitted(gate: TierGate, exchange: Exchange, account: Account, services: Services) -> AsyncIterator[None]:
    """A place in the tier for the block. Raises Refused, Unavailable, and BadRequest for headers that are not legal."""
    identity, need = account.identity or ANYONE, account.need or NOTHING
    account.priority = identity.urgency(exchange.header(b"x-forebay-priority"))
    ticket = Ticket(
        tenant=account.tenant,
        priority=account.priority,
        deadline=deadline_of(exchange),
        weight=identity.weight,
        cost=gate.forecast.likely(need),
    )
    price = gate.settings.price
    taken = await services.limiter.reserve(identity, need, gate.forecast, price)
    try:
        async with _place(gate, ticket, account, services):
            yield
    finally:
        if taken is not None:
            services.limiter.settle(taken, account.usage, price, nothing=account.served == 0)


@asynccontextmanager
async def _place(gate: TierGate, ticket: Ticket, account: Account, services: Services) -> AsyncIterator[None]:
    metrics, entered = services.metrics, False
    try:
        async with gate.admission.enter(ticket):
            entered = True
            account.queue_s = ticket.waited
            metrics.queue_wait(gate.name, account.priority).observe(ticket.waited)
            try:
                yield
            finally:
                ticket.served = account.served
                if account.usage is not None and account.need is not None:
                    gate.forecast.learn(account.need, account.usage.input, account.usage.output)
    except Refused as error:
        if not entered:
            account.queue_s = ticket.waited
            metrics.shed(gate.name, error.reason or "refused").inc()
        raise
