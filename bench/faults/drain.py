"""SIGTERM while streams run: `/ready` falls first, every stream ends whole, and the process ends by itself."""

import asyncio
import random
import signal
from typing import Any

import httpx

from bench.faults.cases import CHAT, Ask, Maker
from bench.faults.load import Tally
from bench.faults.wire import Answer, ask
from bench.faults.world import World

# So long after the signal `/ready` must have fallen, in seconds, on a machine that does other things as well.
FALLS = 2.0
# Tokens of a stream, and seconds between two of them: it outlasts the signal by far.
TOKENS, PACE = 30, 0.2


async def drain(world: World, streams: int) -> tuple[Tally, dict[str, Any]]:
    """Start so many streams, send SIGTERM once all run, and see what becomes of them and of the process."""
    maker, tally = Maker(random.Random(7)), Tally()
    asks = [_stream(maker) for _ in range(streams)]
    tasks = [asyncio.create_task(ask(world.url, CHAT, one.raw, dict(one.headers))) for one in asks]
    await _all_running(world, streams)
    loop = asyncio.get_running_loop()
    # A connection that is open already, as a probe may have: it is answered all the same.
    async with httpx.AsyncClient(base_url=world.url, timeout=10, trust_env=False, verify=False) as probe:  # noqa: S501
        (await probe.get("/ready")).raise_for_status()
        told = loop.time()
        world.gateway.send(signal.SIGTERM)
        fell = await _falls(probe, told)
        unfinished = sum(not task.done() for task in tasks)
        late = await ask(world.url, CHAT, asks[0].raw, dict(asks[0].headers))
        health = (await probe.get("/health")).status_code
    answers: list[Answer] = await asyncio.gather(*tasks)
    for one, got in zip(asks, answers, strict=True):
        tally.note(one, got, killed=False)
    code = await asyncio.to_thread(world.gateway.wait, 30)
    return tally, {
        "streams": streams,
        "broken": tally.bad.total(),
        "running_when_ready_fell": unfinished,
        "ready_fell_s": fell,
        "health_while_draining": health,
        "late_request": [late.status, late.headers.get("x-forebay-reason")],
        "exit_code": code,
        "ended_s": loop.time() - told,
    }


def missed(found: dict[str, Any]) -> list[str]:
    """What is not as it should be, in words."""
    checks = (
        (found["broken"] == 0, "streams were broken by SIGTERM"),
        (found["running_when_ready_fell"] == found["streams"], "streams had ended before /ready fell"),
        (found["ready_fell_s"] is not None, f"/ready did not fall within {FALLS:g} s of SIGTERM"),
        (found["health_while_draining"] == 200, "/health was not 200 while draining"),
        (found["late_request"] == [503, "draining"], "a late request was not refused with 503 draining"),
        (found["exit_code"] == 0, "the gateway did not end with exit code 0"),
    )
    return [message for met, message in checks if not met]


def _stream(maker: Maker) -> Ask:
    text = " ".join(f"word{number}" for number in range(TOKENS))
    return maker.ask("drain", {"text": text, "itl": PACE}, "whole", stream=True, text=text, limit=30.0)


async def _all_running(world: World, streams: int) -> None:
    async with asyncio.timeout(30):
        while (await world.gauges())["engine_running"] < streams:  # noqa: ASYNC110  # it is in another process
            await asyncio.sleep(0.02)


async def _falls(probe: httpx.AsyncClient, told: float) -> float | None:
    """Seconds from the signal to the first `/ready` that is not 200."""
    loop = asyncio.get_running_loop()
    while loop.time() - told < FALLS:
        if (await probe.get("/ready")).status_code == 503:
            return loop.time() - told
        await asyncio.sleep(0.005)
    return None
