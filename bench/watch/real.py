"""The panels of the engines on real ones: what `forebay up` has started, under a real Prometheus.

    forebay up --detach --json >up.json && python -m bench.watch.real up.json [--minutes 3] [--json]

Asks both tiers, streamed and not, and prints every query of the engines' dashboard that has no number without its
fallback, and what `forebay review` says of the models. An engine that drafts nothing and preempts nothing has no such
metrics under Ray, and these panels show their fallback.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from bench.questions import EASY_AND_HARD, PARAPHRASES
from bench.watch.__main__ import reviewed
from bench.watch.panels import Silent, silent
from bench.watch.prometheus import Prometheus

# Requests at one time: each engine has half a core.
AT_ONCE = 3


def main() -> int:
    """Print what is silent; 1 where more is than may be."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.watch.real", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("started", type=Path, metavar="up.json", help="what forebay up --json printed")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args()
    started = json.loads(given.started.read_text(encoding="utf-8"))
    url, ray = started["url"], started["metrics"].removesuffix("/metrics")
    with tempfile.TemporaryDirectory(prefix="forebay-watch-") as folder:
        targets = {"forebay": [url], "ray": [ray]}
        with Prometheus(Path(folder), targets, interval=2.0) as prometheus:
            began = time.time()
            asked, found_quiet = asyncio.run(_looked_at(url, given.minutes * 60, prometheus))
            quiet = [one for one in found_quiet if one.board == "engines"]
            found: dict[str, Any] = {
                "answered": asked,
                "targets_down": prometheus.down(),
                "silent_panels": [one.panel for one in quiet if one.shown],
                "silent_without_fallback": sorted({one.panel for one in quiet if not one.shown}),
                "review": reviewed(prometheus.url, time.time() - began, Path("/dev/null"))["questions"]["decode"],
            }
    print(json.dumps(found) if given.json else "\n".join(f"{key}: {json.dumps(value)}" for key, value in found.items()))
    return 1 if found["silent_panels"] or found["targets_down"] else 0


async def _looked_at(url: str, seconds: float, prometheus: Prometheus) -> tuple[int, list[Silent]]:
    """Answers, and what was silent while they were made: under Ray an idle engine's gauges go away."""
    load = asyncio.create_task(_load(url, seconds))
    await asyncio.sleep(seconds * 0.85)
    quiet = await asyncio.to_thread(silent, prometheus, "3m")
    return await load, quiet


async def _load(url: str, seconds: float) -> int:
    """Ask for so long, a few at one time; how many were answered."""
    chance, until, answered = random.Random(0), time.monotonic() + seconds, 0
    texts = [text for pair in (*PARAPHRASES, *EASY_AND_HARD) for text in pair]

    async def ask(client: httpx.AsyncClient) -> None:
        nonlocal answered
        while time.monotonic() < until:
            body = {
                "model": chance.choice(("small", "frontier")),
                "messages": [{"role": "user", "content": f"{chance.choice(texts)} ({chance.randrange(1000)})"}],
                "stream": chance.random() < 0.5,
                "max_tokens": 48,
            }
            answer = await client.post("/v1/chat/completions", json=body)
            answered += answer.status_code == 200

    plain = httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, verify=False)  # noqa: S501  # no TLS here
    async with plain as client, asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(ask(client))
    return answered


if __name__ == "__main__":
    sys.exit(main())
