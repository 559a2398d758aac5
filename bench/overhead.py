"""What the gateway costs: the same load on the scripted engine directly and through `forebay serve`, in turns.

    python -m bench.overhead [--rounds 5] [--json]

The gateway has one core, the engine and the load share another. Every round runs every measurement once, so that a
noisy machine is noisy for all of them; the figures are medians over the rounds. `rps_core` comes from the CPU time of
the gateway's process, not from the clock. Exact cache on and missing (every prompt is new), tier by name, no embedder.
"""

import argparse
import asyncio
import json
import os
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

MODEL = "scripted"
CONCURRENCY = 32
STREAMS = 16
CHUNKS = 64
# About 500 bytes of request and of answer; 64 chunks of about 215 bytes, 5 ms apart.
QUESTION = "Which of these words comes first in the alphabet, and why? " + "harbour lantern meadow " * 14
ANSWER = "It is the harbour, because h comes before l and m."
SCRIPT = {"text": ANSWER}
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

    def request(self, stream: bool, fresh: bool) -> bytes:
        """One request's bytes; `fresh`: a prompt that was never asked."""
        text = f"{QUESTION}{next(self.numbers) if fresh else 'again'}"
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 200}
        if stream:
            body |= {"stream": True, "script": STREAM}
        raw = json.dumps(body).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: "
        return f"{head}{len(raw)}\r\n\r\n".encode() + raw

    async def load(self, concurrency: int, seconds: float, *, stream: bool = False, fresh: bool = True) -> Run:
        """A closed loop of `concurrency` connections for so long."""
        host, _, port = self.url.removeprefix("http://").partition(":")
        loop = asyncio.get_running_loop()
        lines = [(await loop.create_connection(Answers, host, int(port)))[1] for _ in range(concurrency)]
        run = Run([], [], 0.0, 0.0)
        before, began = self._cpu(), time.perf_counter()

        async def user(line: Answers) -> None:
            while time.perf_counter() - began < seconds:
                first, whole = await line.ask(self.request(stream, fresh))
                run.first.append(first)
                run.whole.append(whole)

        await asyncio.gather(*(user(line) for line in lines))
        run.seconds, run.cpu = time.perf_counter() - began, self._cpu() - before
        for line in lines:
            line.close()
        return run

    def _cpu(self) -> float:
        return sum(self.process.cpu_times()[:2]) if self.process else 0.0


async def measure(direct: Target, gateway: Target, rounds: int) -> list[dict[str, float]]:
    """The figures of every round."""
    for target in (direct, gateway):
        await target.load(CONCURRENCY, 0.5)
    found = []
    for _ in range(rounds):
        alone, through = await direct.load(1, 1.0), await gateway.load(1, 1.0)
        plain, relay = await direct.load(CONCURRENCY, 1.5), await gateway.load(CONCURRENCY, 1.5)
        hit = await gateway.load(CONCURRENCY, 1.5, fresh=False)
        flow, streams = await direct.load(STREAMS, 1.0, stream=True), await gateway.load(STREAMS, 1.0, stream=True)
        found.append(
            {
                "relay_cpu_us": relay.cpu_each * 1e6,
                "relay_rps_core": 1 / relay.cpu_each,
                "relay_rps": len(relay.whole) / relay.seconds,
                "direct_rps": len(plain.whole) / plain.seconds,
                "hit_cpu_us": hit.cpu_each * 1e6,
                "hit_rps_core": 1 / hit.cpu_each,
                "hit_over_miss": relay.cpu_each / hit.cpu_each,
                "direct_p50_ms": median(alone.whole) * 1e3,
                "added_p50_ms": (median(through.whole) - median(alone.whole)) * 1e3,
                "chunk_cpu_us": (streams.cpu_each - relay.cpu_each) / CHUNKS * 1e6,
                "added_ttft_ms": (median(streams.first) - median(flow.first)) * 1e3,
            }
        )
    return found


@contextmanager
def serving(command: list[str], core: int | None, log: Path) -> Iterator[subprocess.Popen[str]]:
    """A process on one core, or on any, ended with SIGTERM. Its stderr goes to `log`."""
    with log.open("wb") as err:
        process = subprocess.Popen(  # noqa: S603  # our own commands
            [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=err, text=True
        )
    try:
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        yield process
    finally:
        process.terminate()
        process.wait(15)
        if process.stdout is not None:
            process.stdout.close()


def wait_ready(url: str, process: "subprocess.Popen[str]", log: Path) -> None:
    """Wait for the gateway. Raises RuntimeError with what it wrote."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/ready", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise RuntimeError(log.read_text(encoding="utf-8", errors="replace")[-2000:])


def run(rounds: int) -> list[dict[str, float]]:
    """Start engine and gateway, measure, and stop both."""
    cores = sorted(os.sched_getaffinity(0))
    gateway_core, load_core = cores[0], cores[-1]
    os.sched_setaffinity(0, {load_core})
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-overhead-")))
        command = ["bench.engine", "--model", MODEL, "--script", json.dumps(SCRIPT), "--keep", "1"]
        engine = stack.enter_context(serving(command, load_core, folder / "engine.log"))
        engine_url = json.loads(cast("Any", engine.stdout).readline())["url"]
        port = free_port()
        config = folder / "forebay.json"
        document = {
            "gateway": {"port": port},
            "cache": {"semantic": {"enabled": False}},
            "tiers": {"small": {"model": MODEL, "urls": [engine_url]}},
        }
        config.write_text(json.dumps(document), encoding="utf-8")
        log = folder / "gateway.log"
        process = stack.enter_context(serving(["forebay", "serve", "--config", str(config)], gateway_core, log))
        url = f"http://127.0.0.1:{port}"
        wait_ready(url, process, log)
        return uvloop.run(measure(Target(engine_url), Target(url, psutil.Process(process.pid)), rounds))


def free_port() -> int:
    """A TCP port that is free at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def main() -> None:
    """Print a table, or one JSON document."""
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="each takes about 10 s")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args()
    rounds = run(min(given.rounds, 10))
    figures = {name: median(one[name] for one in rounds) for name in rounds[0]}
    spread = {name: [min(one[name] for one in rounds), max(one[name] for one in rounds)] for name in rounds[0]}
    if given.json:
        print(json.dumps({"rounds": len(rounds), "median": figures, "spread": spread}))
        return
    for name, value in figures.items():
        low, high = spread[name]
        print(f"{name:16} {value:12.2f}   ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
