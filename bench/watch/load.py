"""A mixed load: questions asked again and in other words, easy and hard ones, streams, limits, feedback, faults."""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import httpx

from bench.questions import EASY_AND_HARD, PARAPHRASES, TRAPS
from bench.watch.world import SECRET

CHAT = "/v1/chat/completions"
# Seconds after which everything is asked under another system prompt, so that caches begin anew.
ROUND = 20.0
# Kinds of request and how many in a hundred. A long prompt takes the engine this long before its first token.
USUAL = {
    "first": 34,
    "reworded": 16,
    "trap": 6,
    "easy": 15,
    "unsure": 3,
    "hard": 14,
    "frontier": 5,
    "off": 3,
    "cut": 2,
    "text": 2,
}
FAULTS = {"fails": 1, "limited": 8, "hurried": 2}
LONG = {"long": 14}
FIELDS: dict[str, dict[str, Any]] = {
    "frontier": {"model": "frontier"},
    "cut": {"max_tokens": 2},
    # A small model that is not sure, so that the cascade has something to do.
    "unsure": {"script": {"logprob": -2.0, "text": "Perhaps it is."}},
    "fails": {"model": "small", "script": {"status": 500}},
}
HEADERS = {
    "off": {"x-forebay-cache": "off"},
    "hurried": {"x-forebay-deadline-ms": "1"},
    "trap": {"x-forebay-priority": "low"},
}
# Questions that a tour asks in both wordings.
TOURED = 6
LONG_WORDS, LONG_TTFT = 4000, 2.5


@dataclass(frozen=True)
class Mix:
    """How much of what: requests per second, faults and limits or none, and whether one tenant sends long prompts."""

    rate: float
    faults: bool = False
    long_prompts: bool = False

    @property
    def kinds(self) -> dict[str, int]:
        """Weights by kind."""
        return USUAL | (FAULTS if self.faults else {}) | (LONG if self.long_prompts else {})


class Load:
    """Open loop, Poisson. `seen`: answers by status."""

    def __init__(self, url: str, mix: Mix, seed: int = 0) -> None:
        self._mix, self._random = mix, random.Random(seed)
        limits = httpx.Limits(max_connections=500, max_keepalive_connections=100)
        self._client = httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False, limits=limits)  # noqa: S501  # plain
        self.seen: Counter[int] = Counter()
        self._number = 0

    async def run(self, seconds: float) -> None:
        """Send, and wait for the last answer."""
        kinds, began = self._mix.kinds, time.monotonic()
        async with self._client:
            await self._tour("first tour")
            async with asyncio.TaskGroup() as group:
                while (elapsed := time.monotonic() - began) < seconds:
                    kind = self._random.choices(list(kinds), list(kinds.values()))[0]
                    group.create_task(self._one(kind, f"round {int(elapsed / ROUND)}"))
                    await asyncio.sleep(self._random.expovariate(self._mix.rate))
            await self._tour("last tour")

    async def _tour(self, turn: str) -> None:
        """Everything once, one after the other, so that nothing is left to chance."""
        for pair in PARAPHRASES[:TOURED]:
            for text in pair:
                await self._one("first", turn, text, judged=True)
        for kind in self._mix.kinds:
            await self._one(kind, turn, judged=True)

    async def _one(self, kind: str, turn: str, text: str | None = None, *, judged: bool = False) -> None:
        self._number += 1
        request_id = f"watch-{self._number}"
        body, headers = self._asked(kind, turn, text)
        tenant = {"long": "batch", "limited": "lab"}.get(kind) or self._random.choice(("shop", "desk"))
        headers |= {"authorization": f"Bearer {SECRET.format(tenant=tenant)}", "x-request-id": request_id}
        answer = await self._client.post("/v1/completions" if kind == "text" else CHAT, json=body, headers=headers)
        self.seen[answer.status_code] += 1
        if answer.status_code == 200 and (judged or self._random.random() < 0.2):
            opinion = {"request_id": request_id, "score": self._random.choice((1.0, 1.0, 1.0, 0.0))}
            await self._client.post("/v1/feedback", json=opinion, headers={"authorization": headers["authorization"]})

    def _asked(self, kind: str, turn: str, said: str | None) -> tuple[dict[str, Any], dict[str, str]]:
        body: dict[str, Any] = {"model": "auto", "stream": self._random.random() < 0.6, "temperature": 0}
        headers: dict[str, str] = {}
        pick = self._random.choice
        match kind:
            case "first" | "reworded":
                text = pick(PARAPHRASES)[kind == "reworded"]
            case "trap":
                text = pick(pick(TRAPS))
            case "easy" | "unsure" | "hard":
                text = f"{pick(EASY_AND_HARD)[kind == 'hard']} ({self._random.randrange(30)})"
            case "long":
                body |= {"model": "small", "script": {"ttft": LONG_TTFT}}
                text = " ".join(f"{pick(('river', 'weir', 'gate', 'pool'))}{n}" for n in range(LONG_WORDS))
            case "text":
                return {"model": "small", "prompt": f"A weir is {self._number}", "max_tokens": 8}, headers
            case _:
                text = f"What is lock number {self._number}?"
        body |= FIELDS.get(kind, {})
        headers |= HEADERS.get(kind, {})
        system = {"role": "system", "content": f"You answer briefly. ({turn})"}
        body["messages"] = [system, {"role": "user", "content": said or text}]
        return body, headers
