"""Conversations in the store that several gateways share.

One sorted set per shard: members are keys, scores the time of the note in microseconds, doubled, plus one for the
frontier tier. So the oldest notes come first, and a note takes about 100 bytes there.
"""

import asyncio
from collections import OrderedDict
from types import TracebackType
from typing import Self

from core.config import TierName
from core.errors import DependencyFault
from core.redis_link import RedisLink, Script

# Notes kept over all gateways, and how long after the last one they are kept at all, in seconds.
MAX_NOTES = 200_000
LIFETIME = 24 * 3600
# Notes that wait to be written: while the store is away the oldest of them are dropped.
MAX_WAITING = 10_000
BATCH = 200
# How long notes are collected, and the pause after a fault, in seconds.
COLLECT = 0.02
PAUSE = 1.0

READ = Script("return redis.call('ZSCORE', KEYS[1], ARGV[1])")

# ARGV: 1 most notes, 2 lifetime in ms, then keys and 1 for frontier, 0 for small.
WRITE = Script("""
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
for number = 3, #ARGV, 2 do
  local before = redis.call('ZSCORE', KEYS[1], ARGV[number])
  local tier = tonumber(ARGV[number + 1])
  if before and tonumber(before) % 2 == 1 then tier = 1 end
  redis.call('ZADD', KEYS[1], now * 2 + tier, ARGV[number])
end
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -(tonumber(ARGV[1]) + 1))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 0
""")


class SharedConversations:
    """Reads within the link's budget, writes in the background. An async context manager; the link is not its own."""

    def __init__(self, link: RedisLink, max_notes: int = MAX_NOTES) -> None:
        self._link = link
        self._most = -(-max_notes // len(link.shards))
        self._waiting: OrderedDict[bytes, TierName] = OrderedDict()
        self._noted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._live(), name="conversations")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def read(self, key: bytes) -> TierName | None:
        """The tier under the key."""
        try:
            score = await self._link.run(READ, [self._where(key)], [key])
        except DependencyFault:
            return None
        if score is None:
            return None
        return "frontier" if int(float(score)) % 2 else "small"

    def write(self, key: bytes, tier: TierName) -> None:
        """Notes the tier soon."""
        self._waiting[key] = tier
        self._waiting.move_to_end(key)
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popitem(last=False)
        self._noted.set()

    async def _live(self) -> None:
        while True:
            await self._noted.wait()
            await asyncio.sleep(COLLECT)
            try:
                await self._flush()
            except DependencyFault:
                await asyncio.sleep(PAUSE)

    async def _flush(self) -> None:
        while self._waiting:
            batch = dict(list(self._waiting.items())[:BATCH])
            parts: dict[str, list[bytes | int]] = {}
            for key, tier in batch.items():
                parts.setdefault(self._where(key), []).extend((key, int(tier == "frontier")))
            for where, pairs in parts.items():
                await self._link.run(WRITE, [where], [self._most, LIFETIME * 1000, *pairs], background=True)
            for key, tier in batch.items():
                if self._waiting.get(key) == tier:
                    del self._waiting[key]
        self._noted.clear()

    def _where(self, key: bytes) -> str:
        return f"{{fb{self._link.shards[key[0] % len(self._link.shards)]}}}:1:talk"
