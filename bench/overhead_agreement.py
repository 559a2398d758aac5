"""Whether `forebay_overhead_seconds` is what a client has to wait longer because of the gateway.

    python -m bench.overhead_agreement [--rounds 9] [--concurrency 4] [--json]

The same requests go through `forebay serve` and through a relay that only copies bytes (`bench.bare_relay`), in
turns, from a closed loop of clients with connections that stay open. Outside, the overhead is the mean time through
the gateway less the mean time through the bare relay: both are one more process on the way, so that what is left is
what the gateway does, and not what a hop costs on this machine. Inside, it is what the histogram's sum has grown by
over what its count has. Every round gives a ratio, and the figure is the median, for each kind of request: `miss`
(the exact cache on, no embedder, an engine that takes 20 ms), `stream` (the same as a stream of 32 chunks), `hit`
(nothing is asked of the engine, and one at a time: outside is the whole time less that of a constant answer of the
bare relay). `hop_us` is what the bare relay costs against no relay. Takes about a minute; exits with 1 where inside
and outside differ by more than 20 %. A machine that does other work needs `chrt -f 10` in front of it: what waits for
a processor is late, wherever it waits.
"""

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, cast

import httpx
import psutil
import uvloop

from bench.overhead import MODEL, Target, document, free_port, serving, wait_ready

# How far inside and outside may be apart, as a share of outside.
TOLERANCE = 0.2
ENGINE_TIME, SECONDS, CHUNKS = 0.02, 1.0, 32
SCRIPT = {"text": "It is the harbour, because h comes before l and m.", "ttft": ENGINE_TIME}
STREAM = {"text": "token " * CHUNKS, "ttft": ENGINE_TIME, "itl": 0.002}


@dataclass(frozen=True)
class Reading:
    """The overhead histogram of one kind of answer: how many, and their sum in seconds."""

    count: float
    total: float

    def since(self, earlier: "Reading") -> float:
        """Mean overhead of what came since, in seconds. Raises ValueError where nothing came."""
        if self.count <= earlier.count:
            raise ValueError("no request was counted")
        return (self.total - earlier.total) / (self.count - earlier.count)


@dataclass(frozen=True)
class Round:
    """One kind of request in one round: mean overhead in seconds, from inside and from outside."""

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
        return f"{head}{len(raw)}\r\n{header}\r\n".encode() + raw


class Nothing(Target):
    """A constant answer of the bare relay."""

    def request(self, stream: bool, fresh: bool, header: str = "") -> bytes:
        """One request's bytes."""
        del stream, fresh, header
        return b"GET /nothing HTTP/1.1\r\nhost: bench\r\n\r\n"


class Measurement:
    """Every kind of request in turns: through the gateway, through the bare relay, and to the engine itself."""

    def __init__(self, engine: str, bare: str, gateway: str, concurrency: int) -> None:
        self._direct, self._bare, self._through = Client(engine), Client(bare), Client(gateway)
        self._nothing, self._gateway, self._concurrency = Nothing(bare), gateway, concurrency
        self.rounds: list[Round] = []
        self.hops: list[float] = []

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
        bare = await self._bare.load(self._concurrency, SECONDS, stream=stream)
        before = await self._read(scraper, "miss")
        through = await self._through.load(self._concurrency, SECONDS, stream=stream)
        inside = (await self._read(scraper, "miss")).since(before)
        self.hops.append(mean(bare.whole) - mean(direct.whole))
        self.rounds.append(Round(kind, inside, mean(through.whole) - mean(bare.whole)))

    async def _hit(self, scraper: httpx.AsyncClient) -> None:
        self._through.script = SCRIPT
        await self._through.load(1, 0.1, fresh=False)
        # One at a time: several that find the gateway busy would wait for each other.
        bare = await self._nothing.load(1, SECONDS)
        before = await self._read(scraper, "hit-exact")
        through = await self._through.load(1, SECONDS, fresh=False)
        inside = (await self._read(scraper, "hit-exact")).since(before)
        self.rounds.append(Round("hit", inside, mean(through.whole) - mean(bare.whole)))

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
        measurement = Measurement(engine_url, bare_url, url, concurrency)
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
