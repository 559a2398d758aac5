"""Which tier a conversation has reached, remembered within bounds.

A conversation is known by its tenant and its messages up to the previous user turn: clients send the whole history each
time, so the history up to a turn is the name of the conversation when the next turn comes.
"""

import hashlib
from collections import OrderedDict
from typing import Protocol

from core.config import TierName
from core.request import InferenceRequest

Key = bytes


class Elsewhere(Protocol):
    """What other gateways remember.

    `read`: the tier under a key, None where nobody noted one or it cannot be had in time. `write`: notes one, without
    waiting; it never raises.
    """

    async def read(self, key: Key) -> TierName | None: ...

    def write(self, key: Key, tier: TierName) -> None: ...


class Conversations:
    """The tier of the last `max_entries` conversations; the least recently used is forgotten first.

    For one event loop: no locks. An entry takes about 250 bytes, whatever the length of the conversation. With
    `elsewhere` it is shared: `recall` fetches what another gateway has noted, before `floor` is asked.
    """

    def __init__(self, max_entries: int = 50_000, elsewhere: Elsewhere | None = None) -> None:
        self._tiers: OrderedDict[Key, TierName] = OrderedDict()
        self._max_entries, self._elsewhere = max_entries, elsewhere

    def __len__(self) -> int:
        return len(self._tiers)

    async def recall(self, tenant: str, request: InferenceRequest) -> None:
        """Fetches what is noted elsewhere about this request's conversation, where it is not known here."""
        if self._elsewhere is None:
            return
        key = _key(tenant, request.turns.previous)
        if key is not None and key not in self._tiers:
            tier = await self._elsewhere.read(key)
            if tier is not None:
                self._note(key, tier)

    def floor(self, tenant: str, request: InferenceRequest) -> TierName | None:
        """The tier that this request's conversation has reached; None where it is not known or has just begun."""
        key = _key(tenant, request.turns.previous)
        tier = None if key is None else self._tiers.get(key)
        if key is not None and tier is not None:
            self._tiers.move_to_end(key)
        return tier

    def remember(self, tenant: str, request: InferenceRequest, tier: TierName) -> None:
        """Note the tier that serves this request. A conversation once on the frontier tier stays noted there."""
        key = _key(tenant, request.turns.last)
        if key is None:
            return
        self._note(key, tier)
        if self._elsewhere is not None:
            self._elsewhere.write(key, self._tiers[key])

    def _note(self, key: Key, tier: TierName) -> None:
        self._tiers[key] = "frontier" if self._tiers.get(key) == "frontier" else tier
        self._tiers.move_to_end(key)
        while len(self._tiers) > self._max_entries:
            self._tiers.popitem(last=False)


def _key(tenant: str, history: bytes | None) -> Key | None:
    """Under what a tenant's history is noted; its digest is of fixed length, so no tenant can pass for another."""
    return None if history is None else hashlib.blake2b(history + tenant.encode(), digest_size=16).digest()
