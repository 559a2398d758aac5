"""Five times the load that a tier can carry: goodput, fairness, waits and refusals, measured from outside.

    python -m bench.overload [--rounds 2] [--json]

One gateway in front of one scripted engine; the load is open loop, Poisson, from three tenants of weights 3, 2 and 1 in
two priorities. The lightest weight sends the most and the longest answers. Every round measures goodput at capacity,
above it and in the overload, so that a noisy machine is noisy for all of them; the peak is the best mean of a load.
Takes about 90 s; exits with 1 where a figure is missed.

Goodput counts answers whose queue wait kept their deadline (high priority) or `max_wait`. Fairness is Jain's index of
tokens over weight within one priority, of what was served while the load lasted. A `Retry-After` is right where it is
within a factor of two, or one second, of what the five requests of its tenant and priority that were admitted around
then have waited; only refusals whose time passed while the load lasted can be judged.
"""

import argparse
import asyncio
import hashlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import mean
from typing import Any, Literal, cast

import aiohttp
import httpx
import psutil
import uvloop

from bench.overhead import free_port, serving

MODEL = "scripted"
# So many requests run at one time in the engine, and as many may be inside the tier.
PLACES = 12
WAITING = 30
MAX_WAIT = 10.0
DEADLINE = 1.0
TOKEN_TIME = 0.06
OVERLOAD = 5.0
# The loads of a round, and for how many seconds each.
ROUND = ((1.0, 9.0), (1.5, 9.0), (OVERLOAD, 17.0))
# Least share of refusals whose Retry-After must be right: when the machine itself stands still for a moment, what was
# told before cannot be. On one with five times more to do than it has cores, 0.998 to 0.999 were.
RIGHT = 0.995
# In the first seconds the queue fills.
SETTLING = 2.0
# Of the capacity, what comes in high priority, in proportion to the weights.
URGENT = 0.5

Priority = Literal["high", "normal"]


@dataclass(frozen=True)
class Tenant:
    """Who asks: `share` is that of the normal load, `tokens` the length of an answer."""

    name: str
    weight: int
    share: float
    tokens: int


TENANTS = (Tenant("gold", 3, 0.2, 8), Tenant("silver", 2, 0.2, 12), Tenant("bronze", 1, 0.6, 24))


@dataclass(frozen=True)
class Outcome:
    """One request. Seconds since the phase began; `wait` in the queue; `tokens` that it took."""

    tenant: Tenant
    priority: Priority
    arrived: float
    ended: float
    status: int
    wait: float
    tokens: int
    retry_after: float | None
    reason: str | None

    @property
    def good(self) -> bool:
        """Served in time."""
        return self.status == 200 and self.wait <= (DEADLINE if self.priority == "high" else MAX_WAIT)


@dataclass(frozen=True)
class Phase:
    """What came of one load: a multiple of the capacity, for so many seconds."""

    load: float
    seconds: float
    outcomes: Sequence[Outcome]
    cpu: float

    @property
    def goodput(self) -> float:
        """Output tokens per second of answers in time that ended while the load lasted."""
        good = [one for one in self.settled if one.good]
        return sum(one.tenant.tokens for one in good) / (self.seconds - SETTLING)

    @property
    def settled(self) -> list[Outcome]:
        """What ended while the load lasted, but for the first seconds."""
        return [one for one in self.outcomes if SETTLING <= one.ended <= self.seconds]


class Load:
    """Sends requests to a gateway and notes what comes back."""

    def __init__(self, url: str, session: aiohttp.ClientSession, gateway: psutil.Process, seed: int) -> None:
        self._url, self._session, self._gateway = url, session, gateway
        self._random, self._numbers = random.Random(seed), count()

    async def phase(self, load: float, seconds: float) -> Phase:
        """One load, and the end of everything that it began."""
        arrivals = sorted(self._arrivals(load, seconds), key=lambda arrival: arrival[0])
        tasks: list[asyncio.Task[Outcome]] = []
        cpu, began = sum(self._gateway.cpu_times()[:2]), time.perf_counter()
        for at, tenant, priority in arrivals:
            left = at - (time.perf_counter() - began)
            if left > 0:
                await asyncio.sleep(left)
            tasks.append(asyncio.create_task(self._ask(tenant, priority, began)))
        outcomes = await asyncio.gather(*tasks)
        return Phase(load, seconds, outcomes, sum(self._gateway.cpu_times()[:2]) - cpu)

    def _arrivals(self, load: float, seconds: float) -> Iterator[tuple[float, Tenant, Priority]]:
        """Poisson streams, one per tenant and priority. Loads are in tokens, as a token takes its time anywhere."""
        capacity = PLACES / TOKEN_TIME
        weights = sum(tenant.weight for tenant in TENANTS)
        for tenant in TENANTS:
            urgent = URGENT * tenant.weight / weights
            normal = (load - URGENT) * tenant.share
            for priority, part in (("high", urgent), ("normal", normal)):
                at = self._random.expovariate(rate := part * capacity / tenant.tokens)
                while at < seconds:
                    yield at, tenant, cast("Priority", priority)
                    at += self._random.expovariate(rate)

    async def _ask(self, tenant: Tenant, priority: Priority, began: float) -> Outcome:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"Question {next(self._numbers)}"}],
            "max_tokens": 2 * tenant.tokens,
            "script": {"tokens": tenant.tokens, "itl": TOKEN_TIME},
        }
        headers = {"authorization": f"Bearer {tenant.name}", "x-forebay-debug": "1", "x-forebay-priority": priority}
        if priority == "high":
            headers["x-forebay-deadline-ms"] = f"{DEADLINE * 1000:.0f}"
        arrived = time.perf_counter() - began
        async with self._session.post(f"{self._url}/v1/chat/completions", json=body, headers=headers) as answer:
            value: Any = await answer.json()
        after = answer.headers.get("retry-after")
        return Outcome(
            tenant=tenant,
            priority=priority,
            arrived=arrived,
            ended=time.perf_counter() - began,
            status=answer.status,
            wait=float(answer.headers.get("x-forebay-queue-ms", 0)) / 1000,
            tokens=value["usage"]["total_tokens"] if answer.status == 200 else 0,
            retry_after=None if after is None else float(after),
            reason=answer.headers.get("x-forebay-reason"),
        )


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index: 1 where all are equal, 1/n where one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values)) if any(values) else 0.0


def fairness(storms: Sequence[Phase], priority: Priority) -> float:
    """Jain's index of tokens over weight."""
    served: Counter[str] = Counter()
    for one in (one for storm in storms for one in storm.settled):
        if one.status == 200 and one.priority == priority:
            served[one.tenant.name] += one.tokens
    return jain([served[tenant.name] / tenant.weight for tenant in TENANTS])


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed."""
    return sorted(values)[max(0, -(-int(share * 100 * len(values)) // 100) - 1)] if values else 0.0


def right_times(storms: Sequence[Phase]) -> float:
    """The share of refusals whose Retry-After is right."""
    refused = [(one, storm) for storm in storms for one in storm.outcomes if one.status == 429]
    found = [right for one, storm in refused if (right := _right(one, storm)) is not None]
    return sum(found) / len(found) if found else 1.0


def _right(one: Outcome, phase: Phase) -> bool | None:
    """None where it cannot be told: nobody like it was served, or the load ended before."""
    if one.retry_after is None:
        return False
    peers = [
        other
        for other in phase.outcomes
        if other.status == 200 and other.tenant is one.tenant and other.priority == one.priority
    ]
    # The time at which it was refused is the one to compare with: it may have waited before.
    near = [other.wait for other in sorted(peers, key=lambda other: abs(other.arrived - one.ended))[:5]]
    if not near or one.ended + max(*near, one.retry_after) > phase.seconds:
        return None
    low, high = min(near), max(near)
    return min(low - 1, low / 2) <= one.retry_after <= max(high + 1, 2 * high)


def figures(phases: Sequence[Phase]) -> dict[str, float]:
    """Everything that is measured."""
    goodput = {load: mean(phase.goodput for phase in phases if phase.load == load) for load, _ in ROUND}
    storms = [phase for phase in phases if phase.load == OVERLOAD]
    outcomes = [one for storm in storms for one in storm.outcomes]
    high = [one for one in outcomes if one.priority == "high"]
    refused = [one for one in outcomes if one.status == 429]
    at_once = [one.ended - one.arrived for one in refused if one.wait == 0]
    return {
        **{f"goodput_{load:g}x_tok_s": value for load, value in goodput.items()},
        "goodput_ratio": goodput[OVERLOAD] / max(goodput.values()),
        "fairness_high": fairness(storms, "high"),
        "fairness_normal": fairness(storms, "normal"),
        "high_wait_p99_s": percentile([one.wait for one in high], 0.99),
        "high_served_share": sum(one.status == 200 for one in high) / len(high),
        "requests": len(outcomes),
        "refused": len(refused),
        "other_statuses": sum(one.status not in (200, 429) for one in outcomes),
        "retry_after_right_share": right_times(storms),
        "refusal_p50_ms": percentile(at_once, 0.5) * 1000,
        "gateway_cpu_ms_per_request": sum(storm.cpu for storm in storms) / len(outcomes) * 1000,
    }


def missed(found: dict[str, float]) -> list[str]:
    """The targets that are not met, in words."""
    checks = (
        (found["goodput_ratio"] >= 0.9, "goodput_ratio is below 0.9"),
        (found["fairness_high"] >= 0.95, "fairness_high is below 0.95"),
        (found["fairness_normal"] >= 0.95, "fairness_normal is below 0.95"),
        (found["high_wait_p99_s"] <= DEADLINE, f"high_wait_p99_s is above the deadline of {DEADLINE:g} s"),
        (found["other_statuses"] == 0, "there were answers that are neither 200 nor 429"),
        (found["retry_after_right_share"] >= RIGHT, f"retry_after_right_share is below {RIGHT:g}"),
    )
    return [message for met, message in checks if not met]


def document(engine_url: str, port: int) -> dict[str, Any]:
    """The gateway's configuration. A key is its tenant's name."""
    keys = [
        {
            "name": tenant.name,
            "tenant": tenant.name,
            "sha256": hashlib.sha256(tenant.name.encode()).hexdigest(),
            "priority": "high",
            "weight": tenant.weight,
        }
        for tenant in TENANTS
    ]
    queue = {"max_inflight": PLACES, "max_waiting": WAITING, "max_wait": f"{MAX_WAIT:g}s"}
    return {
        "gateway": {"port": port},
        "auth": {"keys": keys},
        "cache": {"exact": {"enabled": False}, "semantic": {"enabled": False}},
        "tiers": {"small": {"model": MODEL, "urls": [engine_url], "queue": queue}},
    }


async def measure(url: str, gateway: psutil.Process, rounds: int) -> dict[str, float]:
    """Every load of every round, and what they say."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
        load = Load(url, session, gateway, seed=11)
        await load.phase(1.0, 3.0)
        return figures([await load.phase(level, seconds) for _ in range(rounds) for level, seconds in ROUND])


def run(rounds: int) -> dict[str, float]:
    """Start engine and gateway, measure, and stop both."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-overload-")))
        command = [sys.executable, "-m", "bench.engine", "--model", MODEL, "--max-running", str(PLACES), "--keep", "1"]
        engine = stack.enter_context(serving(command, None, folder / "engine.log"))
        engine_url = json.loads(cast("Any", engine.stdout).readline())["url"]
        port = free_port()
        config = folder / "forebay.json"
        config.write_text(json.dumps(document(engine_url, port)), encoding="utf-8")
        log = folder / "gateway.log"
        serve = [sys.executable, "-m", "forebay", "serve", "--config"]
        process = stack.enter_context(serving([*serve, str(config)], None, log))
        url = f"http://127.0.0.1:{port}"
        wait_ready(url)
        return uvloop.run(measure(url, psutil.Process(process.pid), rounds))


def wait_ready(url: str) -> None:
    """Wait until the gateway has found its tier. Raises httpx.HTTPError where it does not come up."""
    for left in range(300, 0, -1):
        try:
            httpx.get(f"{url}/ready", timeout=2).raise_for_status()
        except httpx.HTTPError:
            if left == 1:
                raise
            time.sleep(0.1)
        else:
            return


def main() -> int:
    """Print the figures and what they miss."""
    parser = argparse.ArgumentParser(prog="python -m bench.overload", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="each takes about 40 s")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args()
    found = run(given.rounds)
    wrong = missed(found)
    if given.json:
        print(json.dumps({**found, "missed": wrong}))
    else:
        for name, value in found.items():
            print(f"{name:28} {value:10.3f}")
        for message in wrong:
            print(f"missed: {message}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
