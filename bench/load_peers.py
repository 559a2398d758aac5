"""`forebay bench` beside `vllm bench serve` and GuideLLM: the same trace on the same server, in turns.

    python -m bench.load_peers --trace F.csv [--tokenizer DIR] [--rounds 5] [--requests 60] [--rate 8] \\
        [--guidellm PATH] [--url http://host:port/v1 --model m] [--json]

Without `--url` the server is a scripted engine, a fresh one for each run, whose n-th answer always takes the same time;
with one it is whatever answers there (with vLLM, `--rate` at half of what it can do). Each round runs every tool once,
in an order drawn anew; all replay the first requests of the trace over /v1/completions at the same times. The figures
are medians of TTFT, TPOT and E2E; the difference to ours is that of the same round, with an interval over the rounds.

What they call what: vLLM's `tpot` is ours, its E2E ends with the usage event; GuideLLM's `inter_token_latency` is our
TPOT (compared as the median over requests), its `time_per_output_token` is E2E over tokens. `vllm bench serve` comes
with the engines' environment; GuideLLM (`pip install guidellm` in an environment of its own) is left out where
`--guidellm` names no program. Exits with 1 where
a median is over 5 % off on the scripted engine, or where an interval excludes 0 on a real one.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.load.repeats import interval
from bench.load_accuracy import engine
from capacity.traces import read_trace
from deploy.weights import ensure

FIGURES = ("ttft", "tpot", "e2e")
# The scripted engine: times as a mid-sized model has them.
SCRIPT = {"ttft": 0.1, "itl": 0.02, "spread": 0.3}
# Longer prompts and answers are cut: the question is who measures right, not how long it takes.
LONGEST_PROMPT, LONGEST_OUTPUT = 400, 40
BLOCK = 16


@dataclass(frozen=True)
class Slice:
    """The requests that everybody sends, as the tools want them: our CSV, and JSON lines with ids of blocks."""

    csv: Path
    jsonl: Path
    requests: int


@dataclass(frozen=True)
class Where:
    """The server (an address without /v1), its model, and a tokenizer's folder."""

    url: str
    model: str
    tokenizer: str


Tool = Callable[[Slice, Where, Path], dict[str, float]]


def slice_of(trace: Path, count: int, rate: float, folder: Path) -> Slice:
    """The first `count` requests at `rate` per second on average, no prompt like another, written to `folder`."""
    found = read_trace(trace).requests.take(np.arange(count))
    times = found.arrived / (found.arrived[-1] * rate / (count - 1))
    prompts, outputs = np.minimum(found.prompt, LONGEST_PROMPT), np.clip(found.output, 2, LONGEST_OUTPUT)
    rows, lines, used = ["arrived_s,prompt_tokens,output_tokens"], [], 0
    for at, prompt, output in zip(times.tolist(), prompts.tolist(), outputs.tolist(), strict=True):
        rows.append(f"{at:.6f},{prompt},{output}")
        ids = list(range(used, used + -(-prompt // BLOCK)))
        used += len(ids)
        lines.append(json.dumps({"timestamp": at, "input_length": prompt, "output_length": output, "hash_ids": ids}))
    made = Slice(folder / "slice.csv", folder / "slice.jsonl", count)
    made.csv.write_text("\n".join(rows) + "\n", encoding="utf-8")
    made.jsonl.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return made


def ours(what: Slice, where: Where, folder: Path) -> dict[str, float]:  # noqa: ARG001 - a tool's signature
    """`forebay bench`: medians in seconds."""
    load = ["--trace", str(what.csv), "--endpoint", "completions", "--ignore-eos", "on", "--json"]
    command = [sys.executable, "-m", "forebay", "bench", "--url", f"{where.url}/v1", "--model", where.model, *load]
    found = json.loads(_ran(command, check=False))
    return {name: float(found[name]["p50"]) for name in FIGURES}


def vllm(what: Slice, where: Where, folder: Path) -> dict[str, float]:
    """`vllm bench serve`: medians in seconds."""
    options = ["--backend", "openai", "--base-url", where.url, "--endpoint", "/v1/completions", "--model", where.model]
    options += ["--tokenizer", where.tokenizer, "--dataset-name", "timed_trace", "--dataset-path", str(what.jsonl)]
    options += ["--num-prompts", str(what.requests), "--ignore-eos", "--percentile-metrics", "ttft,tpot,e2el"]
    options += ["--save-result", "--result-dir", str(folder), "--result-filename", "vllm.json", "--disable-tqdm"]
    options += ["--ready-check-timeout-sec", "0"]
    _ran([sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "serve", *options])
    found = json.loads((folder / "vllm.json").read_text(encoding="utf-8"))
    return {name: found[f"median_{key}_ms"] / 1e3 for name, key in zip(FIGURES, ("ttft", "tpot", "e2el"), strict=True)}


def guidellm(program: str) -> Tool:
    """GuideLLM, as the tool that `program` is."""

    def tool(what: Slice, where: Where, folder: Path) -> dict[str, float]:
        source = {"kind": "json_file", "path": str(what.jsonl)}
        backend = {"kind": "openai_http", "target": where.url, "model": where.model}
        spec = {
            "backend": {**backend, "request_format": "/v1/completions"},
            "profile": {"kind": "replay", "schedule_turn": "timestamp"},
            "tokenizer": {"kind": "huggingface_auto", "model": where.tokenizer},
            "data": [{"kind": "trace_synthetic", "source": source}],
        }
        document = {"metadata": {"name": "slice"}, "spec": spec, "benchmarks": [{}]}
        config, result = folder / "guidellm.config.json", folder / "guidellm.json"
        config.write_text(json.dumps(document), encoding="utf-8")
        _ran([program, "run", "-c", str(config), "--output", f"kind=json,path={result}", "--disable-console"])
        found = json.loads(result.read_text(encoding="utf-8"))["benchmarks"][0]["metrics"]
        return {
            "ttft": found["time_to_first_token_ms"]["successful"]["median"] / 1e3,
            "tpot": _per_request(json.loads(result.read_text(encoding="utf-8"))),
            "e2e": found["request_latency"]["successful"]["median"],
        }

    return tool


def _per_request(report: dict[str, Any]) -> float:
    """The median of GuideLLM's inter-token latency of each request; its own summary counts a request once a token."""
    requests = report["benchmarks"][0]["requests"]["successful"]
    return float(median(one["inter_token_latency_ms"] for one in requests if one.get("inter_token_latency_ms"))) / 1e3


def _ran(command: Sequence[str], *, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - tools that the user named
    if done.returncode and (check or not done.stdout):
        raise RuntimeError(f"{command[0]}: {done.stderr[-2000:]}")
    return done.stdout


def compared(tools: dict[str, Tool], what: Slice, given: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """A row per peer and figure: both medians, and the difference within a round, with its interval over the rounds."""
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in tools}
    order, shuffle = list(tools), random.Random(0)  # an order, not a secret
    for round_ in range(given.rounds):
        shuffle.shuffle(order)
        for name in order:
            with engine(SCRIPT, folder / "log") if given.url is None else nullcontext(given.url) as url:
                where = Where(url.rstrip("/").removesuffix("/v1"), given.model, given.tokenizer)
                seen[name].append(tools[name](what, where, folder))
            print(f"round {round_ + 1}: {name} {seen[name][-1]}", file=sys.stderr)
    rows = []
    for name in tools:
        for figure in FIGURES if name != "forebay" else ():
            mine = [one[figure] for one in seen["forebay"]]
            theirs = [one[figure] for one in seen[name]]
            shares = [(a - b) / b for a, b in zip(mine, theirs, strict=True)]
            rows.append(
                {
                    "peer": name, "figure": figure, "ours": median(mine), "theirs": median(theirs),
                    "difference": median(shares), "ci95": interval(shares),
                }
            )  # fmt: skip
    return rows


def versions(guidellm_program: str | None) -> dict[str, str]:
    """What was measured against."""
    found = {"vllm": _ran([sys.executable, "-c", "import vllm; print(vllm.__version__)"]).strip().splitlines()[-1]}
    if guidellm_program is not None:
        python = str(Path(guidellm_program).with_name("python"))
        code = "from importlib.metadata import version; print(version('guidellm'))"
        found["guidellm"] = _ran([python, "-c", code]).strip()
    return found


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.load_peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--tokenizer", help="a folder; without it, that of the demonstration model")
    parser.add_argument("--guidellm", metavar="PATH", help="the guidellm program")
    parser.add_argument("--url", help="a real server, with /v1 or without; else a scripted engine")
    parser.add_argument("--model", default="m")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--rate", type=float, default=8.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    given.tokenizer = given.tokenizer or str(ensure(lambda *_: None))
    tools: dict[str, Tool] = {"forebay": ours, "vllm": vllm}
    if given.guidellm is not None:
        tools["guidellm"] = guidellm(given.guidellm)
    with tempfile.TemporaryDirectory(prefix="forebay-peers-") as name:
        folder = Path(name)
        what = slice_of(given.trace, given.requests, given.rate, folder)
        rows = compared(tools, what, given, folder)
    found = versions(given.guidellm)
    missed = [row for row in rows if _apart(row, real=given.url is not None)]
    if given.json:
        print(json.dumps({"rounds": given.rounds, "versions": found, "rows": rows, "missed": missed}))
    else:
        print(", ".join(f"{name} {version}" for name, version in found.items()), f"{given.rounds} rounds")
        print(f"{'peer':<10} {'median':<6} {'ours ms':>10} {'theirs ms':>10} {'difference':>11}   95 %")
        for row in rows:
            ends = "-" if row["ci95"] is None else f"{row['ci95'][0]:+.1%} … {row['ci95'][1]:+.1%}"
            times = f"{row['ours'] * 1e3:>10.3f} {row['theirs'] * 1e3:>10.3f} {row['difference']:>+11.1%}"
            print(f"{row['peer']:<10} {row['figure']:<6} {times}   {ends}")
    return 1 if missed else 0


def _apart(row: dict[str, Any], *, real: bool) -> bool:
    if not real:
        return abs(float(row["difference"])) > 0.05
    ends: list[float] | None = row["ci95"]
    return ends is not None and not ends[0] <= 0 <= ends[1]


if __name__ == "__main__":
    sys.exit(main())
