"""How fast and how large the simulator is, and what continuous batching is worth by itself.

    FOREBAY_DATA=DIR python -m bench.capacity_simulator [--requests 1000000] [--batches 8,16,32] [--rounds 3] [--json]

speed   continuous batching, 128 slots, lengths of DIR/traces/azure_conv_2023.csv, Poisson at 70 % and 120 % of what the
        slots can do: simulated requests per minute on one core, drawing and percentiles included (median of the
        rounds, by CPU time; the compiler's time is apart, in `first_call_s`); peak memory of such a run in a process of
        its own, and whether two processes print the same bytes and import neither torch nor ray.
waste   answers of 10, 40 and 100 tokens in one static batch: slots used.
static  the load of Anyscale's comparison (1,000 requests, 512 tokens in, exponential 128 out, OPT-13B on one A100 with
        the step times that DistServe published for vLLM): continuous over static at the same batch, which can be at
        most the harmonic number of the batch; what a paged cache's larger batch adds; and the rest of the published 8x
        and 23x, which is no matter of scheduling.

Exit 1 where a demand is missed: 30 million requests per minute, 600 MB, half wasted, the harmonic bound.
"""

import argparse
import csv
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import orjson

from capacity.arrivals import Immediate, Poisson
from capacity.scheduler import Scheduler
from capacity.simulate import Slo, run
from capacity.step_model import DecodeCost, PrefillCost, StepModel
from capacity.traces import read_trace
from capacity.workload import Group, Lengths, Replay, Sampled, Spread, Synthetic, plain

SLOTS, PER_MINUTE, MEGABYTES = 128, 30e6, 600
ENGINE = StepModel(DecodeCost(0.012, 5e-5, 1e-8), PrefillCost(0.012, 4e-5))
PUBLISHED = {"continuous batching": 8, "vLLM": 23}
# Of an A100 with 40 GB at vLLM's 0.9, less the weights of OPT-13B: tokens of its 819,200 bytes each.
PAGED_TOKENS = int((0.9 * 40e9 - 2 * 12.85e9) / 819_200)


def azure(data: Path) -> Lengths:
    """The lengths of the trace."""
    seen = read_trace(data / "traces" / "azure_conv_2023.csv").requests
    return Sampled(seen.prompt, seen.output)


def capacity(lengths: Lengths) -> float:
    """Requests per second that the slots can do with such lengths, from a run that is always full."""
    load = Synthetic(Immediate(), 20_000, [Group("all", 1, lengths)])
    result = run(load, Scheduler("continuous", max_num_seqs=SLOTS), ENGINE, 0)
    return len(result) / result.duration_s


def one_run(data: Path, share: float, requests: int) -> bytes:
    """Draw, simulate and sum up: the JSON document."""
    lengths = azure(data)
    load = Synthetic(Poisson(share * capacity(lengths)), requests, [Group("all", 1, lengths)])
    result = run(load, Scheduler("continuous", max_num_seqs=SLOTS), ENGINE, 1)
    return orjson.dumps(result.document(Slo(1.0, 0.1)))


def speed(data: Path, requests: int, rounds: int) -> dict[str, object]:
    """CPU seconds of a run, as requests per minute."""
    started = time.process_time()
    lengths = azure(data)
    most = capacity(lengths)
    first = time.process_time() - started
    found: dict[str, object] = {"first_call_s": first}
    for share in (0.7, 1.2):
        load = Synthetic(Poisson(share * most), requests, [Group("all", 1, lengths)])
        seconds = []
        for seed in range(rounds):
            begun = time.process_time()
            result = run(load, Scheduler("continuous", max_num_seqs=SLOTS), ENGINE, seed)
            result.document(Slo(1.0, 0.1))
            seconds.append(time.process_time() - begun)
        found[f"per_minute_at_{share:.0%}"] = requests / median(seconds) * 60
    return found


def apart(data: Path, requests: int) -> dict[str, object]:
    """The same run in two processes: their peak memory, and whether they agree."""
    code = (
        "import sys, hashlib, resource; from pathlib import Path; from bench.capacity_simulator import one_run; "
        f"text = one_run(Path({str(data)!r}), 1.2, {requests}); "
        "print(hashlib.sha256(text).hexdigest(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "
        "bool({'torch', 'ray'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    lines = [subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() for _ in range(2)]  # noqa: S603
    return {
        "megabytes": max(int(line[1]) for line in lines),
        "same_bytes": lines[0][0] == lines[1][0],
        "torch_or_ray": any(line[2] == "True" for line in lines),
    }


def waste() -> float:
    """Slots used by the static batch of three answers."""
    tokens = np.array([10, 40, 100], dtype=np.int32)
    three = plain(np.zeros(3), np.full(3, 10, dtype=np.int32), tokens)
    result = run(Replay(three), Scheduler("static", max_num_seqs=3), StepModel.of_batch(0.05, 0.0005), 0)
    return result.totals.slot_steps / result.totals.all_slot_steps


def opt13b(data: Path) -> StepModel:
    """DistServe's fit of vLLM's steps: OPT-13B on one A100."""
    with (data / "capacity" / "distserve_fit_opt13b.csv").open(encoding="utf-8", newline="") as file:
        row = next(one for one in csv.DictReader(file) if one["engine"] == "vllm" and one["tp"] == "1")
    ms = {name: float(value) / 1000 for name, value in row.items() if "_a" in name or "_b" in name or "_c" in name}
    return StepModel(
        DecodeCost(ms["dec_small_a"], ms["dec_small_c_per_req"], ms["dec_small_b_per_ctx_tok"]),
        PrefillCost(ms["prefill_a_ms"], ms["prefill_b_ms_per_tok"], ms["prefill_c_ms_per_tok2"]),
        {"model": row["model"], "tensor_parallel_size": 1},
    )


def scheduling(data: Path, batches: Sequence[int]) -> list[dict[str, object]]:
    """Per batch: what leaving and joining at each step gains, what the larger batch of a paged cache adds."""
    model = opt13b(data)
    load = Synthetic(Immediate(), 1000, [Group("all", 1, Spread(512, 128, output_shape="exponential"))])

    def rate(scheduler: Scheduler) -> float:
        # Tokens per second, all work lying ready; the mean over seeds of the duration.
        runs = [run(load, scheduler, model, seed) for seed in range(5)]
        return sum(float(one.records["output"].sum()) for one in runs) / sum(one.duration_s for one in runs)

    paged = rate(Scheduler("continuous", max_num_seqs=256, kv_blocks=PAGED_TOKENS // 16))
    found: list[dict[str, object]] = []
    for batch in batches:
        static = rate(Scheduler("static", max_num_seqs=batch))
        continuous = rate(Scheduler("continuous", max_num_seqs=batch))
        gain, memory = continuous / static, paged / continuous
        found.append(
            {
                "batch": batch,
                "static_tok_s": static,
                "continuous_tok_s": continuous,
                "scheduling": gain,
                "harmonic": sum(1 / one for one in range(1, batch + 1)),
                "paged_cache": memory,
                "rest": {name: times / (gain * memory) for name, times in PUBLISHED.items()},
            }
        )
    return found


def main() -> int:
    """Measure all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--batches", default="8,16,32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    folder = os.environ.get("FOREBAY_DATA")
    if folder is None:
        print("FOREBAY_DATA names no folder of traces and measurements", file=sys.stderr)
        return 2
    data = Path(folder)
    fast, size = speed(data, args.requests, args.rounds), apart(data, args.requests)
    used, lines = waste(), scheduling(data, [int(one) for one in args.batches.split(",")])
    missed = [
        name
        for name, met in (
            ("speed", all(float(str(value)) >= PER_MINUTE for name, value in fast.items() if "minute" in name)),
            ("size", int(str(size["megabytes"])) <= MEGABYTES),
            ("same bytes", bool(size["same_bytes"])),
            ("imports", not size["torch_or_ray"]),
            ("waste", used == 0.5),
            ("harmonic bound", all(float(str(one["scheduling"])) <= float(str(one["harmonic"])) for one in lines)),
        )
        if not met
    ]
    document = {"speed": fast, "size": size, "static_slots_used": used, "anyscale": lines, "missed": missed}
    if args.json:
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        _print(fast, size, used, lines)
        print("missed: " + (", ".join(missed) or "nothing"))
    return 1 if missed else 0


def _print(
    fast: Mapping[str, object], size: Mapping[str, object], used: float, lines: Sequence[Mapping[str, object]]
) -> None:
    for name, value in fast.items():
        print(f"{name:<24} {value:>14,.1f}")
    for name, value in size.items():
        print(f"{name:<24} {value!s:>14}")
    print(f"{'static slots used':<24} {used:>14.1%}")
    print(f"{'batch':>6} {'scheduling':>11} {'harmonic':>9} {'paged cache':>12}   rest of the published")
    for one in lines:
        rest = one["rest"]
        assert isinstance(rest, dict)  # noqa: S101 - made above
        figures = f"{one['scheduling']:>10.2f}x {one['harmonic']:>8.2f}x {one['paged_cache']:>11.2f}x"
        parts = ", ".join(f"{PUBLISHED[name]}x {name}: {times:.1f}x" for name, times in rest.items())
        print(f"{one['batch']:>6} {figures}   {parts}")


if __name__ == "__main__":
    sys.exit(main())
