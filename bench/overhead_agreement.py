"""Whether `forebay_overhead_seconds` is what a client has to wait longer because of the gateway.

    python -m bench.overhead_agreement [--rounds 9] [--concurrency 4] [--json]

The same requests go to the scripted engine directly and through `forebay serve`, in turns, from a closed loop of
clients with connections that stay open. Outside, the overhead is the mean time through the gateway less that without
it; inside, it is what the histogram's sum has grown by over what its count has. Every round gives a ratio, and the
figure is the median, for each kind of request: `miss` (the exact cache on, no embedder, an engine that takes 20 ms),
`stream` (the same as a stream of 32 chunks), `hit` (nothing is asked of the engine: outside is the whole time less that
of the gateway's /health, which is a round trip without work). Takes about a minute; exits with 1 where inside and
outside differ by more than 20 %.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, cast

import httpx
import psutil
import uvloop

from bench.overhead import MODEL, Run, Target, document, free_port, serving, wait_ready

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


class Idle(Target):
    """A round trip without work."""

    def request(self, stream: bool, fresh: bool, header: str = "") -> bytes:
        """One request's bytes."""
        del stream, fresh, header
        return b"GET /health HTTP/1.1\r\nhost: bench\r\n\r\n"


async def measure(engine: str, gateway: str, rounds: int, concurrency: int) -> list[Round]:
    """Every kind in every round."""
    direct, through, idle = Client(engine), Client(gateway), Idle(gateway)
    found: list[Round] = []
    async with httpx.AsyncClient(trust_env=False, timeout=10) as scraper:

        async def read(cache: str) -> Reading:
            return reading((await scraper.get(f"{gateway}/metrics")).text, cache)

        async def one(kind: str, cache: str, run: Callable[[Client], Any], without: Callable[[], Any]) -> None:
            base: Run = await without()
            before = await read(cache)
            with_gateway: Run = await run(through)
            inside = (await read(cache)).since(before)
            found.append(Round(kind, inside, mean(with_gateway.whole) - mean(base.whole)))

        for number in range(rounds + 1):
            for script, stream, kind in ((SCRIPT, False, "miss"), (STREAM, True, "stream")):
                direct.script = through.script = script

                def load(target: Client, stream: bool = stream) -> Any:
                    return target.load(concurrency, SECONDS, stream=stream)

                await one(kind, "miss", load, partial(load, direct))
            direct.script = through.script = SCRIPT
            again: Callable[[Client], Any] = lambda target: target.load(concurrency, SECONDS, fresh=False)  # noqa: E731
            await again(through)
            await one("hit", "hit-exact", again, lambda: idle.load(concurrency, SECONDS))
            if number == 0:
                # Everything has been used once.
                found.clear()
    return found


def run(rounds: int, concurrency: int) -> list[Round]:
    """Start engine and gateway on a core each, measure, and stop them."""
    cores = sorted(os.sched_getaffinity(0))
    gateway_core, load_core = cores[0], cores[-1]
    os.sched_setaffinity(0, {load_core})
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-agreement-")))
        command = [sys.executable, "-m", "bench.engine", "--model", MODEL, "--keep", "1"]
        engine = stack.enter_context(serving(command, load_core, folder / "engine.log"))
        engine_url = json.loads(cast("Any", engine.stdout).readline())["url"]
        port = free_port()
        config = folder / "forebay.json"
        config.write_text(json.dumps(document(port, engine_url)), encoding="utf-8")
        log = folder / "gateway.log"
        serve = [sys.executable, "-m", "forebay", "serve", "--config", str(config)]
        process = stack.enter_context(serving(serve, gateway_core, log))
        url = f"http://127.0.0.1:{port}"
        wait_ready(url, process, log)
        return uvloop.run(measure(engine_url, url, rounds, concurrency))


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
    found = summary(run(given.rounds, given.concurrency))
    wrong = missed(found)
    if given.json:
        print(json.dumps({"kinds": found, "missed": wrong}))
    else:
        for kind, figures in found.items():
            print(f"{kind:8}" + "".join(f"{name:>12} {value:10.2f}" for name, value in figures.items()))
        for message in wrong:
            print(f"missed: {message}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
