"""The way into a tier: its queue, and what is written down about the wait and the work."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from core.errors import Refused
from gateway.account import Account
from gateway.auth import ANYONE
from gateway.deadline import deadline_of
from gateway.exchange import Exchange
from gateway.metrics import Metrics
from gateway.ticket import Ticket
from gateway.tier import TierGate


@asynccontextmanager
async def admitted(gate: TierGate, exchange: Exchange, account: Account, metrics: Metrics) -> AsyncIterator[None]:
    """A place in the tier for the block. Raises Refused, Unavailable, and BadRequest for headers that are not legal."""
    identity = account.identity or ANYONE
    account.priority = identity.urgency(exchange.header(b"x-forebay-priority"))
    ticket = Ticket(
        tenant=account.tenant,
        priority=account.priority,
        deadline=deadline_of(exchange),
        weight=identity.weight,
        cost=1.0 if account.need is None else gate.forecast.likely(account.need),
    )
    try:
        async with gate.admission.enter(ticket):
            account.queue_s = ticket.waited
            metrics.queue_wait(gate.name, account.priority).observe(ticket.waited)
            try:
                yield
            finally:
                ticket.served = account.served
                if account.usage is not None:
                    gate.forecast.learn(account.usage.output)
    except Refused as error:
        if ticket.served is None:
            account.queue_s = ticket.waited
            metrics.shed(gate.name, error.reason or "refused").inc()
        raise
