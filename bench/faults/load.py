"""A closed loop of clients over a mix of faults, and what came of it."""

import asyncio
import random
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.faults.cases import CHAT, MIX, Ask, Make, Maker, draw, wrong
from bench.faults.wire import Answer, ask
from bench.faults.world import World

# Descriptions of wrong answers that a report keeps.
KEPT = 20


@dataclass
class Tally:
    """What clients have seen. `wrong`: the first of what should not have been."""

    seen: Counter[str] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def note(self, asked: Ask, got: Answer, *, killed: bool) -> None:
        """One answer."""
        self.seen[asked.case] += 1
        self.statuses[got.ended if got.status == 0 else str(got.status)] += 1
        try:
            fault = wrong(asked, got, killed=killed)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            fault = f"not an answer: {traceback.format_exc(limit=-1)}: {got.body[:300]!r}"
        if fault is not None:
            self.bad[asked.case] += 1
            if len(self.wrong) < KEPT:
                kind = "stream" if asked.stream else "json"
                self.wrong.append(f"{asked.case} ({kind}, {asked.headers['x-request-id']}): {fault}")

    def report(self) -> dict[str, Any]:
        """As a document."""
        return {
            "requests": self.seen.total(),
            "wrong_answers": self.bad.total(),
            "cases": {case: {"asked": count, "wrong": self.bad[case]} for case, count in sorted(self.seen.items())},
            "statuses": dict(sorted(self.statuses.items())),
            "wrong": self.wrong,
        }


class Crowd:
    """So many clients at one time, each asking one request after another until `enough` says so.

    While `trouble` holds, a server is being killed, and what runs then may break.
    """

    def __init__(
        self, world: World, seed: int, clients: int, mix: tuple[tuple[Make, int], ...] = MIX, at: str | None = None
    ) -> None:
        self._world, self._clients, self._mix = world, clients, mix
        self._maker = Maker(random.Random(seed))
        self._url = at or world.url
        self.tally = Tally()
        self.asked = 0
        self._troubles = 0
        self.trouble = False

    def begin_trouble(self) -> None:
        """A server is about to be killed."""
        self.trouble = True
        self._troubles += 1

    def end_trouble(self) -> None:
        """It is back."""
        self.trouble = False

    async def run(self, enough: Callable[[], bool]) -> None:
        """Ask until it is enough."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._clients):
                group.create_task(self._client(enough))

    async def _client(self, enough: Callable[[], bool]) -> None:
        while not enough():
            asked = draw(self._maker, self._mix)
            self.asked += 1
            before, during = self._troubles, self.trouble
            got = await ask(self._url, CHAT, asked.raw, dict(asked.headers), asked.manners)
            killed = during or self.trouble or self._troubles != before
            self.tally.note(asked, got, killed=killed)
