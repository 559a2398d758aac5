"""The ledger of all gateways that share a Redis: one script takes, one puts right, both atomic.

Keys of one subject carry the same hash tag, so that a script works on a cluster as well. Time is the server's own, so
the gateways' clocks need not agree. What runs is held under a lease: a gateway that dies gives it back when that ends.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from core.background import Background
from core.clock import Clock
from core.errors import DependencyFault
from core.redis_link import Argument, RedisLink, Script
from gateway.limits.base import SLOT, SLOTS, SOON, Claim, Kind, Refusal, Taken
from gateway.limits.month import month_of, rest_of_month

PREFIX = "forebay:limits"
# A budget is kept somewhat longer than its month, in seconds.
BUDGET_LIFE = 40 * 86_400
# Between two looks at a server that is left alone, and for what is still to be settled at the end, in seconds.
TRIAL = 0.5
FAREWELL = 2.0
# Corrections that may be under way; those beyond are dropped, and their reservations stand.
MAX_PENDING = 10_000

_COMMON = f"""
local WIDTH, SLOTS = {SLOT}, {SLOTS}
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local slot = math.floor(now / WIDTH)
"""

# KEYS: one per claim. ARGV: mark, lease, life of a budget, rest of the month, then kind, limit, amount per claim.
# Returns {0, slot}, or {number of the claim, milliseconds to wait}.
TAKE = Script(
    _COMMON
    + f"""
local mark, lease, life, rest = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
for i, key in ipairs(KEYS) do
  local kind, limit, amount = ARGV[3 * i + 2], tonumber(ARGV[3 * i + 3]), tonumber(ARGV[3 * i + 4])
  if kind == 'concurrency' then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
    if redis.call('ZCARD', key) >= limit then return {{i, {round(SOON * 1000)}}} end
  elseif kind == 'budget' then
    if tonumber(redis.call('GET', key) or '0') + amount > limit then return {{i, math.ceil(rest * 1000)}} end
  else
    local all, live, sum = redis.call('HGETALL', key), {{}}, 0
    for n = 1, #all, 2 do
      local at, count = tonumber(all[n]), tonumber(all[n + 1])
      if at < slot - SLOTS then
        redis.call('HDEL', key, all[n])
      else
        sum = sum + count
        live[#live + 1] = {{at, count}}
      end
    end
    local excess = sum + amount - limit
    if excess > 0 then
      table.sort(live, function(a, b) return a[1] < b[1] end)
      local wait = SLOTS * WIDTH
      for _, entry in ipairs(live) do
        excess = excess - entry[2]
        if excess <= 0 then
          wait = (entry[1] + 1 + SLOTS) * WIDTH - now
          break
        end
      end
      return {{i, math.ceil(wait * 1000)}}
    end
  end
end
for i, key in ipairs(KEYS) do
  local kind, amount = ARGV[3 * i + 2], tonumber(ARGV[3 * i + 4])
  if kind == 'concurrency' then
    redis.call('ZADD', key, now + lease, mark)
    redis.call('EXPIRE', key, math.ceil(lease))
  elseif kind == 'budget' then
    redis.call('INCRBY', key, string.format('%.0f', amount))
    redis.call('EXPIRE', key, life)
  else
    redis.call('HINCRBY', key, tostring(slot), string.format('%.0f', amount))
    redis.call('EXPIRE', key, math.ceil((SLOTS + 2) * WIDTH))
  end
end
return {{0, slot}}
"""
)

# KEYS: one per claim. ARGV: mark, slot in which it was taken or an empty text, then kind and change per claim.
SETTLE = Script(
    _COMMON
    + """
local mark, taken = ARGV[1], tonumber(ARGV[2])
for i, key in ipairs(KEYS) do
  local kind, change = ARGV[2 * i + 1], ARGV[2 * i + 2]
  if kind == 'concurrency' then
    redis.call('ZREM', key, mark)
  elseif taken and change ~= '0' then
    if kind == 'budget' then
      redis.call('INCRBY', key, change)
    elseif taken >= slot - SLOTS then
      redis.call('HINCRBY', key, tostring(taken), change)
    elseif tonumber(change) > 0 then
      redis.call('HINCRBY', key, tostring(slot), change)
      redis.call('EXPIRE', key, math.ceil((SLOTS + 2) * WIDTH))
    end
  end
end
return 0
"""
)
_LOOK = Script("return 0")


class RedisLedger:
    """Counts in Redis. `lease`: the longest that a request may run, in seconds."""

    def __init__(self, link: RedisLink, clock: Clock, lease: float) -> None:
        self._link, self._clock, self._lease = link, clock, lease
        self._pending, self._trials = Background(), Background()

    async def __aenter__(self) -> Self:
        self._trials.start(self._look(), "limits store")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL):
                await self._pending.settled()
        await self._pending.aclose()
        await self._trials.aclose()

    async def take(self, subject: str, mark: str, claims: Sequence[Claim]) -> Taken | Refusal:
        """All of the claims or none, among all gateways."""
        now = self._clock.time()
        arguments: list[Argument] = [mark, self._lease, BUDGET_LIFE, rest_of_month(now)]
        for claim in claims:
            arguments += [claim.kind, claim.limit, claim.amount]
        keys = [_key(subject, claim.kind, month_of(now)) for claim in claims]
        refused, value = await self._link.run(TAKE, keys, arguments)
        if refused:
            return Refusal(claims[refused - 1].kind, value / 1000)
        return Taken(subject, mark, value, month_of(now), tuple(claims))

    def settle(self, taken: Taken, changes: Sequence[int]) -> None:
        """In the background; where Redis does not answer, the reservation stands."""
        if len(self._pending) >= MAX_PENDING:
            return
        self._pending.start(self._settle(taken, changes), "settle limits")

    async def _settle(self, taken: Taken, changes: Sequence[int]) -> None:
        arguments: list[Argument] = [taken.mark, "" if taken.slot is None else taken.slot]
        for claim, change in zip(taken.claims, changes, strict=True):
            arguments += [claim.kind, change]
        keys = [_key(taken.subject, claim.kind, taken.month) for claim in taken.claims]
        with contextlib.suppress(DependencyFault):
            await self._link.run(SETTLE, keys, arguments, background=True)

    async def _look(self) -> None:
        """Requests never try a server that is left alone: this does."""
        while True:
            await asyncio.sleep(TRIAL)
            if self._link.breaker.state != "closed":
                with contextlib.suppress(DependencyFault):
                    await self._link.run(_LOOK, [f"{PREFIX}:look"], background=True)


def _key(subject: str, kind: Kind, month: str) -> str:
    # Names are the operator's own and may hold anything, so they are not written into keys.
    tag = hashlib.sha256(subject.encode()).hexdigest()[:32]
    return f"{PREFIX}:{{{tag}}}:{kind}" + (f":{month}" if kind == "budget" else "")
