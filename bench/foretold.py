"""Fit, simulate, measure: does the simulator foretell what a real engine does to a trace?

    python -m bench.foretold --url http://host:port/v1 --model m --trace F.csv --max-num-seqs 8 \\
        [--max-num-batched-tokens 2048] [--load 0.8] [--requests 120] [--rounds 3] [--step-model step.json] [--json]

`forebay bench fit` profiles the engine; the saturated throughput is what `forebay simulate` gets through with the fit
when the whole trace lies ready; the trace is then brought to `--load` of that. `forebay simulate` with the fit, and
`forebay bench` against the engine, take the same trace at the same times. Demanded: output tokens per second within
15 %, the medians of TTFT and TPOT within 20 %, in the median of the rounds. Exits with 1 where that is missed. The
engine must have nothing else to do. Prompts over 400 and answers over 60 tokens are cut.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np

from capacity.traces import read_trace

DEMANDS = {"throughput_tok_s": 0.15, "ttft": 0.20, "tpot": 0.20}
LONGEST_PROMPT, LONGEST_OUTPUT = 400, 60


def cut(trace: Path, count: int, out: Path) -> None:
    """The first requests of a trace, long ones cut."""
    found = read_trace(trace).requests
    found = found.take(np.arange(min(count, len(found))))
    prompts, outputs = np.minimum(found.prompt, LONGEST_PROMPT), np.clip(found.output, 2, LONGEST_OUTPUT)
    rows = zip((found.arrived - found.arrived[0]).tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    lines = [f"{at:.6f},{prompt},{output}" for at, prompt, output in rows]
    out.write_text("\n".join(["arrived_s,prompt_tokens,output_tokens", *lines]) + "\n", encoding="utf-8")


def forebay(*words: str) -> dict[str, Any]:
    """The document of a command. Raises RuntimeError with what it said where there is none."""
    command = [sys.executable, "-m", "forebay", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    if not done.stdout:
        raise RuntimeError(done.stderr[-2000:])
    return cast("dict[str, Any]", json.loads(done.stdout))


def figures(document: dict[str, Any]) -> dict[str, float]:
    """What is compared."""
    return {
        "throughput_tok_s": document["throughput_tok_s"],
        "ttft": document["ttft"]["p50"],
        "tpot": document["tpot"]["p50"],
        "e2e": document["e2e"]["p50"],
        "ttft p95": document["ttft"]["p95"],
    }


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.foretold", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--max-num-seqs", type=int, required=True)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--load", type=float, default=0.8, help="of what saturates the engine")
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step-model", type=Path, help="an earlier fit, instead of profiling")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="forebay-foretold-") as folder:
        trace, model = Path(folder) / "trace.csv", given.step_model or Path(folder) / "step.json"
        cut(given.trace, given.requests, trace)
        if given.step_model is None:
            _fit(given, model)
        report = foretold(given, trace, model)
    if given.json:
        print(json.dumps(report))
    else:
        print(f"{report['scale']:.3f} times the trace's rate, {given.load:.0%} of what saturates the simulated engine")
        print(f"{'':<18} {'simulated':>11} {'measured':>11} {'off':>8}")
        for row in report["rows"]:
            print(f"{row['figure']:<18} {row['simulated']:>11.4f} {row['measured']:>11.4f} {row['off']:>+8.1%}")
    return 1 if report["missed"] else 0


def _fit(given: argparse.Namespace, out: Path) -> None:
    batches = sorted({1, 2, given.max_num_seqs // 2, given.max_num_seqs} - {0})
    forebay(
        "bench", "fit", "--url", given.url, "--model", given.model, "--batches", ",".join(map(str, batches)),
        "--contexts", "32,400", "--prompts", "16,64,128,256,400", "--out", str(out), "--rounds", str(given.rounds),
        "--engine", f"max_num_seqs={given.max_num_seqs}",
        "--engine", f"max_num_batched_tokens={given.max_num_batched_tokens}",
    )  # fmt: skip


def foretold(given: argparse.Namespace, trace: Path, model: Path) -> dict[str, Any]:
    """Simulated beside measured, and what is missed."""
    engine: Sequence[str] = (
        "--scheduler", "chunked", "--max-num-seqs", str(given.max_num_seqs), "--max-num-batched-tokens",
        str(given.max_num_batched_tokens), "--step-model", str(model), "--trace", str(trace),
    )  # fmt: skip
    most = forebay("simulate", *engine, "--rate-scale", "1e9")["throughput_tok_s"]
    asked = read_trace(trace).requests
    offered = float(asked.output.sum()) / float(asked.arrived[-1])
    scale = given.load * most / offered
    simulated = figures(forebay("simulate", *engine, "--rate-scale", str(scale)))
    runs = []
    for _ in range(given.rounds):
        load = ("--trace", str(trace), "--rate-scale", str(scale), "--ignore-eos", "on")
        document = forebay("bench", "--url", given.url, "--model", given.model, *load)
        runs.append(figures(document))
        print(f"measured {runs[-1]}, valid: {document['valid']}", file=sys.stderr)
    rows = []
    for name, value in simulated.items():
        measured = median(one[name] for one in runs)
        rows.append({"figure": name, "simulated": value, "measured": measured, "off": value / measured - 1})
    missed = [row["figure"] for row in rows if abs(cast("float", row["off"])) > DEMANDS.get(str(row["figure"]), 1e9)]
    return {"scale": scale, "saturated_tok_s": most, "load": given.load, "rows": rows, "missed": missed}


if __name__ == "__main__":
    sys.exit(main())
