"""What an open console costs: the same load through `forebay serve`, in turns with pages closed and pages open.

    python -m bench.console [--rounds 20] [--seconds 3] [--pages 3] [--json]
    python -m bench.console --pictures docs/images

The gateway has one core; engine, load and a headless Chromium with real pages share the others, the browser behind
them: it stands for one on somebody's own machine. The load is a closed loop that keeps the gateway busy and the cache
out, so that `rps` is the relay's throughput; every round measures closed and open once, in an order that changes.
`cpu_us` is the gateway's CPU per request, which does not depend on what the browser takes from engine and load.
`connections`: how often the pages had to connect in an open run; as many as pages where all kept up. `appears_ms`: from
the answer of a lone request until its row is in the page. `rss_mb`: of the gateway, before and after.

With `--pictures` it writes the pictures of the documentation instead: the views on a made-up load, light, dark, narrow.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, cast

import httpx
import psutil

from bench.browser import Browser, Page
from bench.overhead import CONCURRENCY, MODEL, SCRIPT, UNCACHED, Run, Target, document, free_port, serving, wait_ready

PROBES = 20
LIVE = "document.querySelector('#link')?.dataset.state === 'live'"
PRICES = {"small": {"input": 0.05, "output": 0.2}, "frontier": {"input": 0.6, "output": 2.4}}
MODELS = {"small": "Qwen/Qwen3-4B-Instruct-2507", "frontier": "Qwen/Qwen3-32B"}
SUBJECTS = ("invoice", "password", "delivery address", "newsletter", "refund", "account", "order", "warranty")
TEXT = "Open your account, choose what you want to change, and confirm it with the code that we send you."
EASY = ("How do I change my {}?", "how can i change my {}", "What is a {}?", "Where do I find my {}?", "Define {}.")
HARD = (
    "Prove that the number of steps to reconcile every {} with its ledger is at most n log n, and derive the constant.",
    "Write a lock-free queue in Rust that streams each {} to several consumers, and explain its memory ordering.",
)


@dataclass
class Measured:
    """The runs of both kinds, and what else was seen."""

    closed: list[Run] = field(default_factory=list)
    opened: list[Run] = field(default_factory=list)
    appears: list[float] = field(default_factory=list)
    rss: list[float] = field(default_factory=list)
    shown: list[int] = field(default_factory=list)
    connections: list[int] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Medians over the rounds; ratios are of the same round."""
        ratios = [_rps(after) / _rps(before) for before, after in zip(self.closed, self.opened, strict=True)]
        each = [after.cpu_each / before.cpu_each for before, after in zip(self.closed, self.opened, strict=True)]
        return {
            "closed_rps": median(map(_rps, self.closed)),
            "open_rps": median(map(_rps, self.opened)),
            "open_over_closed": median(ratios),
            "open_over_closed_least": min(ratios),
            "open_over_closed_most": max(ratios),
            "closed_cpu_us": median(run.cpu_each for run in self.closed) * 1e6,
            "open_cpu_us": median(run.cpu_each for run in self.opened) * 1e6,
            "cpu_open_over_closed": median(each),
            "cpu_least": min(each),
            "cpu_most": max(each),
            "open_seconds": sum(run.seconds for run in self.opened),
            "open_decisions": float(sum(len(run.whole) for run in self.opened)),
            "appears_p50_ms": median(self.appears) * 1e3,
            "appears_max_ms": max(self.appears) * 1e3,
            "rss_before_mb": self.rss[0],
            "rss_after_mb": self.rss[-1],
            "rows_shown": min(self.shown),
            "connections": max(self.connections),
        }


def _rps(run: Run) -> float:
    return len(run.whole) / run.seconds


async def measure(target: Target, rounds: int, seconds: float, pages: int) -> Measured:
    """All rounds; the browser runs throughout, with pages on the console or on nothing."""
    found = Measured()
    async with AsyncExitStack() as stack:
        browser = await stack.enter_async_context(Browser(behind()))
        opened = [await stack.enter_async_context(browser.page()) for _ in range(pages)]
        await target.load(CONCURRENCY, 2, header=UNCACHED)
        found.rss.append(target.rss())
        for number in range(rounds):
            for watched in (False, True) if number % 2 else (True, False):
                before = _connections(opened)
                await asyncio.gather(*(_show(page, target.url if watched else None) for page in opened))
                run = await target.load(CONCURRENCY, seconds, header=UNCACHED)
                (found.opened if watched else found.closed).append(run)
                if watched:
                    rows = [
                        await page.ask("document.querySelectorAll('#decisions tbody tr').length") for page in opened
                    ]
                    found.shown += rows
                    found.connections.append(_connections(opened) - before)
            found.rss.append(target.rss())
        await _show(opened[0], target.url)
        async with httpx.AsyncClient(base_url=target.url, trust_env=False) as client:
            found.appears = [await appears(opened[0], client) for _ in range(PROBES)]
    return found


def _connections(pages: list[Page]) -> int:
    return sum(url.endswith("/admin/events") for page in pages for url in page.requests)


def behind() -> tuple[str, ...]:
    """Words that give a command less priority than this process has."""
    if os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO):
        return ("chrt", "-r", "1")
    return ("nice", "-n", "10")


async def _show(page: Page, url: str | None) -> None:
    if url is None:
        await page.call("Page.navigate", url="about:blank")
        await page.until("location.href === 'about:blank'")
        return
    await page.go(f"{url}/console")
    await page.until(LIVE)


async def appears(page: Page, client: httpx.AsyncClient) -> float:
    """Seconds from the answer to one request until its row is in the page."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"probe {random.random()}"}]}
    answer = await client.post("/v1/chat/completions", json=body)
    began = time.perf_counter()
    await page.until(f"document.querySelector('[data-id=\"{answer.headers['x-request-id']}\"]') !== null")
    return time.perf_counter() - began


def run(rounds: int, seconds: float, pages: int) -> Measured:
    """Start engine, gateway and browser, measure, and stop them."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, set(cores[1:]) or set(cores))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-console-")))
        words = [sys.executable, "-m", "bench.engine", "--model", MODEL, "--script", json.dumps(SCRIPT), "--keep", "1"]
        engine = stack.enter_context(serving(words, None, folder / "engine.log"))
        engine_url = json.loads(cast("Any", engine.stdout).readline())["url"]
        port, config, log = free_port(), folder / "forebay.json", folder / "forebay.log"
        made = document(port, engine_url)
        # The console is open where everybody is.
        del made["auth"]
        # A machine that stands still for a moment is no fault of what is measured.
        made["tiers"]["small"]["timeout"] = {"connect": "30s", "first_token": "60s"}
        config.write_text(json.dumps(made), encoding="utf-8")
        command = [sys.executable, "-m", "forebay", "serve", "--config", str(config)]
        process = stack.enter_context(serving(command, cores[0], log))
        url = f"http://127.0.0.1:{port}"
        wait_ready(url, process, log)
        return asyncio.run(measure(Target(url, psutil.Process(process.pid)), rounds, seconds, pages))


def pictures(folder: Path) -> None:
    """Write the pictures of the documentation."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-console-")))
        tiers: dict[str, Any] = {}
        for name, model in MODELS.items():
            small = name == "small"
            script = {"text": TEXT, "ttft": 0.08 if small else 0.3, "itl": 0.004 if small else 0.012}
            words = [sys.executable, "-m", "bench.engine", "--model", model, "--script", json.dumps(script)]
            engine = stack.enter_context(serving(words, None, scratch / f"{name}.log"))
            url = json.loads(cast("Any", engine.stdout).readline())["url"]
            tiers[name] = {"model": model, "urls": [url], "price": PRICES[name]}
        port, config, log = free_port(), scratch / "forebay.json", scratch / "forebay.log"
        config.write_text(json.dumps({"gateway": {"port": port}, "tiers": tiers}), encoding="utf-8")
        command = [sys.executable, "-m", "forebay", "serve", "--config", str(config)]
        process = stack.enter_context(serving(command, None, log))
        wait_for(f"http://127.0.0.1:{port}", process, log)
        asyncio.run(_pictures(f"http://127.0.0.1:{port}", folder))


def wait_for(url: str, process: Any, log: Path) -> None:
    """Wait until everything is ready, the embedder too. Raises RuntimeError with what the process wrote."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            told = httpx.get(f"{url}/ready", timeout=2, trust_env=False).json()
            if told["ready"] and told["embedder"] == "ready":
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise RuntimeError(log.read_text(encoding="utf-8", errors="replace")[-2000:])


async def _pictures(url: str, folder: Path) -> None:
    dice = random.Random(7)
    async with (
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client,
        Browser() as browser,
        browser.page(1280, 1180, prefers_color_scheme="light") as page,
    ):
        await page.go(f"{url}/console")
        await page.until(LIVE)
        await asyncio.gather(*(_user(client, dice, 45) for _ in range(6)))
        await page.until("performance.now() > 0")
        await _shoot(page, folder / "console-light.png")
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        await page.call("Emulation.setEmulatedMedia", features=dark)
        await page.ask("location.hash = 'whatif'")
        await page.until("document.querySelectorAll('#outcome tbody tr').length > 0")
        await page.ask("document.querySelector('#similarity').focus()")
        for _ in range(10):
            await page.key("ArrowLeft", 37)
        await _shoot(page, folder / "console-dark.png")
        await page.call("Emulation.setEmulatedMedia", features=[])
        await page.resize(390, 844)
        await page.ask("location.hash = 'try'")
        await page.until("document.querySelector('#ask select').options.length > 1")
        await page.write("#ask textarea", "How do I change my delivery address, please?")
        await page.click("#ask [name=send]")
        await page.until("document.querySelector('#timing').textContent.startsWith('Complete')")
        await page.ask("scrollTo(0, 0)")
        await _shoot(page, folder / "console-narrow.png")


async def _user(client: httpx.AsyncClient, dice: random.Random, requests: int) -> None:
    """Somebody who asks one thing after the other."""
    for _ in range(requests):
        asked = dice.choice(HARD if dice.random() < 0.2 else EASY).format(dice.choice(SUBJECTS))
        body = {"model": "auto", "messages": [{"role": "user", "content": asked}], "stream": dice.random() < 0.8}
        await client.post("/v1/chat/completions", json=body)
        await asyncio.sleep(dice.random() * 0.3)


async def _shoot(page: Page, path: Path) -> None:
    # What is drawn once a second is drawn.
    await asyncio.sleep(1.5)
    shot = await page.picture()
    await asyncio.to_thread(path.write_bytes, shot)
    print(f"{path}: {len(shot)} bytes", file=sys.stderr)


def main() -> None:
    """Print the figures, or write pictures."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.console", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run; two runs a round")
    parser.add_argument("--pages", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="write the documentation's pictures there")
    given = parser.parse_args()
    if given.pictures is not None:
        pictures(given.pictures)
        return
    figures = run(given.rounds, given.seconds, given.pages).figures()
    if given.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:24}{value:14.3f}")


if __name__ == "__main__":
    main()
