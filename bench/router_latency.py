"""What a routing decision costs beyond the embedding, and that a hundred thousand of them leave nothing behind.

    python -m bench.router_latency [--decisions N] [--json]

Each decision is what the gateway does once it has the vector: the ask, its score, the conversation's floor, the tier,
and remembering it. Times are median, 99th percentile and longest; `cpu_ms` leaves out what other processes of a busy
machine took. Prompts are of all sizes, up to 200,000 characters, and each is a turn of another conversation.
"""

import argparse
import gc
import random
import resource
import sys
import time

import numpy as np
import orjson
from pydantic import JsonValue

from core.config import TierName
from core.request import InferenceRequest
from router.classifier import Classifier
from router.conversations import Conversations
from router.decision import TierFacts, ask, decide
from router.seed import read_seed

_LONG = (2_000, 8_000, 40_000, 200_000)
_FACTS = frozenset({"text", "tools", "json"})
_TIERS: dict[TierName, TierFacts] = {
    "small": TierFacts("small", _FACTS, 131_072),
    "frontier": TierFacts("frontier", _FACTS, 131_072),
}


def requests(count: int) -> list[InferenceRequest]:
    """Prompts of all sizes, one in forty long: second turns, so that the conversation is looked up."""
    chosen = random.Random(0)
    asks = [seed.prompt for seed in read_seed()]
    found = []
    for number in range(count):
        text = f"{chosen.choice(asks)} ({number})"
        if number % 40 == 0:
            text = (text * (chosen.choice(_LONG) // len(text) + 1))[: chosen.choice(_LONG)]
        turns = [("user", f"turn {number}"), ("assistant", "so it is"), ("user", text)]
        messages: list[JsonValue] = [{"role": role, "content": content} for role, content in turns]
        found.append(InferenceRequest("chat", {"model": "auto", "messages": messages}))
    return found


def main() -> int:
    """Prints the table, or one JSON document; exit code 1 where the 99th percentile takes a millisecond of CPU."""
    parser = argparse.ArgumentParser(prog="python -m bench.router_latency", description=__doc__)
    parser.add_argument("--decisions", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    classifier, memory = Classifier.load(None), Conversations()
    pool = requests(2_000)
    vectors = np.random.default_rng(0).normal(size=(len(pool), classifier.dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    took, busy = np.empty(chosen.decisions), np.empty(chosen.decisions)
    resident = []
    gc.collect()
    for number in range(chosen.decisions):
        request = InferenceRequest("chat", pool[number % len(pool)].body)
        started, worked = time.perf_counter(), time.thread_time()
        text = ask(request)
        score = None if text is None else classifier.score(text, vectors[number % len(pool)])
        floor = memory.floor(f"t{number % 50}", request)
        found = decide(request, _TIERS, forced=None, floor=floor, score=score, threshold=0.5)
        memory.remember(f"t{number % 50}", request, found.tier)
        took[number], busy[number] = time.perf_counter() - started, time.thread_time() - worked
        if number % max(chosen.decisions // 10, 1) == 0:
            resident.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    quantiles = (0.5, 0.99, 1.0)
    result = {
        "decisions": chosen.decisions,
        "wall_ms": [round(float(value) * 1000, 4) for value in np.quantile(took, quantiles)],
        "cpu_ms": [round(float(value) * 1000, 4) for value in np.quantile(busy, quantiles)],
        "peak_rss_mb": [round(value, 1) for value in resident],
        "conversations": len(memory),
    }
    if chosen.json:
        print(orjson.dumps(result).decode())
    else:
        print("\n".join(f"{name:<16}{value}" for name, value in result.items()))
    return 0 if np.quantile(busy, 0.99) < 0.001 else 1


if __name__ == "__main__":
    sys.exit(main())
