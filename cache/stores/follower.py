"""Keeps a catalogue equal to the wordings in Redis: reads them all once, then follows the events.

An event only says which ids have changed; what they are is fetched, so events may come twice or late. Events are
numbered without a gap. Where the numbers do not fit (too far behind, a server that lost something or began anew), and
after every failure, everything is compared again; what has not changed is not sent again.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cache.catalogue import Catalogue
from cache.stores.base import Wording
from cache.stores.scripts import FETCH, FOLLOW, LIST, Keys, is_id, shard_of
from core.background import Background
from core.clock import Clock
from core.errors import DependencyFault
from core.redis_link import Argument, RedisLink

logger = logging.getLogger("forebay.cache")

# Seconds between two looks at the events: what another gateway stores is known here after about that time.
INTERVAL = 0.2
# The same after a fault of ours, whose traceback nobody wants five times a second.
QUIET = 30.0
# Events in one look, and wordings in one fetch: below a millisecond of the server's time each.
PAGE = 500
FETCHED = 64


@dataclass(frozen=True, slots=True)
class Event:
    """One change: the id that was put, and those that are gone."""

    number: int
    put: str
    gone: tuple[str, ...]


class Follower:
    """One task that owns the catalogue's contents. `start` begins, `aclose` ends it.

    `warm` is set while the catalogue is as complete as the last look; `fault` says why it is not.
    """

    def __init__(
        self, link: RedisLink, keys: Sequence[Keys], catalogue: Catalogue, clock: Clock, lifetime: float
    ) -> None:
        self.warm = asyncio.Event()
        self._link, self._keys, self._catalogue, self._clock = link, keys, catalogue, clock
        self._lifetime = lifetime
        # The last event that the catalogue knows, by shard; None where it must be compared as a whole.
        self._seen: list[int | None] = [None] * len(keys)
        self._namespace: str | None = None
        self._background = Background()

    @property
    def fault(self) -> str | None:
        """Why the catalogue may lack something."""
        known = self.warm.is_set() and self._namespace == self._catalogue.namespace
        return None if known or self._catalogue.namespace is None else "the questions in the store are being read"

    def start(self) -> None:
        """Begin, in a task of its own."""
        self._background.start(self._live(), "cache-follower")

    async def aclose(self) -> None:
        """End the task."""
        await self._background.aclose()

    async def _live(self) -> None:
        while True:
            pause = INTERVAL
            try:
                await self._look()
            except DependencyFault:
                self._lost()
            except Exception:  # a boundary: whatever lies in the store must not end the following
                logger.exception("the cache's index could not follow the store")
                self._lost()
                pause = QUIET
            await asyncio.sleep(pause)

    def _lost(self) -> None:
        self.warm.clear()
        self._seen = [None] * len(self._keys)

    async def _look(self) -> None:
        """One round over all shards. It is also the trial that closes an open breaker again."""
        if self._catalogue.namespace != self._namespace:
            self._lost()
            self._namespace = self._catalogue.namespace
        if self._namespace is None:
            await self._events(self._keys[0], 0)
            return
        for number, keys in enumerate(self._keys):
            await self._follow(number, keys, self._namespace)
        self._catalogue.expire(self._clock.monotonic() - self._lifetime)
        self.warm.set()

    async def _follow(self, shard: int, keys: Keys, namespace: str) -> None:
        seen = self._seen[shard]
        while seen is not None:
            last, events = await self._events(keys, seen)
            first = events[0].number if events else last + 1
            if last < seen or first != seen + 1:
                break
            await self._apply(keys, namespace, events)
            self._seen[shard] = seen = events[-1].number if events else seen
            if len(events) < PAGE:
                return
        await self._compare(shard, keys, namespace)

    async def _compare(self, shard: int, keys: Keys, namespace: str) -> None:
        """Fetch what is there and not known, and forget what is known and not there."""
        self.warm.clear()
        last, _ = await self._events(keys, 2**53)
        there: set[str] = set()
        cursor = b"0"
        while True:
            cursor, page = await self._link.run(LIST, [keys.of("vec")], [cursor], background=True)
            ids = _ids(page)
            there.update(ids)
            await self._fetch(keys, namespace, ids)
            if cursor == b"0":
                break
        for count, key in enumerate(self._catalogue.ids()):
            if count % 2000 == 0:
                await asyncio.sleep(0)
            version = self._catalogue.version(key)
            mine = shard_of(key, len(self._keys)) == shard
            # What this gateway has stored meanwhile is newer than the events that were there at the beginning.
            if mine and key not in there and version is not None and version <= last:
                self._catalogue.remove(key)
        self._seen[shard] = last

    async def _apply(self, keys: Keys, namespace: str, events: Sequence[Event]) -> None:
        wanted: dict[str, None] = {}
        for event in events:
            for key in event.gone:
                wanted.pop(key, None)
                if self._known(key) < event.number:
                    self._catalogue.remove(key)
            if event.put and self._known(event.put) < event.number:
                wanted[event.put] = None
        await self._fetch(keys, namespace, list(wanted))

    async def _fetch(self, keys: Keys, namespace: str, ids: Sequence[str]) -> None:
        for at in range(0, len(ids), FETCHED):
            part = {key: self._known(key) for key in ids[at : at + FETCHED]}
            pairs: list[Argument] = [value for pair in part.items() for value in pair]
            rows = await self._link.run(FETCH, [keys.of("meta")], [keys.entries, namespace, *pairs], background=True)
            for (key, version), row in zip(part.items(), rows, strict=True):
                # Stored by this gateway while the answer was on its way: that is newer.
                if self._known(key) == version:
                    self._take(key, namespace, row)

    def _take(self, key: str, namespace: str, row: Any) -> None:
        if row == 1:
            return
        taken = None if row == 0 else wording(namespace, row[3], row[4])
        if taken is None or not isinstance(row[2], bytes):
            self._catalogue.remove(key)
        else:
            stored_at = self._clock.monotonic() - int(row[1]) / 1000
            self._catalogue.add(key, row[2].decode("ascii", "replace"), taken, stored_at, int(row[0]))

    def _known(self, key: str) -> int:
        """The version that the catalogue has; 0 where it has none."""
        return self._catalogue.version(key) or 0

    async def _events(self, keys: Keys, after: int) -> tuple[int, list[Event]]:
        """The number of the last event, and the events after the given one, PAGE at most."""
        last, rows = await self._link.run(FOLLOW, keys.books, [keys.entries, after, PAGE], background=True)
        return int(last), [_event(row) for row in rows]


def _event(row: Any) -> Event:
    number, (_, put, _, gone) = row
    return Event(int(number.partition(b"-")[0]), "".join(_ids([put])), tuple(_ids(gone.split())))


def _ids(found: Sequence[bytes]) -> list[str]:
    """What is an id among what was found."""
    return [key for value in found if is_id(key := value.decode("ascii", "replace"))]


def wording(namespace: str, text: object, vector: object) -> Wording | None:
    """What a store says about a question; None where it is not that, or its vector not of the namespace's length."""
    if not isinstance(text, bytes) or not isinstance(vector, bytes) or len(vector) % 4:
        return None
    numbers = np.frombuffer(vector, dtype="<f4")
    if not namespace.endswith(f"#{len(numbers)}") or not np.isfinite(numbers).all():
        return None
    return Wording(namespace, text.decode("utf-8", "replace"), numbers)
