"""The limits of a key: taken when a request comes and when it goes to a tier, put right when it ends."""

from collections.abc import Callable
from itertools import count
from types import TracebackType
from typing import Self
from uuid import uuid4

from core.config.records import Price
from core.errors import DependencyFault, Refused
from gateway.auth import Identity
from gateway.forecast import Forecast, Need
from gateway.limits.base import Claim, Kind, Ledger, Refusal, Taken
from gateway.metering import Usage

# Budgets are counted in whole billionths of the prices' unit.
FINE = 1_000_000_000
_MESSAGES: dict[Kind, str] = {
    "requests": "its requests per minute",
    "tokens": "its tokens per minute",
    "concurrency": "its requests at one time",
    "budget": "its budget of this month",
}


class Limiter:
    """An async context manager over a ledger.

    A ledger that does not answer lets everything pass: `on_unchecked(kind of fault)` is told. What it hands out is
    given back once: `enter` to `leave`, `reserve` to `settle`. Limits belong to a key, and are counted by its tenant
    and name.
    """

    def __init__(self, ledger: Ledger, on_unchecked: Callable[[str], None]) -> None:
        self._ledger, self._on_unchecked = ledger, on_unchecked
        # Unique among all processes that share the ledger.
        self._process, self._numbers = uuid4().hex[:16], count()

    async def __aenter__(self) -> Self:
        await self._ledger.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._ledger.__aexit__(kind, error, trace)

    async def enter(self, identity: Identity) -> Taken | None:
        """One more request. Raises Refused; None where the key has no such limits."""
        allowed, claims = identity.allowance, []
        if allowed.requests_per_minute is not None:
            claims.append(Claim("requests", allowed.requests_per_minute, 1))
        if allowed.concurrency is not None:
            claims.append(Claim("concurrency", allowed.concurrency, 1))
        return await self._take(identity, claims) if claims else None

    def leave(self, taken: Taken) -> None:
        """It has ended."""
        self._ledger.settle(taken, [0] * len(taken.claims))

    async def reserve(self, identity: Identity, need: Need, forecast: Forecast, price: Price) -> Taken | None:
        """The most that a request may take of a tier. Raises Refused; None where the key has no such limits.

        A request that may take more than the whole limit takes all of it: it is let in when nothing else was used.
        """
        allowed = identity.allowance
        if allowed.tokens_per_minute is None and allowed.monthly_budget is None:
            return None
        claims: list[Claim] = []
        read, written = forecast.input(need), forecast.most_output(need)
        if (limit := allowed.tokens_per_minute) is not None:
            claims.append(Claim("tokens", limit, min(limit, read + written)))
        if allowed.monthly_budget is not None:
            limit = int(allowed.monthly_budget * FINE)
            claims.append(Claim("budget", limit, min(limit, _cost(price, read, written))))
        return await self._take(identity, claims)

    def settle(self, taken: Taken, usage: Usage | None, price: Price, *, nothing: bool) -> None:
        """What it really took. Without usage the reservation stands, unless `nothing` came of the request."""
        changes = []
        for claim in taken.claims:
            real = claim.amount
            if usage is not None:
                tokens = usage.input + usage.output
                real = tokens if claim.kind == "tokens" else _cost(price, usage.input, usage.output)
            elif nothing:
                real = 0
            changes.append(real - claim.amount)
        self._ledger.settle(taken, changes)

    async def _take(self, identity: Identity, claims: list[Claim]) -> Taken:
        subject, mark = f"{identity.tenant}\n{identity.name}", f"{self._process}-{next(self._numbers)}"
        try:
            found = await self._ledger.take(subject, mark, claims)
        except BaseException as error:
            # It may have been taken all the same; what runs can be released by its mark.
            unknown = Taken(subject, mark, None, "", tuple(claims))
            if not isinstance(error, DependencyFault):
                self._ledger.settle(unknown, [0] * len(claims))
                raise
            self._on_unchecked(error.kind)
            return unknown
        if isinstance(found, Refusal):
            reason = f"tenant_{found.kind}"
            message = f"the key {identity.name!r} has used up {_MESSAGES[found.kind]}"
            raise Refused(message, code=reason, reason=reason, retry_after=found.wait)
        return found


def _cost(price: Price, read: int, written: int) -> int:
    """In billionths; prices are per million tokens."""
    return round((price.input * read + price.output * written) * (FINE / 1_000_000))
