"""Fit, simulate, measure: does the simulator foretell what a real engine does to a trace?

    python -m bench.foretold --url http://host:port/v1 --model m --trace F.csv --max-num-seqs 8 \\
        [--max-num-batched-tokens 2048] [--load 0.8] [--requests 120] [--rounds 3] [--step-model step.json] [--json]

Every round is the whole chain, so that a machine whose speed drifts is fitted as it is when it is measured: `forebay
bench fit` profiles the engine; the saturated throughput is what `forebay simulate` gets through with the fit when the
whole trace lies ready; the trace is then brought to `--load` of that. `forebay simulate` with the fit, and `forebay
bench` against the engine, take the same trace at the same times. Demanded: output tokens per second within 15 %, the
medians of TTFT and TPOT within 20 %, in the median of the rounds. Exits with 1 where that is missed. The engine must
have nothing else to do. Prompts over 400 and answers over 60 tokens are cut. A round takes about ten minutes.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np

from capacity.traces import read_trace

DEMANDS = {"throughput_tok_s": 0.15, "ttft": 0.20, "tpot": 0.20}
LONGEST_PROMPT, LONGEST_OUTPUT = 400, 60
# How often everything is profiled in the fit of one round.
FIT_ROUNDS = 2


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
        rounds = []
        for _ in range(given.rounds):
            if given.step_model is None:
                _fit(given, model)
            rounds.append(chain(given, trace, model))
        report = summary(rounds, given.load)
    if given.json:
        print(json.dumps(report))
    else:
        scales = ", ".join(f"{scale:.3f}" for scale in report["scales"])
        print(f"{scales} times the trace's rate, {given.load:.0%} of what saturates the simulated engine")
        print(f"{'':<18} {'simulated':>11} {'measured':>11} {'off':>8}")
        for row in report["rows"]:
            print(f"{row['figure']:<18} {row['simulated']:>11.4f} {row['measured']:>11.4f} {row['off']:>+8.1%}")
    return 1 if report["missed"] else 0


def _fit(given: argparse.Namespace, out: Path) -> None:
    batches = sorted({1, 2, given.max_num_seqs // 2, given.max_num_seqs} - {0})
    forebay(
        "bench", "fit", "--url", given.url, "--model", given.model, "--batches", ",".join(map(str, batches)),
        "--contexts", "32,400", "--prompts", "16,64,128,256,400", "--out", str(out), "--rounds", str(FIT_ROUNDS),
        "--engine", f"max_num_seqs={given.max_num_seqs}",
        "--engine", f"max_num_batched_tokens={given.max_num_batched_tokens}",
    )  # fmt: skip


@dataclass(frozen=True)
class Round:
    """What was foretold and what was measured in one round, at so many times the trace's rate."""

    scale: float
    simulated: dict[str, float]
    measured: dict[str, float]

    def off(self, figure: str) -> float:
        """How far the simulated figure is from the measured one, as a share of that."""
        return self.simulated[figure] / self.measured[figure] - 1


def chain(given: argparse.Namespace, trace: Path, model: Path) -> Round:
    """Simulate with the fit, and measure the same."""
    engine: Sequence[str] = (
        "--scheduler", "chunked", "--max-num-seqs", str(given.max_num_seqs), "--max-num-batched-tokens",
        str(given.max_num_batched_tokens), "--step-model", str(model), "--trace", str(trace),
    )  # fmt: skip
    most = forebay("simulate", *engine, "--rate-scale", "1e9")["throughput_tok_s"]
    asked = read_trace(trace).requests
    offered = float(asked.output.sum()) / float(asked.arrived[-1])
    scale = given.load * most / offered
    simulated = figures(forebay("simulate", *engine, "--rate-scale", str(scale)))
    load = ("--trace", str(trace), "--rate-scale", str(scale), "--ignore-eos", "on")
    document = forebay("bench", "--url", given.url, "--model", given.model, *load)
    found = Round(scale, simulated, figures(document))
    print(f"simulated {simulated}\nmeasured {found.measured}, valid: {document['valid']}", file=sys.stderr, flush=True)
    return found


def summary(rounds: Sequence[Round], load: float) -> dict[str, Any]:
    """Simulated beside measured in the median of the rounds, and what is missed."""
    rows = [
        {
            "figure": name,
            "simulated": median(one.simulated[name] for one in rounds),
            "measured": median(one.measured[name] for one in rounds),
            "off": median(one.off(name) for one in rounds),
            "rounds": [one.off(name) for one in rounds],
        }
        for name in rounds[0].simulated
    ]
    missed = [row["figure"] for row in rows if abs(cast("float", row["off"])) > DEMANDS.get(str(row["figure"]), 1e9)]
    return {"scales": [one.scale for one in rounds], "load": load, "rows": rows, "missed": missed}


if __name__ == "__main__":
    sys.exit(main())
