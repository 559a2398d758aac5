"""What the caches cost: an exact hit inside the gateway, a semantic lookup with its embedding, the whole way of a miss.

    [FOREBAY_DATA=DIR] python -m bench.cache_latency [--entries 100000] [--rounds 3] [--vectors DIR] [--json]

Everything runs in one process, without sockets: HTTP requests enter the gateway's own application, lookups go through
the same reader, embedder, cache and router as a request. Rounds take every measurement once, so that a noisy machine is
noisy for all of them; figures are medians over the rounds. Rates per core come from CPU time, `wall` from the clock.
Asked questions are the project's own templates and, where FOREBAY_DATA is set, Quora question pairs. Memory is that of
`forebay serve` in a process of its own, after requests of all lengths.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import uvloop
from pydantic import JsonValue
from rich.console import Console
from rich.table import Table

from bench.cache_lookups import Lookups
from bench.cache_memory import resident
from bench.cache_texts import Mix, question_mix, template_mix
from bench.cache_trust import StoredVectors
from core import garbage
from core.config import validate
from core.embedder import Encoder
from gateway.app import Application
from gateway.embedding import configured_encoder
from gateway.services import Services, opened

# What must hold and what is aimed at, per figure; a rate is at least, everything else at most.
TARGETS: dict[str, tuple[float, float]] = {
    "exact_p50_ms": (0.3, 0.1),
    "exact_p99_ms": (2.0, 1.0),
    "semantic_p50_ms": (8.0, 3.0),
    "beyond_p99_ms": (1.5, 0.7),
    "miss_per_s_core": (120.0, 180.0),
    "mix_per_s_core": (400.0, 800.0),
    "rss_embedder_mb": (700.0, 350.0),
    "rss_plain_mb": (120.0, 80.0),
}
LABELS = {
    "exact_p50_ms": "exact hit inside the gateway, p50, ms",
    "exact_p99_ms": "exact hit inside the gateway, p99, ms",
    "exact_cpu_us": "exact hit, CPU, µs",
    "semantic_p50_ms": "semantic lookup, one at a time, p50, ms",
    "semantic_embed_ms": "  of it the embedding, p50, ms",
    "semantic_cpu_ms": "  its CPU, ms",
    "beyond_p50_ms": "search and guard beyond the embedding, p50, ms",
    "beyond_p99_ms": "search and guard beyond the embedding, p99, ms",
    "miss_per_s_core": "full miss path, every prompt encoded, per s and core",
    "miss_embed_share": "  share of the embedding",
    "mix_per_s_core": "miss path of a named tier on the question mix, per s and core",
    "mix_encoded_share": "  share of prompts that were encoded",
    "rss_embedder_mb": "memory of a gateway with embedder, MB",
    "rss_plain_mb": "memory of a gateway without embedder, MB",
}
CONFIG: dict[str, JsonValue] = {
    "cache": {"max_bytes": "4GiB", "semantic": {"deadline": "60s"}},
    "tiers": {"small": {"model": "small-model", "urls": []}, "frontier": {"model": "frontier-model", "urls": []}},
}
Figures = dict[str, float]


def milliseconds(seconds: Sequence[float], quantile: float) -> float:
    """A quantile of durations."""
    return float(np.quantile(np.array(seconds), quantile) * 1e3)


async def exact_hits(application: Application, bodies: Sequence[bytes], count: int) -> Figures:
    """Requests that hit the exact layer, one after another, through the application."""
    scope = {
        "type": "http", "method": "POST", "path": "/v1/chat/completions", "raw_path": b"/v1/chat/completions",
        "query_string": b"", "headers": [(b"host", b"bench"), (b"content-type", b"application/json")],
    }  # fmt: skip
    statuses: set[object] = set()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.add(dict(message["headers"])[b"x-forebay-cache"])

    async def one(body: bytes) -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        await application(dict(scope), receive, send)

    times, cpu = await timed([partial(one, bodies[at % len(bodies)]) for at in range(count)])
    if statuses != {b"hit-exact"}:
        raise RuntimeError(f"not only exact hits: {statuses}")
    return {
        "exact_p50_ms": milliseconds(times, 0.5),
        "exact_p99_ms": milliseconds(times, 0.99),
        "exact_cpu_us": cpu / count * 1e6,
    }


async def timed(work: Sequence[Callable[[], Awaitable[object]]]) -> tuple[list[float], float]:
    """Seconds of each piece of work, one after another, and the CPU time of them all."""
    times, before = [], time.process_time()
    for one in work:
        began = time.perf_counter()
        await one()
        times.append(time.perf_counter() - began)
    return times, time.process_time() - before


async def semantic(lookups: Lookups, asked: Sequence[str]) -> Figures:
    """Semantic lookups, one at a time."""
    times, cpu = await timed([partial(lookups.lookup, text) for text in asked])
    return {
        "semantic_p50_ms": milliseconds(times, 0.5),
        "semantic_cpu_ms": cpu / len(asked) * 1e3,
        "semantic_embed_ms": milliseconds(lookups.embed_times, 0.5),
        "beyond_p50_ms": milliseconds(lookups.search_times, 0.5),
        "beyond_p99_ms": milliseconds(lookups.search_times, 0.99),
    }


async def misses(lookups: Lookups, asked: Sequence[str]) -> Figures:
    """The whole way of a miss under `model: auto`: every prompt is encoded, for the cache and the router."""
    _, cpu = await timed([partial(lookups.miss, text, "auto") for text in asked])
    return {
        "miss_per_s_core": len(asked) / cpu,
        "miss_embed_share": lookups.embed_cpu / cpu,
        "miss_encoded_share": lookups.encoded / len(asked),
    }


async def mixed(lookups: Lookups, asked: Sequence[str]) -> Figures:
    """The way of a request that names its tier, up to the tier, over questions that people ask."""
    times, cpu = await timed([partial(lookups.miss, text, "small") for text in asked])
    return {
        "mix_per_s_core": len(asked) / cpu,
        "mix_p50_ms": milliseconds(times, 0.5),
        "mix_encoded_share": lookups.encoded / len(asked),
    }


async def measure(encoder: Encoder, vectors: Encoder, entries: int, real: int, rounds: int) -> list[Figures]:
    """The figures of every round. `vectors`: the same model, perhaps with results that are kept."""
    config = validate(CONFIG)
    async with AsyncExitStack() as stack:
        many: Services = await stack.enter_async_context(opened(config, write=len, make_encoder=lambda _: encoder))
        few: Services = await stack.enter_async_context(opened(config, write=len, make_encoder=lambda _: encoder))
        for services in (many, few):
            await services.embedder.settled()
        templates, people = template_mix(vectors, entries, real, 600), question_mix(vectors, real, 600)
        bodies = await fill(many, templates, "auto")
        await fill(few, people, "small")
        application, found = Application(many), []
        garbage.settle()
        await exact_hits(application, bodies[:500], 500)
        for _ in range(rounds):
            figures = await exact_hits(application, bodies[:: max(1, len(bodies) // 2000)], 4000)
            figures |= await semantic(Lookups(many), templates.asked)
            figures |= await misses(Lookups(many), templates.asked)
            figures |= await mixed(Lookups(few), people.asked)
            found.append(figures)
    return found


async def fill(services: Services, mix: Mix, model: str) -> list[bytes]:
    """Store the mix as answers to `model`; the bodies that ask for them."""
    lookups = Lookups(services)
    for number, one in enumerate(mix.stored):
        await lookups.store(one, model)
        if number % 256 == 0:
            await asyncio.sleep(0)
    await lookups.settled()
    return [lookups.body(one.text, model) for one in mix.stored]


def verdict(name: str, value: float) -> str:
    """`aim`, `must` or `short`; empty where there is no target."""
    if name not in TARGETS:
        return ""
    must, aim = TARGETS[name]
    if name.endswith("_per_s_core"):
        return "aim" if value >= aim else "must" if value >= must else "short"
    return "aim" if value <= aim else "must" if value <= must else "short"


def main() -> None:
    """Print a table, or one JSON document."""
    parser = argparse.ArgumentParser(prog="python -m bench.cache_latency", description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--real", type=int, default=9_000, help="stored questions with the vector of the model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vectors", type=Path, help="folder that keeps the embeddings between runs")
    parser.add_argument("--no-memory", action="store_true", help="leave the memory of `forebay serve` out")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args()
    encoder = configured_encoder(validate(CONFIG).embedder)
    kept: Encoder = StoredVectors(encoder, given.vectors) if given.vectors else encoder
    rounds = uvloop.run(measure(encoder, kept, given.entries, given.real, given.rounds))
    figures = {name: median(one[name] for one in rounds) for name in rounds[0]}
    spread = {name: (min(one[name] for one in rounds), max(one[name] for one in rounds)) for name in rounds[0]}
    if not given.no_memory:
        figures |= {"rss_embedder_mb": resident(embedder=True), "rss_plain_mb": resident(embedder=False)}
    if given.json:
        print(json.dumps({"entries": given.entries, "rounds": len(rounds), "median": figures, "spread": spread}))
        return
    table = Table(title=f"{given.entries} entries, medians of {len(rounds)} rounds")
    for column in ("figure", "median", "least", "most", "must", "aim", "reaches"):
        table.add_column(column, justify="left" if column in ("figure", "reaches") else "right")
    for name, label in LABELS.items():
        if name not in figures:
            continue
        low, high = spread.get(name, (figures[name], figures[name]))
        must, aim = (f"{value:g}" for value in TARGETS[name]) if name in TARGETS else ("", "")
        row = [f"{value:.3g}" if value < 100 else f"{value:.0f}" for value in (figures[name], low, high)]
        table.add_row(label, *row, must, aim, verdict(name, figures[name]))
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
