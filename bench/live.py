"""Real vLLM engines against each other, in turns: how batches are made, how prompts are cut, where they are prefilled.

    python -m bench.live [--only batching chunked apart] [--rounds 5] [--html F.html] [--json]

Each comparison is a configuration whose two tiers are the two sides, started by `forebay up` and ended after; the load
goes to the engines' own addresses, so no cache and no gateway is in the way. Every round takes both sides, in an order
drawn anew; figures are B over A within a round, their median and interval over the rounds (Student).

* `batching`: one engine, the same requests (exponential answer lengths) from two kinds of clients. Static: as many as
  the engine has slots go out together, the next ones when the longest of them has ended. Continuous: a slot is taken
  again as soon as its answer ends. Output tokens per second. Scheduling alone can gain H_B at most.
* `chunked`: prompts cut to what is left of a step's budget (A: off, B: on), while long prompts come into running
  answers. The longest gaps between tokens (ITL p99) of the short requests, and the long ones' TTFT.
* `apart`: prefill and decode in one engine (A) and in two (B, the KV cache handed over). TTFT and TPOT. On a machine of
  two cores NIXL's threads spin on them: its figures say that the path works, not what it gains.

Needs the engines' environment; minutes per comparison. Nothing here is demanded: what comes out is what is.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np

from bench.load.loop import Job, Loop, Users
from bench.load.measures import Run, Wanted
from bench.load.prompts import Prompts, Synthetic
from bench.load.records import Measured, measured
from bench.load.repeats import interval
from bench.load.svg import Series, plot
from bench.load.target import Target

SLOTS = 8
# Of a round: requests, prompt tokens, mean answer tokens.
REQUESTS, PROMPT, OUTPUT = 48, 32, 24
LONG_PROMPT = 600
Figures = dict[str, float]


class Side:
    """One engine: sends loads to it."""

    def __init__(self, url: str, model: str, salt: int) -> None:
        self._target, self._model, self._salt = Target(url), model, salt

    def send(
        self, prompt: Sequence[int], output: Sequence[int], due: Sequence[float] = (), users: int | None = None
    ) -> Measured:
        """Requests of these lengths: at these times (seconds), or from so many clients."""
        self._salt += 1
        texts = Synthetic(np.array(prompt, "i4"), np.array(output, "i4"), self._salt)
        closed = None if users is None else Users(users)
        index = np.arange(len(prompt))
        loop = Loop(Job(self._target, Prompts(self._model, texts), index, np.array(due, dtype=float), closed))
        loop.open()
        start = time.monotonic() + 0.02
        loop.run(start)
        found = measured(loop.seen, start, loop.area, 0.0)
        errors = found.requests["error"][found.requests["error"] != ""]
        if len(errors):
            raise RuntimeError(f"{len(errors)} of {len(prompt)} answers failed: {errors[0]}")
        return found


def lengths(seed: int) -> list[int]:
    """Answer lengths of a round: exponential, at least 1."""
    return [int(one) for one in np.random.default_rng(seed).geometric(1 / OUTPUT, REQUESTS)]


def seconds(found: Measured) -> float:
    """From the first request going out to the last token."""
    return float(np.nanmax(found.requests["last"]) - found.requests["begun"].min())


def static(side: Side, seed: int) -> Figures:
    """Batches that wait for their longest."""
    outputs, spent = lengths(seed), 0.0
    for first in range(0, len(outputs), SLOTS):
        batch = outputs[first : first + SLOTS]
        spent += seconds(side.send([PROMPT] * len(batch), batch, due=[0.0] * len(batch)))
    return {"tok_s": sum(outputs) / spent}


def continuous(side: Side, seed: int) -> Figures:
    """Clients that take the next request when theirs has ended."""
    outputs = lengths(seed)
    return {"tok_s": sum(outputs) / seconds(side.send([PROMPT] * len(outputs), outputs, users=SLOTS))}


def disturbed(side: Side, seed: int) -> Figures:
    """Short requests that run, long prompts that come in between."""
    rng = np.random.default_rng(seed)
    short, long_ = 16, 4
    prompt = [PROMPT] * short + [LONG_PROMPT] * long_
    output = [OUTPUT] * short + [4] * long_
    due = [*np.sort(rng.uniform(0, 8, short)).tolist(), *(1.0 + 2.0 * place for place in range(long_))]
    order = np.argsort(due, kind="stable")
    found = side.send(
        [prompt[place] for place in order], [output[place] for place in order], [due[place] for place in order]
    )
    unknown = np.full(len(prompt), -1)
    run = Run(found, Wanted(unknown, unknown, (), (1, 1), open_loop=True))
    is_long = np.array(prompt)[order][found.requests["index"]] == LONG_PROMPT
    return {
        "itl_p99": float(np.percentile(run.values("itl", ~is_long), 99)),
        "long_ttft_p50": float(np.median(run.values("ttft", is_long))),
        "e2e_p50": float(np.median(run.values("e2e", ~is_long))),
    }


def steady(side: Side, seed: int) -> Figures:
    """A few requests with longer prompts at an easy rate."""
    rng = np.random.default_rng(seed)
    due = np.cumsum(rng.exponential(1.5, 10)).tolist()
    found = side.send([200] * 10, [OUTPUT] * 10, due).requests
    ttft = found["first"] - found["begun"]
    return {
        "ttft_p50": float(np.median(ttft)),
        "tpot_p50": float(np.median((found["last"] - found["first"]) / (OUTPUT - 1))),
    }


Load = Callable[[Side, int], Figures]
# Every prompt goes over; one that cannot is an error, so that nothing is measured that did not happen.
APART = {"min_prompt_tokens": 0, "prefill_deadline": None, "on_prefill_failure": "error"}
# What differs: the engine's arguments (or the tier's) of A and B, and the load of each.
COMPARISONS: dict[str, tuple[tuple[str, dict[str, Any], Load], tuple[str, dict[str, Any], Load]]] = {
    "batching": (("static", {}, static), ("continuous", {}, continuous)),
    "chunked": (
        ("off", {"engine": {"enable_chunked_prefill": False, "max_num_batched_tokens": 2048}}, disturbed),
        ("on", {"engine": {"enable_chunked_prefill": True, "max_num_batched_tokens": 64}}, disturbed),
    ),
    "apart": (("together", {}, steady), ("apart", {"disaggregation": APART}, steady)),
}


def document(name: str, source: str) -> dict[str, Any]:
    """The configuration of a comparison: the small tier is A, the frontier tier B; one tier where both are the same."""
    tiers = {}
    for tier, (_, settings, _) in zip(("small", "frontier"), COMPARISONS[name], strict=True):
        engine = {"max_num_seqs": SLOTS, **settings.get("engine", {})}
        tiers[tier] = {"model": f"{name}-{tier}", "source": source, **settings, "engine": engine}
    if COMPARISONS[name][0][1] == COMPARISONS[name][1][1]:
        del tiers["frontier"]
    return {"gateway": {"port": 0}, "cache": {"semantic": {"enabled": False}}, "tiers": tiers}


@contextmanager
def stack(configuration: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """`forebay up` in the foreground: what it says of itself when it is ready; ended afterwards."""
    with tempfile.TemporaryDirectory(prefix="forebay-live-") as folder:
        config = Path(folder) / "forebay.json"
        config.write_text(json.dumps(configuration), encoding="utf-8")
        command = [sys.executable, "-m", "forebay", "up", "--config", str(config), "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own
            try:
                line = cast("Any", process.stdout).readline()
                if not line:
                    raise RuntimeError("`forebay up` ended while starting; its reason is above")
                yield json.loads(line)
            finally:
                process.terminate()
                process.wait(120)


def measure(name: str, rounds: int, source: str) -> list[dict[str, Any]]:
    """A row per figure of one comparison."""
    sides = COMPARISONS[name]
    with stack(document(name, source)) as state:
        tiers = [state["tiers"].get(tier) or state["tiers"]["small"] for tier in ("small", "frontier")]
        engines = [Side(tier["url"], tier["model"], 1000 * place) for place, tier in enumerate(tiers)]
        for (_, _, load), side in zip(sides, engines, strict=True):
            load(side, 0)
        seen: tuple[list[Figures], list[Figures]] = ([], [])
        shuffle = random.Random(0)  # an order, not a secret
        for round_ in range(1, rounds + 1):
            for place in shuffle.sample((0, 1), 2):
                seen[place].append(sides[place][2](engines[place], round_))
                print(f"{name}, round {round_}: {sides[place][0]} {seen[place][-1]}", file=sys.stderr)
    return rows(name, (sides[0][0], sides[1][0]), seen)


def rows(name: str, names: tuple[str, str], seen: tuple[list[Figures], list[Figures]]) -> list[dict[str, Any]]:
    """B over A, figure by figure."""
    found = []
    for figure in seen[0][0]:
        a, b = ([one[figure] for one in side] for side in seen)
        ratios = [right / left for left, right in zip(a, b, strict=True)]
        found.append(
            {
                "comparison": name, "figure": figure, "a": names[0], "b": names[1], "a_median": median(a),
                "b_median": median(b), "ratio": median(ratios), "ci95": interval(ratios), "rounds": len(ratios),
                "a_rounds": a, "b_rounds": b,
            }
        )  # fmt: skip
    return found


def page(found: Sequence[dict[str, Any]]) -> str:
    """Both sides of every figure, round by round, as one HTML file."""
    plots = []
    for row in found:
        numbers = np.arange(1, row["rounds"] + 1, dtype=float)
        sides = [Series(row[side], numbers, np.array(row[f"{side}_rounds"])) for side in ("a", "b")]
        ratio = f"{row['b']} over {row['a']}: {row['ratio']:.2f}"
        plots.append(plot(f"{row['comparison']}, {row['figure']}; {ratio}", "round", row["figure"], sides))
    head = "<!doctype html><meta charset='utf-8'><title>bench.live</title><style>svg{width:640px;display:block}</style>"
    return "\n".join([head, *plots])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.live", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=COMPARISONS, default=list(COMPARISONS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="packaged:SmolLM2-135M-Instruct", metavar="SOURCE")
    parser.add_argument(
        "--html", type=Path, metavar="F.html", help="write plots: static against continuous, and the rest"
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = [row for name in given.only for row in measure(name, given.rounds, given.model)]
    if given.html is not None:
        given.html.write_text(page(found), encoding="utf-8")
    if given.json:
        print(json.dumps({"rounds": given.rounds, "slots": SLOTS, "model": given.model, "rows": found}))
        return
    print(f"{'comparison':<10} {'figure':<14} {'A':>22} {'B':>22} {'B over A':>9}   95 %")
    for row in found:
        sides = " ".join(f"{row[side]:>12} {row[f'{side}_median']:>9.4f}" for side in ("a", "b"))
        ends = "-" if row["ci95"] is None else f"{row['ci95'][0]:.2f} … {row['ci95'][1]:.2f}"
        print(f"{row['comparison']:<10} {row['figure']:<14} {sides} {row['ratio']:>9.2f}   {ends}")


if __name__ == "__main__":
    main()
