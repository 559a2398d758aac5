"""Two gateways over one real store, at full size: sharing, restart, and a store that hangs and dies under load.

    python -m bench.shared_cache [--server redis|valkey] [--entries 10000] [--rate 200] [--json]

Real processes: the store, a scripted engine that answers after 20 ms, and two gateways with an encoder that needs no
model (the guard is off; wordings are the same words in another order). The load comes from this process. Every answer
is checked to be the one to its question.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

from bench.servers import KINDS, Server
from bench.shared_cache.load import Seen, ask, closed_loop, milliseconds, open_loop, reworded, wording

MODEL = "scripted"
UPSTREAM = 0.02
BUDGET = 0.05
SAMPLE = 2000
# Seconds of the load before the store hangs or dies, while it does, and after.
PHASE = 5.0
Row = tuple[str, str]


@dataclass
class Place:
    """What runs: the addresses of both gateways, and how a gateway is started."""

    session: aiohttp.ClientSession
    server: Server
    document: dict[str, Any]
    urls: list[str]
    fresh: "count[int]"

    async def state(self, url: str) -> dict[str, Any]:
        """What /ready says."""
        async with self.session.get(url + "/ready") as reply:
            found: dict[str, Any] = await reply.json()
            return found

    async def breaker(self, url: str) -> int:
        """The level of the store's breaker."""
        async with self.session.get(url + "/metrics") as reply:
            text = await reply.text()
        line = next(
            line
            for line in text.splitlines()
            if line.startswith("forebay_dependency_breaker_state{") and "store" in line
        )
        return int(float(line.rpartition(" ")[2]))

    async def finds(self, url: str, text: str) -> bool:
        """Whether a gateway would serve this wording; leaves no trace."""
        body = {"model": "small", "messages": [{"role": "user", "content": text}]}
        async with self.session.post(url + "/v1/explain", json=body) as reply:
            found: dict[str, Any] = await reply.json()
        return bool(found["cache"]["semantic"]["verdict"] == "hit")


@contextmanager
def process(*arguments: str) -> Iterator[str]:
    """A Python module as a process; the first line that it prints. Ended with SIGTERM."""
    running = subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True)  # noqa: S603  # ours
    try:
        assert running.stdout is not None  # noqa: S101  # asked for above
        line = running.stdout.readline().strip()
        if not line:
            raise OSError(f"{arguments[0]} did not start")
        yield line
    finally:
        running.terminate()
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


async def until(check: Any, within: float = 60.0) -> float:
    """Waits for an asynchronous condition; the seconds it took."""
    started = time.monotonic()
    async with asyncio.timeout(within):
        while not await check():  # noqa: ASYNC110  # the condition is another process's
            await asyncio.sleep(0.005)
    return time.monotonic() - started


async def sharing(place: Place, entries: int) -> list[Row]:
    """One gateway learns everything; the other answers it, in the same words and in others."""
    one, other = place.urls
    numbers = iter(range(entries))
    started = time.monotonic()
    stored = await closed_loop(16, numbers, lambda n: ask(place.session, one, n, wording(n)))
    spent = time.monotonic() - started
    rng = random.Random(7)
    sample = rng.sample(range(entries), min(SAMPLE, entries))
    exact = await closed_loop(8, iter(sample), lambda n: ask(place.session, other, n, wording(n)))
    semantic = await closed_loop(8, iter(sample), lambda n: ask(place.session, other, n, reworded(n, rng)))
    delays = []
    for _ in range(30):
        number = next(place.fresh)
        await ask(place.session, one, number, wording(number))
        delays.append(await until(partial(place.finds, other, reworded(number, rng))))
    return [
        ("stored by one gateway", f"{len(stored)} at {len(stored) / spent:.0f}/s"),
        ("exact hits at the other", _hits(exact, "hit-exact")),
        ("semantic hits at the other", _hits(semantic, "hit-semantic", "hit-exact")),
        ("exact hit at c=8, p50 / p99", _spread(exact)),
        ("semantic hit at c=8, p50 / p99", _spread(semantic)),
        (
            "found by meaning at the other after",
            f"p50 {sorted(delays)[15] * 1000:.0f} ms, max {max(delays) * 1000:.0f} ms",
        ),
    ]


async def restart(place: Place, stack: ExitStack, entries: int) -> list[Row]:
    """A gateway that starts anew knows what was asked before."""
    started = time.monotonic()
    url = await asyncio.to_thread(
        stack.enter_context, process("bench.shared_cache.gateway", json.dumps(place.document))
    )
    up = time.monotonic()

    async def warm() -> bool:
        return not (await place.state(url))["degraded"]

    await until(warm)
    took = time.monotonic() - up
    rng = random.Random(8)
    sample = rng.sample(range(entries), min(SAMPLE, entries))
    seen = await closed_loop(8, iter(sample), lambda n: ask(place.session, url, n, reworded(n, rng)))
    place.urls[1] = url
    return [
        ("restart: process up, then index warm", f"{up - started:.2f} s, {took:.2f} s"),
        ("semantic hits after the restart", _hits(seen, "hit-semantic", "hit-exact")),
    ]


async def hanging(place: Place, entries: int, rate: float) -> list[Row]:
    """SIGSTOP of the store under load, half of it known questions, half new ones."""
    load = asyncio.create_task(_mixed(place, entries, rate, 4 * PHASE))
    await asyncio.sleep(PHASE)
    stopped = time.monotonic()
    place.server.stop()
    opened = await until(partial(_closed, place, False))
    await asyncio.sleep(max(0.0, PHASE - opened))
    went = time.monotonic()
    place.server.go()
    closed = await until(partial(_closed, place, True))
    seen = await load
    rows: list[Row] = [
        (f"load, half known: {rate:.0f}/s, failed", f"{sum(s.status != 200 for s in seen)} of {len(seen)}")
    ]
    rows.append(("wrong answers", str(sum(s.wrong for s in seen))))
    rows += [("breaker open after SIGSTOP", f"{opened:.2f} s"), ("closed after SIGCONT", f"{closed:.2f} s")]
    phases = {"before": (0.0, stopped), "hanging": (stopped, went), "after": (went + closed, 1e18)}
    for name, (start, end) in phases.items():
        part = [s for s in seen if start <= s.at < end]
        hits = sum(s.cache.startswith("hit") for s in part)
        rows.append((f"{name}: hits, p50 / p99 / max", f"{hits / max(1, len(part)):.0%}, {_spread(part, worst=True)}"))
    limit = UPSTREAM + BUDGET + milliseconds([s for s in seen if s.at < stopped])["p99"] / 1000
    for name, (start, end) in phases.items():
        late = [s.seconds for s in seen if start <= s.at < end and s.seconds > limit]
        rows.append(
            (f"{name}: later than upstream + budget + p99 before", f"{len(late)}, worst {max(late, default=0):.3f} s")
        )
    return rows


async def dying(place: Place, entries: int, rate: float) -> list[Row]:
    """SIGKILL of the store under load, and a new empty one on its port."""
    load = asyncio.create_task(_mixed(place, entries, rate, 3 * PHASE))
    await asyncio.sleep(PHASE)
    killed = time.monotonic()
    place.server.kill()
    await asyncio.sleep(PHASE / 2)
    await asyncio.to_thread(place.server.start)
    again = time.monotonic()
    closed = await until(partial(_closed, place, True))
    seen = await load
    gone = [s for s in seen if killed + 0.1 <= s.at < again]
    back = [s for s in seen if s.at >= again + closed]
    return [
        (
            "SIGKILL: failed, wrong answers",
            f"{sum(s.status != 200 for s in seen)}, {sum(s.wrong for s in seen)} of {len(seen)}",
        ),
        ("hits while it is gone", f"{sum(s.cache.startswith('hit') for s in gone)} of {len(gone)}"),
        ("closed after the empty restart", f"{closed:.2f} s"),
        ("hits after it", f"{sum(s.cache.startswith('hit') for s in back)} of {len(back)}"),
    ]


async def _closed(place: Place, wanted: bool) -> bool:
    """Whether the breakers of both gateways are closed, or none is: an open one is half-open while it is tried."""
    return {await place.breaker(url) == 0 for url in place.urls} == {wanted}


async def _mixed(place: Place, entries: int, rate: float, seconds: float) -> list[Seen]:
    rng, turn = random.Random(9), count()

    async def one(due: float) -> Seen:
        number = next(turn)
        url = place.urls[number % 2]
        if number % 4 < 2:
            known = rng.randrange(entries)
            text = wording(known) if number % 8 < 4 else reworded(known, rng)
            return await ask(place.session, url, known, text, due)
        new = next(place.fresh)
        return await ask(place.session, url, new, wording(new), due)

    return await open_loop(rate, seconds, one)


def _hits(seen: list[Seen], *kinds: str) -> str:
    hits, wrong = sum(s.cache in kinds for s in seen), sum(s.wrong for s in seen)
    return f"{hits} of {len(seen)}, {wrong} wrong"


def _spread(seen: list[Seen], *, worst: bool = False) -> str:
    found = milliseconds(seen)
    if not found:
        return "nothing"
    shown = f"{found['p50']:.1f} / {found['p99']:.1f}"
    return f"{shown} / {found['max']:.1f} ms" if worst else f"{shown} ms"


async def run(kind: str, entries: int, rate: float) -> list[Row]:
    """The whole scenario; its rows."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        server = stack.enter_context(Server(kind, Path(folder)))
        script = json.dumps({"ttft": UPSTREAM})
        engine = stack.enter_context(process("bench.engine", "--model", MODEL, "--script", script, "--keep", "1"))
        document = {
            "gateway": {"port": 0},
            "tiers": {"small": {"model": MODEL, "urls": [json.loads(engine)["url"]]}},
            "cache": {
                "store": server.url,
                "timeout": f"{BUDGET * 1000:.0f}ms",
                "semantic": {"threshold": 0.95, "guard": False},
            },
        }
        start = ("bench.shared_cache.gateway", json.dumps(document))
        urls = [stack.enter_context(process(*start)) for _ in range(2)]
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(30)) as session:
            place = Place(session, server, document, urls, count(10_000_000))
            rows: list[Row] = []
            for name, step in (
                ("sharing", sharing(place, entries)),
                ("restart", restart(place, stack, entries)),
                ("SIGSTOP", hanging(place, entries, rate)),
                ("SIGKILL", dying(place, entries, rate)),
            ):
                print(f"shared_cache: {name}", file=sys.stderr)
                rows += await step
    return rows


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.shared_cache", description=__doc__)
    parser.add_argument("--server", choices=KINDS, default="redis")
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args()
    rows = asyncio.run(run(given.server, given.entries, given.rate))
    if given.json:
        print(json.dumps({"server": given.server, "entries": given.entries, "rate": given.rate, "rows": dict(rows)}))
        return 0
    print(f"{given.server}, {given.entries} entries")
    for name, value in rows:
        print(f"  {name:<52} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
