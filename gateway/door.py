"""The way into a tier: the key's limits, the queue, and what is written down about the wait and the work."""

from core.errors import Refused
from gateway.account import Account
from gateway.auth import ANYONE
from gateway.deadline import deadline_of
from gateway.exchange import Exchange
from gateway.forecast import Need
from gateway.limits.base import Taken
from gateway.services import Services
from gateway.ticket import Ticket
from gateway.tier import TierGate

NOTHING = Need(0, 0)


class Place:
    """A place in a tier. `leave` must be called, once."""

    __slots__ = ("_account", "_gate", "_services", "_since", "_taken", "_ticket")

    def __init__(
        self, gate: TierGate, account: Account, services: Services, ticket: Ticket, taken: Taken | None
    ) -> None:
        self._gate, self._account, self._services = gate, account, services
        self._ticket, self._taken = ticket, taken
        self._since = services.clock.monotonic()

    def leave(self) -> None:
        """Give it back, and put right what was taken for it."""
        gate, account, ticket = self._gate, self._account, self._ticket
        ticket.served = account.served
        if account.usage is not None and account.need is not None:
            gate.forecast.learn(account.need, account.usage.input, account.usage.output)
        gate.admission.leave(ticket, self._services.clock.monotonic() - self._since)
        if self._taken is not None:
            _settle(self._services, self._taken, gate, account)


async def enter(gate: TierGate, exchange: Exchange, account: Account, services: Services) -> Place:
    """A place in the tier. Raises Refused, Unavailable, and BadRequest for headers that are not legal."""
    identity, need = account.identity or ANYONE, account.need or NOTHING
    account.priority = identity.urgency(exchange.headers.get(b"x-forebay-priority"))
    ticket = Ticket(
        account.tenant, account.priority, deadline_of(exchange), identity.weight, gate.forecast.likely(need)
    )
    taken = await services.limiter.reserve(identity, need, gate.forecast, gate.settings.price)
    try:
        await gate.admission.admit(ticket)
    except BaseException as error:
        if isinstance(error, Refused):
            account.queue_s = ticket.waited
            services.metrics.shed(gate.name, error.reason or "refused").inc()
        if taken is not None:
            _settle(services, taken, gate, account)
        raise
    account.queue_s = ticket.waited
    services.metrics.queue_wait(gate.name, account.priority).observe(ticket.waited)
    return Place(gate, account, services, ticket, taken)


def _settle(services: Services, taken: Taken, gate: TierGate, account: Account) -> None:
    services.limiter.settle(taken, account.usage, gate.settings.price, nothing=account.served == 0)
