"""Whether memory stays bounded under a million distinct prompts, with vectors made up instead of computed.

    python -m bench.cache_growth [--prompts 1000000] [--max-entries 20000] [--server redis|valkey]

Every prompt is stored and one in eight is looked up again. Without `--server` entries are kept in this process. Prints
the process's memory, and the server's, at ten points; the second half must not grow.
"""

import argparse
import asyncio
import hashlib
import json
import sys
import tempfile
import time
import zlib
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.servers import KINDS, Server, ask
from cache.controls import Controls
from cache.question import Place, Question
from cache.response_cache import ResponseCache, lifetime
from cache.stores.redis import RedisStore
from core.clock import SystemClock
from core.config import store_address
from core.config.records import Cache
from core.embedder import Embedding, Vector
from core.redis_link import RedisLink

DIM = 384
NAMESPACE = f"made up#{DIM}"
# Prompts fall into one large partition and many small ones, as behind different system prompts.
PARTITIONS = 50
ON = Controls()


class MadeUpGlance:
    """A static vector for every text, near to no other."""

    dim = 128

    def vector(self, text: str) -> Vector:
        """A unit vector that depends on the text only."""
        vector = np.random.default_rng(zlib.crc32(text.encode())).standard_normal(self.dim, dtype=np.float32)
        return vector / np.float32(np.linalg.norm(vector))

    def least(self, threshold: float) -> float | None:
        """Nothing is near."""
        return threshold


def question(number: int) -> Question:
    """A prompt nobody has asked before."""
    text = f"question number {number}, of a length that people write, about something nobody has asked before"
    part = 0 if number % 2 else number // 2 % PARTITIONS
    place = Place(f"{part:064x}", text, None)
    return Question(hashlib.sha256(text.encode()).hexdigest(), "acme", NAMESPACE, place)


def answer(number: int) -> dict[str, Any]:
    """A short completion."""
    message = {"role": "assistant", "content": f"answer {number} " * 30}
    return {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def settings(max_entries: int, max_bytes: int) -> Cache:
    """The cache under test; whether wordings mean the same is not what is measured."""
    base = Cache()
    semantic = base.semantic.model_copy(update={"max_entries": max_entries, "guard": False, "threshold": 0.95})
    return base.model_copy(update={"semantic": semantic, "max_bytes": max_bytes})


async def run(prompts: int, cache: ResponseCache, server: Server | None) -> list[dict[str, float]]:
    """Stores and asks; the memory at ten points."""
    rng, rows = np.random.default_rng(1), []
    started = time.monotonic()
    for number in range(prompts):
        vector = rng.standard_normal(DIM, dtype=np.float32)
        embedding = Embedding(vector / np.float32(np.linalg.norm(vector)), truncated=False)
        asked = question(number)
        reason = await cache.store(asked, answer(number), embedding, tier="small", controls=ON)
        if reason is not None:
            raise SystemExit(f"prompt {number} was not stored: {reason}")
        if number % 8 == 0 and (await cache.exact(asked, ON) is None):
            raise SystemExit(f"prompt {number} was stored and is not there")
        if number % 64 == 0:
            await cache.promising(question(-1 - number), ON)
            await cache.semantic(asked, embedding, ON, deadline=5.0)
        if (number + 1) % (prompts // 10) == 0:
            rows.append(await _row(number + 1, time.monotonic() - started, cache, server))
            print(json.dumps(rows[-1]), file=sys.stderr)
    return rows


async def _row(prompts: int, seconds: float, cache: ResponseCache, server: Server | None) -> dict[str, float]:
    stats = await cache.stats()
    row = {
        "prompts": prompts,
        "seconds": round(seconds, 1),
        "rss_mb": round(psutil.Process().memory_info().rss / 1e6, 1),
        "entries": stats.exact,
        "vectors": stats.semantic,
        "known": stats.known,
        "counted_mb": round(stats.bytes / 1e6, 1),
    }
    if server is not None:
        info = await asyncio.to_thread(ask, server.port, "INFO", "memory")
        used = next(line for line in info.splitlines() if line.startswith("used_memory:"))
        row["store_mb"] = round(int(used.partition(":")[2]) / 1e6, 1)
    return row


async def measure(given: argparse.Namespace) -> list[dict[str, float]]:
    """The rows of the chosen store."""
    limits, clock = settings(given.max_entries, given.max_bytes), SystemClock()
    if given.server is None:
        async with ResponseCache(limits, clock=clock) as cache:
            cache.understand(NAMESPACE, MadeUpGlance())
            return await run(given.prompts, cache, None)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        server = stack.enter_context(Server(given.server, Path(folder)))
        async with RedisLink(store_address(server.url), clock, 5.0) as link:
            store = partial(
                RedisStore,
                link,
                clock,
                max_bytes=given.max_bytes,
                max_vectors=given.max_entries,
                lifetime=lifetime(limits),
            )
            async with ResponseCache(limits, clock=clock, open_store=store) as cache:
                cache.understand(NAMESPACE, MadeUpGlance())
                return await run(given.prompts, cache, server)


def main() -> int:
    """Prints the table; 1 where memory grew by more than a tenth in the second half."""
    parser = argparse.ArgumentParser(prog="python -m bench.cache_growth", description=__doc__)
    parser.add_argument("--prompts", type=int, default=1_000_000)
    parser.add_argument("--max-entries", type=int, default=20_000)
    parser.add_argument("--max-bytes", type=int, default=128 * 1024**2)
    parser.add_argument("--server", choices=KINDS)
    given = parser.parse_args()
    rows = asyncio.run(measure(given))
    names = list(rows[0])
    print("  ".join(f"{name:>10}" for name in names))
    for row in rows:
        print("  ".join(f"{row[name]:>10}" for name in names))
    half, last = rows[len(rows) // 2 - 1], rows[-1]
    growth = {name: last[name] / half[name] - 1 for name in ("rss_mb", "store_mb") if name in last}
    print(", ".join(f"{name} in the second half: {share:+.1%}" for name, share in growth.items()))
    return int(any(share > 0.1 for share in growth.values()))


if __name__ == "__main__":
    sys.exit(main())
