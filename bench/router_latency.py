"""What a routing decision costs beyond the embedding, and that a hundred thousand of them leave nothing behind.

    python -m bench.router_latency [--decisions N] [--json]

Each decision is what the gateway does once it has the vector: the ask, its score, the conversation's floor, the tier,
and remembering it. Times are median, 99th percentile and longest; `cpu_ms` leaves out what other processes of a busy
machine took. Prompts are asks in five languages as people write them, and one in ten of kinds that cost more:
texts of 2,000 to 200,000 characters of different words, histories as long, lists, code, and what is made to be slow.
"""

import argparse
import gc
import random
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
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
    "small": TierFacts("small", _FACTS, 8_192),
    "frontier": TierFacts("frontier", _FACTS, 131_072),
}
# Fillers on which a careless expression would take time that grows with the square of the length.
_HOSTILE = ("\n", " ", "{[(", "1,", "o(", "A. x\n", "\\a", "\u0301", "yes ", "\n\t")
_CODE = (
    "def step(self, rows: list[int]) -> int:\n    for row in rows:\n        if row % 3 == 0:\n            return row\n"
)


def requests(count: int) -> list[tuple[str, InferenceRequest]]:
    """Second turns, so that the conversation is looked up, each with the kind of its prompt."""
    chosen = random.Random(0)
    languages: dict[str, list[str]] = {}
    for seed in read_seed():
        languages.setdefault(seed.language, []).append(seed.prompt)
    everything = [ask for asks in languages.values() for ask in asks]
    makers: dict[str, Callable[[int], str]] = {
        "usual": lambda _: chosen.choice(everything),
        "long": lambda _: _text(chosen, languages[chosen.choice(("en", "de", "es", "fr"))], chosen.choice(_LONG)),
        "long, Chinese": lambda _: _text(chosen, languages["zh"], chosen.choice(_LONG)),
        "long history": lambda _: chosen.choice(everything),
        "code": lambda number: _CODE.replace("step", f"step{number}") * chosen.randint(1, 40),
        "hostile": lambda number: chosen.choice(_HOSTILE) * chosen.choice(_LONG) + str(number),
    }
    found = []
    for number in range(count):
        kind = "usual" if number % 10 else list(makers)[1 + number // 10 % (len(makers) - 1)]
        text = f"{makers[kind](number)[: _LONG[-1]]} ({number})"
        turns = [("user", f"turn {number}"), ("assistant", "so it is"), ("user", text)]
        if kind == "long history":
            size = chosen.choice(_LONG)
            before = [("user", _text(chosen, everything, 500)), ("assistant", _text(chosen, everything, 1500))]
            turns = before * (size // 2000) + turns
        messages: list[JsonValue] = [{"role": role, "content": content} for role, content in turns]
        found.append((kind, InferenceRequest("chat", {"model": "auto", "messages": messages})))
    return found


def _text(chosen: random.Random, asks: list[str], size: int) -> str:
    """Different sentences of one language, so many characters of them."""
    text = " ".join(chosen.sample(asks, min(len(asks), size // 20)))
    return (text * (size // len(text) + 1))[:size]


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
        request = InferenceRequest("chat", pool[number % len(pool)][1].body)
        started, worked = time.perf_counter(), time.thread_time()
        text = ask(request)
        score = None if text is None else classifier.score(text, vectors[number % len(pool)])
        floor = memory.floor(f"t{number % 50}", request)
        found = decide(request, _TIERS, forced=None, floor=floor, score=score, threshold=0.5)
        memory.remember(f"t{number % 50}", request, found.tier)
        took[number], busy[number] = time.perf_counter() - started, time.thread_time() - worked
        if number % max(chosen.decisions // 10, 1) == 0:
            resident.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    kinds = np.array([pool[number % len(pool)][0] for number in range(chosen.decisions)])
    result: dict[str, Any] = {
        "decisions": chosen.decisions,
        "wall_ms": _quantiles(took),
        "cpu_ms": _quantiles(busy),
        "cpu_ms_by_kind": {kind: _quantiles(busy[kinds == kind]) for kind in np.unique(kinds).tolist()},
        "peak_rss_mb": [round(value, 1) for value in resident],
        "conversations": len(memory),
    }
    if chosen.json:
        print(orjson.dumps(result).decode())
    else:
        lines = result | {f"cpu_ms {kind}": own for kind, own in result.pop("cpu_ms_by_kind").items()}
        print("\n".join(f"{name:<22}{value}" for name, value in lines.items() if name != "cpu_ms_by_kind"))
    return 0 if result["cpu_ms"][1] < 1 else 1


def _quantiles(seconds: NDArray[np.float64]) -> list[float]:
    return [round(float(value) * 1000, 4) for value in np.quantile(seconds, (0.5, 0.99, 1.0))]


if __name__ == "__main__":
    sys.exit(main())
