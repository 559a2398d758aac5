"""What the gateway costs: the same load on the scripted engine directly and through `forebay serve`, in turns.

    python -m bench.overhead [--rounds 5] [--json] \\
        [--peer 'vllm-router=vllm-router --port {port} --worker-urls {engine} --log-level error']

The gateway and the peers have one core, the engine and the load share another. Every round runs every measurement once,
so that a noisy machine is noisy for all of them; the figures are medians over the rounds. `rps_core` comes from the CPU
time of the relay's processes, not from the clock. Every request has a key, which the gateway checks, and the peers
that can. The exact cache is on and misses (every prompt is new), the tier is asked for by name, and there is no
embedder. `uncached`: the same with the cache off for the request. `again`: the same request repeated, an exact hit
here.
"""

import argparse
import asyncio
import hashlib
import json
import os
import random
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, cast

import httptools
import httpx
import psutil
import uvloop

from bench.load.repeats import interval

MODEL = "scripted"
# Of a client of the gateway and of the peers, for as long as they are measured.
KEY = "sk-forebay-bench-overhead-0123456789abcdef"
AUTHORIZATION = f"authorization: Bearer {KEY}\r\n"
CONCURRENCY = 32
STREAMS = 16
CHUNKS = 64
# About 500 bytes of request and of answer; 64 chunks of about 215 bytes, 5 ms apart.
QUESTION = "Which of these words comes first in the alphabet, and why? " + "harbour lantern meadow " * 14
ANSWER = "It is the harbour, because h comes before l and m."
SCRIPT = {"text": ANSWER}
UNCACHED = "x-forebay-cache: off\r\n"
STREAM = {"text": "token " * CHUNKS, "itl": 0.005}


class Answers(asyncio.Protocol):
    """One keep-alive connection: a request at a time, its answer read to the end and thrown away."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._done: asyncio.Future[None] | None = None
        self.first_at = 0.0
        self.status = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        self._parser.feed_data(data)

    def on_body(self, _: bytes) -> None:
        """A part of the body."""
        self.first_at = self.first_at or time.perf_counter()

    def on_message_complete(self) -> None:
        """The answer is complete."""
        self.status = self._parser.get_status_code()
        if self._done is not None:
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone; a request on it fails."""
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionError("closed before the answer was complete"))

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    async def ask(self, request: bytes) -> tuple[float, float]:
        """Seconds to the first byte of the body, and to the end of the answer. Raises where it is not a 200."""
        self._parser, self.first_at = httptools.HttpResponseParser(self), 0.0
        self._done = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        cast("asyncio.Transport", self._transport).write(request)
        await self._done
        if self.status != 200:
            raise RuntimeError(f"status {self.status}")
        return self.first_at - began, time.perf_counter() - began


@dataclass
class Run:
    """One measurement of one target. Times in seconds; `cpu`: of the gateway's process, 0 for the engine alone."""

    first: list[float]
    whole: list[float]
    seconds: float
    cpu: float

    @property
    def cpu_each(self) -> float:
        """Gateway CPU per request."""
        return self.cpu / len(self.whole)


@dataclass
class Target:
    """Where the load goes, and whose CPU it costs."""

    url: str
    process: psutil.Process | None = None
    numbers: Iterator[int] = field(default_factory=count)

    def request(self, stream: bool, fresh: bool, header: str = "") -> bytes:
        """One request's bytes; `fresh`: a prompt that was never asked. `header`: a further one, with its line end."""
        text = f"{QUESTION}{next(self.numbers) if fresh else 'again'}"
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 200}
        if stream:
            body |= {"stream": True, "script": STREAM}
        raw = json.dumps(body).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: "
        return f"{head}{len(raw)}\r\n{AUTHORIZATION}{header}\r\n".encode() + raw

    async def load(
        self, concurrency: int, seconds: float, *, stream: bool = False, fresh: bool = True, header: str = ""
    ) -> Run:
        """A closed loop of `concurrency` connections for so long."""
        host, _, port = self.url.removeprefix("http://").partition(":")
        loop = asyncio.get_running_loop()
        lines = [(await loop.create_connection(Answers, host, int(port)))[1] for _ in range(concurrency)]
        run = Run([], [], 0.0, 0.0)
        before, began = self._cpu(), time.perf_counter()

        async def user(line: Answers) -> None:
            while time.perf_counter() - began < seconds:
                first, whole = await line.ask(self.request(stream, fresh, header))
                run.first.append(first)
                run.whole.append(whole)

        await asyncio.gather(*(user(line) for line in lines))
        run.seconds, run.cpu = time.perf_counter() - began, self._cpu() - before
        for line in lines:
            line.close()
        return run

    def rss(self) -> float:
        """Resident memory of the process and what is below it, MB."""
        return sum(process.memory_info().rss for process in self._processes()) / 1e6

    def _cpu(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self._processes())

    def _processes(self) -> list[psutil.Process]:
        return [] if self.process is None else [self.process, *self.process.children(recursive=True)]


Figures = dict[str, dict[str, float]]


async def measure(direct: Target, relays: dict[str, Target], rounds: int) -> list[Figures]:
    """The figures of every relay in every round; the relays take turns, in an order drawn anew each round."""
    for target in (direct, *relays.values()):
        await target.load(CONCURRENCY, 0.5)
    found = []
    order, shuffle = list(relays), random.Random(0)  # an order, not a secret
    for _ in range(rounds):
        shuffle.shuffle(order)
        alone, plain = await direct.load(1, 1.0), await direct.load(CONCURRENCY, 1.5)
        flow = await direct.load(STREAMS, 1.0, stream=True)
        found.append({name: await one(relays[name], alone, plain, flow) for name in order})
    return found


async def one(target: Target, alone: Run, plain: Run, flow: Run) -> dict[str, float]:
    """One relay in one round, against the engine asked directly: alone, under load, streaming."""
    through, relay = await target.load(1, 1.0), await target.load(CONCURRENCY, 1.5)
    uncached = await target.load(CONCURRENCY, 1.5, header=UNCACHED)
    hit = await target.load(CONCURRENCY, 1.5, fresh=False)
    streams = await target.load(STREAMS, 1.0, stream=True)
    return {
        "relay_cpu_us": relay.cpu_each * 1e6,
        "relay_rps_core": 1 / relay.cpu_each,
        "uncached_cpu_us": uncached.cpu_each * 1e6,
        "uncached_rps_core": 1 / uncached.cpu_each,
        "relay_rps": len(relay.whole) / relay.seconds,
        "direct_rps": len(plain.whole) / plain.seconds,
        "again_cpu_us": hit.cpu_each * 1e6,
        "again_rps_core": 1 / hit.cpu_each,
        "again_over_relay": relay.cpu_each / hit.cpu_each,
        "direct_p50_ms": median(alone.whole) * 1e3,
        "added_p50_ms": (median(through.whole) - median(alone.whole)) * 1e3,
        "chunk_cpu_us": (streams.cpu_each - relay.cpu_each) / CHUNKS * 1e6,
        "added_ttft_ms": (median(streams.first) - median(flow.first)) * 1e3,
        "rss_mb": target.rss(),
    }


@contextmanager
def serving(command: list[str], core: int | None, log: Path) -> Iterator[subprocess.Popen[str]]:
    """A process on one core, or on any, ended with SIGTERM. Its stderr goes to `log`."""
    with log.open("wb") as err:
        process = subprocess.Popen(  # noqa: S603  # our own commands, and those the user named
            command if core is None else ["taskset", "-c", str(core), *command],
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            env=os.environ | {"RAYON_NUM_THREADS": "1"},
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(15)
        if process.stdout is not None:
            process.stdout.close()


def wait_ready(url: str, process: "subprocess.Popen[str]", log: Path) -> None:
    """Wait until completions are answered. Raises RuntimeError with what the process wrote."""
    deadline = time.monotonic() + 180
    body = {"model": MODEL, "messages": [{"role": "user", "content": "ready?"}]}
    headers = {"authorization": f"Bearer {KEY}"}
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise RuntimeError(log.read_text(encoding="utf-8", errors="replace")[-2000:])


def run(rounds: int, peers: dict[str, str]) -> list[Figures]:
    """Start engine, gateway and peers, measure, and stop them."""
    cores = sorted(os.sched_getaffinity(0))
    gateway_core, load_core = cores[0], cores[-1]
    os.sched_setaffinity(0, {load_core})
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-overhead-")))
        command = ["bench.engine", "--model", MODEL, "--script", json.dumps(SCRIPT), "--keep", "1"]
        command = [sys.executable, "-m", *command]
        engine = stack.enter_context(serving(command, load_core, folder / "engine.log"))
        engine_url = json.loads(cast("Any", engine.stdout).readline())["url"]
        config = folder / "forebay.json"
        ours = f"{sys.executable} -m forebay serve --config {config}"
        relays: dict[str, Target] = {}
        for name, text in {"forebay": ours, **peers}.items():
            port, log = free_port(), folder / f"{name}.log"
            if name == "forebay":
                config.write_text(json.dumps(document(port, engine_url)), encoding="utf-8")
            words = [word.format(port=port, engine=engine_url) for word in shlex.split(text)]
            process = stack.enter_context(serving(words, gateway_core, log))
            url = f"http://127.0.0.1:{port}"
            wait_ready(url, process, log)
            relays[name] = Target(url, psutil.Process(process.pid))
        return uvloop.run(measure(Target(engine_url), relays, rounds))


def document(port: int, engine: str) -> dict[str, Any]:
    """The gateway's configuration: one key, the exact cache on, no embedder."""
    return {
        "gateway": {"port": port},
        "auth": {"keys": [{"name": "bench", "tenant": "bench", "sha256": hashlib.sha256(KEY.encode()).hexdigest()}]},
        "cache": {"semantic": {"enabled": False}},
        "tiers": {"small": {"model": MODEL, "urls": [engine]}},
    }


def free_port() -> int:
    """A TCP port that is free at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def main() -> None:
    """Print a table, or one JSON document."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.overhead", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="each takes about 10 s, and 6 s more per peer")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=COMMAND", help="{port} and {engine} are filled in"
    )
    given = parser.parse_args()
    peers = dict(peer.split("=", 1) for peer in given.peer)
    rounds = run(min(given.rounds, 20), peers)
    median_of = {name: medians([figures[name] for figures in rounds]) for name in rounds[0]}
    ratios = {name: medians([ratio(f["forebay"], f[name]) for f in rounds]) for name in peers}
    if given.json:
        over = {name: intervals([ratio(f["forebay"], f[name]) for f in rounds]) for name in peers}
        own = intervals([f["forebay"] for f in rounds])
        report = {"rounds": len(rounds), "median": median_of, "ci95": own, "forebay_over": ratios}
        print(json.dumps({**report, "forebay_over_ci95": over}))
        return
    names = ["forebay", *peers]
    print(f"{'median of ' + str(len(rounds)) + ' rounds':22}" + "".join(f"{name:>16}" for name in names), end="")
    print("".join(f"{'forebay/' + name:>22}" for name in peers))
    for figure in median_of["forebay"]:
        print(f"{figure:22}" + "".join(f"{median_of[name][figure]:16.2f}" for name in names), end="")
        print("".join(f"{ratios[name][figure]:22.2f}" for name in peers))


def ratio(ours: dict[str, float], theirs: dict[str, float]) -> dict[str, float]:
    """Ours over theirs, figure by figure, in the same round; not a number where theirs is 0."""
    return {name: value / theirs[name] if theirs[name] else float("nan") for name, value in ours.items()}


def intervals(rounds: list[dict[str, float]]) -> dict[str, list[float] | None]:
    """The 95 % interval of every figure's mean over the rounds (Student)."""
    return {name: interval([one[name] for one in rounds]) for name in rounds[0]}


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The median of every figure."""
    return {name: median(one[name] for one in rounds) for name in rounds[0]}


if __name__ == "__main__":
    main()
