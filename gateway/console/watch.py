"""What the gateway has decided lately, kept where it costs next to nothing: an append per request, in bounded memory.

Nothing is formatted, counted or sent here: that is done for those who look, when they look.
"""

import secrets
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from pydantic import JsonValue

from core.clock import Clock
from gateway.account import NOBODY, Account
from gateway.console.lookups import Lookups

# Decisions kept at least: as many as come between two looks of a reader.
LEAST = 1024
# Requests to /admin decide nothing.
UNSEEN = "/admin"
Row = Mapping[str, JsonValue]


class Settled(NamedTuple):
    """One settled request. `ended`: monotonic seconds; the others in seconds."""

    account: Account
    ended: float
    duration: float
    overhead: float


class Watch:
    """The last decisions and lookups of this process. `boot` names its life; a decision's number counts from 0.

    `history`: how many decisions somebody who comes to look is shown. `words`: prompts and answers are kept with them.
    """

    def __init__(self, history: int, clock: Clock, *, words: bool = False) -> None:
        self.history, self.words, self.boot = history, words, secrets.token_hex(4)
        self.count = 0
        self.lookups = Lookups()
        self._clock = clock
        self._recent: deque[tuple[Account, float, float, float]] = deque(maxlen=max(history, LEAST))

    def settled(self, account: Account, ended: float, duration: float, overhead: float) -> None:
        """A request has been settled."""
        if account.route == UNSEEN:
            return
        self.count += 1
        self._recent.append((account, ended, duration, overhead))
        if account.semantic is not None or account.complexity is not None:
            self.lookups.add(account, ended)

    def offset(self) -> float:
        """From monotonic seconds to those since 1970."""
        return self._clock.time() - self._clock.monotonic()

    def rows(self, since: int, limit: int) -> list[Row]:
        """The decisions from number `since` on, oldest first: the last `limit` of them, as far as they are kept."""
        first = max(since, self.count - len(self._recent), self.count - limit, 0)
        offset = self.offset()
        kept = islice(self._recent, len(self._recent) - (self.count - first), None)
        return [row_of(Settled(*settled), number, offset) for number, settled in enumerate(kept, start=first)]


def row_of(settled: Settled, number: int, offset: float) -> Row:
    """A decision as readers get it: what its line of the log has, with times of day in seconds since 1970."""
    account = settled.account
    usage, first, last = account.usage, account.first_at, account.last_at
    of_stream = account.stream and first is not None
    per_token = None
    if usage is not None and of_stream and usage.output > 1 and first is not None and last is not None:
        per_token = _ms((last - first) / (usage.output - 1))
    row: dict[str, JsonValue] = {
        "number": number,
        "time": round(settled.ended + offset, 3),
        "request_id": account.request_id,
        "tenant": account.tenant,
        "key": NOBODY if account.identity is None else account.identity.name,
        "route": account.route,
        "model": account.model,
        "stream": account.stream,
        "status": account.status,
        "reason": account.reason,
        "shed": account.shed,
        "cache": account.cache,
        "semantic": account.semantic,
        "similarity": _decimals(account.similarity),
        "guard": account.guard,
        "complexity": _decimals(account.complexity),
        "tier": account.tier,
        "route_reason": account.route_reason,
        "queue_ms": _ms(account.queue_s),
        "ttft_ms": None if first is None else _ms(first - account.arrived),
        "tpot_ms": per_token,
        "duration_ms": _ms(settled.duration),
        "overhead_ms": _ms(settled.overhead),
        "input_tokens": None if usage is None else usage.input,
        "output_tokens": None if usage is None else usage.output,
        "retries": account.retries,
    }
    if account.words is not None:
        row |= {"prompt": account.words.prompt, "answer": account.words.answer}
    return row


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _decimals(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
