"""Whether `forebay_overhead_seconds` is what a client has to wait longer because of the gateway.

    python -m bench.overhead_agreement [--rounds 9] [--concurrency 4] [--json]

The same requests go through `forebay serve` and through a relay that only copies bytes (`bench.bare_relay`), in
turns, from a closed loop of clients with connections that stay open. Outside, the overhead is the median time through
the gateway less the median time through the bare relay, from which its own few microseconds are taken: both are one
more process on the way, so that what is left is what the gateway does, and not what a hop costs on this machine.
Inside, it is the median of what was observed: every request's value is in its log line as well as in the histogram,
and that the histogram has their sum is looked at too. Every round gives a ratio, and the figure is the median, for
each kind of request: `miss` (the exact cache on, no embedder, an engine that takes 20 ms), `hit` (nothing is asked of
the engine, and one at a time: outside is the whole time less that of a constant answer of the bare relay). `hop_us`
is what the bare relay costs against no relay. Takes about a minute; exits with 1 where inside and outside differ by
more than 20 %. `stream` (a miss of 32 chunks) is timed to its first content: what a client waits longer for. A machine
that does other work needs `chrt -f 10` in front of it, and even so it is late where the kernel is: what waits for a
processor is late, wherever it waits.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

import httpx
import psutil
import uvloop

from bench.overhead import AUTHORIZATION, MODEL, Run, Target, document, free_port, serving, wait_ready

# How far inside and outside may be apart, as a share of outside.
TOLERANCE = 0.2
# Within this time every line of the log has been written, in seconds.
WRITTEN = 0.3
ENGINE_TIME, SECONDS, CHUNKS = 0.02, 1.0, 32
SCRIPT = {"text": "It is the harbour, because h comes before l and m.", "ttft": ENGINE_TIME}
STREAM = {"text": "token " * CHUNKS, "ttft": ENGINE_TIME, "itl": 0.002}


@dataclass(frozen=True)
class Reading:
    """The overhead histogram of one kind of answer: how many, and their sum in seconds."""

    count: float
    total: float

    def since(self, earlier: "Reading") -> "Reading":
        """What came since."""
        return Reading(self.count - earlier.count, self.total - earlier.total)


@dataclass(frozen=True)
class Round:
    """One kind of request in one round: median overhead in seconds, from inside and from outside."""

    kind: str
    inside: float
    outside: float

    @property
    def ratio(self) -> float:
        """Inside over outside."""
        return self.inside / self.outside if self.outside > 0 else float("inf")


def reading(text: str, cache: str) -> Reading:
    """The histogram in the text of /metrics."""
    found = {"count": 0.0, "sum": 0.0}
    for line in text.splitlines():
        for part in found:
            if line.startswith(f'forebay_overhead_seconds_{part}{{cache="{cache}"}}'):
                found[part] = float(line.split()[-1])
    return Reading(found["count"], found["sum"])


def inside(lines: list[bytes], cache: str, observed: Reading) -> float:
    """The median overhead of the requests in these lines, in seconds.

    Raises ValueError where the histogram has not observed the same.
    """
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines if line.startswith(b"{")]
    values: list[float] = [
        row["overhead_ms"] / 1000 for row in rows if row["event"] == "request" and row["cache"] == cache
    ]
    # In the lines they are rounded to a millionth.
    if not values or len(values) != observed.count or abs(sum(values) - observed.total) > 1e-6 * len(values):
        raise ValueError(f"{len(values)} lines say {sum(values):.6f} s, the histogram {observed}")
    return median(values)


def waited(kind: str, run: Run) -> float:
    """How long a client waits for an answer, or for the first content of a stream: the median in seconds."""
    return median(run.first if kind == "stream" else run.whole)


def summary(rounds: list[Round]) -> dict[str, dict[str, float]]:
    """By kind: the medians over the rounds."""
    kinds = list(dict.fromkeys(one.kind for one in rounds))
    found = {}
    for kind in kinds:
        own = [one for one in rounds if one.kind == kind]
        found[kind] = {
            "inside_us": median(one.inside for one in own) * 1e6,
            "outside_us": median(one.outside for one in own) * 1e6,
            "ratio": median(one.ratio for one in own),
        }
    return found


def missed(found: dict[str, dict[str, float]]) -> list[str]:
    """The kinds whose readings differ too much, in words."""
    return [
        f"{kind}: inside is {figures['ratio']:.2f} of outside"
        for kind, figures in found.items()
        if abs(figures["ratio"] - 1) > TOLERANCE
    ]


class Client(Target):
    """A target whose requests carry a script."""

    def __init__(self, url: str, process: psutil.Process | None = None) -> None:
        super().__init__(url, process)
        self.script: dict[str, Any] = SCRIPT

    def request(self, stream: bool, fresh: bool, header: str = "") -> bytes:
        """One request's bytes; `fresh`: a prompt that was never asked."""
        text = f"Which comes first? {next(self.numbers) if fresh else 'again'}"
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 200}
        body["script"] = self.script
        if stream:
            body["stream"] = True
        raw = json.dumps(body).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: "
        return f"{head}{len(raw)}\r\n{AUTHORIZATION}{header}\r\n".encode() + raw


class Nothing(Target):
    """A constant answer of the bare relay."""

    def request(self, stream: bool, fresh: bool, header: str = "") -> bytes:
        """One request's bytes."""
        del stream, fresh, header
        return b"GET /nothing HTTP/1.1\r\nhost: bench\r\n\r\n"


class Measurement:
    """Every kind of request in turns: through the gateway, through the bare relay, and to the engine itself.

    `log` is the gateway's.
    """

    def __init__(self, engine: str, bare: str, gateway: str, log: Path, concurrency: int) -> None:
        self._direct, self._bare, self._through = Client(engine), Client(bare), Client(gateway)
        self._nothing, self._gateway, self._log, self._concurrency = Nothing(bare), gateway, log, concurrency
        self.rounds: list[Round] = []
        self.hops: list[float] = []
        self._own = 0.0

    async def run(self, rounds: int) -> None:
        """One round more than asked for: in the first everything is used for the first time."""
        async with httpx.AsyncClient(trust_env=False, timeout=10) as scraper:
            for _ in range(rounds + 1):
                await self._passed_on("miss", SCRIPT, scraper, stream=False)
                await self._passed_on("stream", STREAM, scraper, stream=True)
                await self._hit(scraper)
        del self.rounds[:3], self.hops[:2]

    async def _passed_on(self, kind: str, script: dict[str, Any], scraper: httpx.AsyncClient, *, stream: bool) -> None:
        for client in (self._direct, self._bare, self._through):
            client.script = script
        direct = await self._direct.load(self._concurrency, SECONDS, stream=stream)
        bare = await self._hop(scraper, partial(self._bare.load, self._concurrency, SECONDS, stream=stream), kind)
        self.hops.append(bare - waited(kind, direct))
        load = partial(self._through.load, self._concurrency, SECONDS, stream=stream)
        await self._gateway_does(kind, "miss", scraper, load, bare)

    async def _hit(self, scraper: httpx.AsyncClient) -> None:
        self._through.script = SCRIPT
        await self._through.load(1, 0.1, fresh=False)
        # One at a time: several that find the gateway busy would wait for each other.
        bare = await self._hop(scraper, partial(self._nothing.load, 1, SECONDS), "hit")
        load = partial(self._through.load, 1, SECONDS, fresh=False)
        await self._gateway_does("hit", "hit-exact", scraper, load, bare)

    async def _hop(self, scraper: httpx.AsyncClient, load: Callable[[], Awaitable[Run]], kind: str) -> float:
        """The median time through the bare relay, less what the relay itself does."""
        before = await self._spent(scraper)
        run = await load()
        if kind != "stream":
            self._own = (await self._spent(scraper) - before) / len(run.whole)
        # Up to the first content of a stream it does what it does for a whole answer.
        return waited(kind, run) - self._own

    async def _spent(self, scraper: httpx.AsyncClient) -> float:
        return float((await scraper.get(f"{self._bare.url}/spent")).text)

    async def _gateway_does(
        self, kind: str, cache: str, scraper: httpx.AsyncClient, load: Callable[[], Awaitable[Run]], bare: float
    ) -> None:
        """A load through the gateway, and what it says of it."""
        await asyncio.sleep(WRITTEN)
        before, at = await self._read(scraper, cache), self._log.stat().st_size
        through = await load()
        await asyncio.sleep(WRITTEN)
        observed = (await self._read(scraper, cache)).since(before)
        with self._log.open("rb") as log:
            log.seek(at)
            found = inside(log.read().splitlines(), cache, observed)
        self.rounds.append(Round(kind, found, waited(kind, through) - bare))

    async def _read(self, scraper: httpx.AsyncClient, cache: str) -> Reading:
        return reading((await scraper.get(f"{self._gateway}/metrics")).text, cache)


def run(rounds: int, concurrency: int) -> Measurement:
    """Start the engine on one core, gateway and bare relay on another, measure, and stop them."""
    cores = sorted(os.sched_getaffinity(0))
    gateway_core, load_core = cores[0], cores[-1]
    os.sched_setaffinity(0, {load_core})
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-agreement-")))
        command = [sys.executable, "-m", "bench.engine", "--model", MODEL, "--keep", "1"]
        engine = stack.enter_context(serving(command, load_core, folder / "engine.log"))
        engine_url = json.loads(cast("Any", engine.stdout).readline())["url"]
        command = [sys.executable, "-m", "bench.bare_relay", "--to", engine_url]
        bare = stack.enter_context(serving(command, gateway_core, folder / "bare.log"))
        bare_url = json.loads(cast("Any", bare.stdout).readline())["url"]
        port = free_port()
        config = folder / "forebay.json"
        config.write_text(json.dumps(document(port, engine_url)), encoding="utf-8")
        log = folder / "gateway.log"
        serve = [sys.executable, "-m", "forebay", "serve", "--config", str(config)]
        process = stack.enter_context(serving(serve, gateway_core, log))
        url = f"http://127.0.0.1:{port}"
        wait_ready(url, process, log)
        measurement = Measurement(engine_url, bare_url, url, log, concurrency)
        uvloop.run(measurement.run(rounds))
        return measurement


def main() -> int:
    """Print the figures and what differs."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.overhead_agreement",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=9, help="each takes about 7 s")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args()
    measured = run(given.rounds, given.concurrency)
    found, hop = summary(measured.rounds), median(measured.hops) * 1e6
    wrong = missed(found)
    if given.json:
        print(json.dumps({"kinds": found, "hop_us": hop, "missed": wrong}))
    else:
        for kind, figures in found.items():
            print(f"{kind:8}" + "".join(f"{name:>12} {value:10.2f}" for name, value in figures.items()))
        print(f"hop_us  {hop:22.2f}")
        for message in wrong:
            print(f"missed: {message}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
