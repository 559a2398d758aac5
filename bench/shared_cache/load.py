"""Questions with a known answer, asked at a fixed rate whatever comes back, and what came back."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from statistics import quantiles

import aiohttp

CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Seen:
    """One request: when it was due (monotonic seconds), how long it took from then, and what came of it.

    `wrong`: the answer is not that of the question.
    """

    at: float
    seconds: float
    status: int
    cache: str
    wrong: bool


def wording(number: int) -> str:
    """A question; all are far from each other. The scripted engine repeats its eight words in the answer."""
    return f"which part{number} of machine{number * 31} drives hall{number * 7} and plant{number % 97}"


def reworded(number: int, rng: random.Random) -> str:
    """The same words in another order."""
    words = wording(number).split()
    rng.shuffle(words)
    return " ".join(words)


def answers(text: str, number: int) -> bool:
    """Whether this is the engine's answer to that question, in whatever wording."""
    return f"part{number}" in text.replace("”", " ").replace("“", " ").replace(":", " ").split()


async def ask(session: aiohttp.ClientSession, url: str, number: int, text: str, due: float | None = None) -> Seen:
    """One question; its answer must be that to `number`."""
    due = time.monotonic() if due is None else due
    body = {"model": "small", "messages": [{"role": "user", "content": text}]}
    try:
        async with session.post(url + CHAT, json=body) as reply:
            answer = await reply.json()
            good = reply.status == 200
            wrong = good and not answers(answer["choices"][0]["message"]["content"], number)
            return Seen(due, time.monotonic() - due, reply.status, reply.headers.get("x-forebay-cache", ""), wrong)
    except (aiohttp.ClientError, TimeoutError, KeyError):
        return Seen(due, time.monotonic() - due, 0, "", wrong=False)


async def open_loop(rate: float, seconds: float, one: Callable[[float], Awaitable[Seen]]) -> list[Seen]:
    """Starts a request every 1/rate seconds, on time, and waits for all of them."""
    started = time.monotonic()
    running = []
    for count in range(int(rate * seconds)):
        due = started + count / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        running.append(asyncio.ensure_future(one(due)))
    return list(await asyncio.gather(*running))


async def closed_loop(workers: int, numbers: Iterator[int], one: Callable[[int], Awaitable[Seen]]) -> list[Seen]:
    """Asks every number once, so many at a time."""
    seen: list[Seen] = []

    async def work() -> None:
        seen.extend([await one(number) for number in numbers])

    await asyncio.gather(*(work() for _ in range(workers)))
    return seen


def milliseconds(seen: list[Seen]) -> dict[str, float]:
    """Percentiles of the durations."""
    values = sorted(one.seconds * 1000 for one in seen)
    if len(values) < 2:
        return {"p50": values[0], "p99": values[0], "max": values[0]} if values else {}
    cuts = quantiles(values, n=100, method="inclusive")
    return {"p50": cuts[49], "p99": cuts[98], "max": values[-1]}
