"""Does the simulator agree with queueing theory, and are its intervals honest?

    python -m bench.capacity_theory [--seeds 200] [--loads 0.5,0.7,0.8,0.9,0.95] [--servers 2,8] [--room 20] \\
        [--stages 4] [--jobs 2] [--json]

M/M/1, M/D/1, M/M/c, M/D/c, M/M/c/K and E_k/D/1, each at each load, simulated with many seeds; the exact mean response
is that of Erlang (M/M/c, M/M/c/K), Pollaczek and Khinchine (M/D/1) and Crommelin (M/D/c; the wait of E_k/D/1 is that of
M/D/k at k times the arrival rate). Demanded: the mean over the seeds within 1 %; the run's own 95 % interval around the
exact value in 93 % of all runs and 90 % of each cell's; every request with one outcome and Little's law in every run.
Runs are as long as their load asks for: 2500 requests / (1 - load)^2, at least 40,000. Exit 1 where a demand is missed.
"""

import argparse
import math
import multiprocessing
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import orjson

from capacity.arrivals import Gamma, Poisson
from capacity.queues import mdc_wait, mmc, mmck
from capacity.scheduler import Scheduler
from capacity.simulate import run
from capacity.step_model import StepModel
from capacity.workload import Group, Spread, Synthetic

WITHIN, POOLED, EACH, LITTLE = 0.01, 0.93, 0.90, 1e-6


@dataclass(frozen=True)
class Cell:
    """A queue at a load; service takes 1 s on average. `room`: most in the system; `stages`: of the Erlang gaps."""

    name: str
    load: float
    servers: int = 1
    exponential: bool = False
    room: int | None = None
    stages: int = 1

    @property
    def rate(self) -> float:
        """Arrivals per second."""
        return self.load * self.servers

    @property
    def requests(self) -> int:
        """Enough for the slow mixing at high loads."""
        return max(40_000, math.ceil(2500 / (1 - self.load) ** 2))

    def exact(self) -> float:
        """Mean response of those who are served, in seconds."""
        if self.room is not None:
            return mmck(self.rate, 1.0, self.servers, self.room).response_s
        if self.exponential:
            return 1 + mmc(self.rate, 1.0, self.servers).wait_s
        return 1 + mdc_wait(self.rate * self.stages, 1.0, self.servers * self.stages)


@dataclass(frozen=True)
class Run:
    """One seed: its mean, whether its interval holds the exact one, and whether its books balance."""

    mean: float
    covers: bool
    balanced: bool


def simulate(cell: Cell, seed: int) -> Run:
    """One run of a cell."""
    arrivals = Poisson(cell.rate) if cell.stages == 1 else Gamma(cell.rate, 1 / math.sqrt(cell.stages))
    shape = "exponential" if cell.exponential else "fixed"
    workload = Synthetic(arrivals, cell.requests, [Group("all", 1, Spread(1, 1))], 1.0, shape)
    waiting = None if cell.room is None else cell.room - cell.servers
    scheduler = Scheduler("work-conserving", max_num_seqs=1, replicas=cell.servers, max_waiting=waiting)
    # Cells that shared their random numbers would err together.
    own = zlib.crc32(f"{cell.name} {cell.load}".encode()) + seed
    result = run(workload, scheduler, StepModel.of_batch(0.0, 0.0), own, warmup=0.05)
    found, exact = result.mean("e2e"), cell.exact()
    ratio = result.littles_law_ratio
    balanced = sum(result.counts().values()) == len(result) and ratio is not None and abs(ratio - 1) < LITTLE
    covers = found.low is not None and found.high is not None and found.low <= exact <= found.high
    return Run(found.value, covers, balanced)


def cells(loads: Sequence[float], servers: Sequence[int], room: int, stages: int) -> Iterator[Cell]:
    """Every queue at every load."""
    for load in loads:
        yield Cell("M/M/1", load, exponential=True)
        yield Cell("M/D/1", load)
        for count in servers:
            yield Cell(f"M/M/{count}", load, count, exponential=True)
            yield Cell(f"M/D/{count}", load, count)
            yield Cell(f"M/M/{count}/{max(room, count)}", load, count, exponential=True, room=max(room, count))
        yield Cell(f"E_{stages}/D/1", load, stages=stages)


def _cell(task: tuple[Cell, Sequence[int]]) -> list[Run]:
    cell, seeds = task
    return [simulate(cell, seed) for seed in seeds]


def measure(found: Sequence[Cell], seeds: int, jobs: int) -> Iterator[dict[str, object]]:
    """A line per cell, the long ones in parts so that no process waits for another."""
    part = max(seeds // 8, 1)
    tasks = [(cell, range(first, min(first + part, seeds))) for cell in found for first in range(0, seeds, part)]
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        runs: dict[Cell, list[Run]] = {cell: [] for cell in found}
        left = {cell: sum(task[0] is cell for task in tasks) for cell in found}
        for (cell, _), done in zip(tasks, pool.imap(_cell, tasks), strict=True):
            runs[cell] += done
            left[cell] -= 1
            if not left[cell]:
                yield line(cell, runs[cell])


def line(cell: Cell, runs: Sequence[Run]) -> dict[str, object]:
    """What the report says of a cell."""
    mean, exact = float(np.mean([one.mean for one in runs])), cell.exact()
    error, coverage = mean / exact - 1, float(np.mean([one.covers for one in runs]))
    balanced = all(one.balanced for one in runs)
    missed = [
        name
        for name, met in (("mean", abs(error) <= WITHIN), ("coverage", coverage >= EACH), ("balance", balanced))
        if not met
    ]
    return {
        "queue": cell.name,
        "load": cell.load,
        "requests": cell.requests,
        "exact_s": exact,
        "mean_s": mean,
        "error": error,
        "coverage": coverage,
        "balanced": balanced,
        "missed": missed,
    }


def main() -> int:
    """Run every cell and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--loads", default="0.5,0.7,0.8,0.9,0.95")
    parser.add_argument("--servers", default="2,8")
    parser.add_argument("--room", type=int, default=20)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    loads = [float(one) for one in args.loads.split(",")]
    servers = [int(one) for one in args.servers.split(",")]
    started, lines = time.perf_counter(), []
    simulate(Cell("M/M/1", 0.5, exponential=True), 0)  # compiled once, before the processes part
    if not args.json:
        print(f"{'queue':<10} {'load':>5} {'requests':>9} {'exact':>9} {'mean':>9} {'error':>8} {'coverage':>9}")
    for one in measure(list(cells(loads, servers, args.room, args.stages)), args.seeds, args.jobs):
        lines.append(one)
        if not args.json:
            figures = f"{one['exact_s']:>9.4f} {one['mean_s']:>9.4f} {one['error']:>+8.3%} {one['coverage']:>9.1%}"
            missed = "" if not one["missed"] else f"  missed {one['missed']}"
            print(f"{one['queue']:<10} {one['load']:>5} {one['requests']:>9} {figures}{missed}", flush=True)
    pooled = float(np.mean([float(str(one["coverage"])) for one in lines]))
    good = pooled >= POOLED and not any(one["missed"] for one in lines)
    if args.json:
        document = {"cells": lines, "coverage": pooled, "met": good}
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        verdict = "all met" if good else "MISSED"
        print(f"coverage of all runs {pooled:.1%}; {verdict}; {time.perf_counter() - started:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
