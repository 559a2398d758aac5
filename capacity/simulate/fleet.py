"""Two tiers with the response cache and the router in front: who is answered where, and what comes of it."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from capacity.scheduler import Scheduler
from capacity.simulate.result import Result, Totals
from capacity.simulate.runs import run
from capacity.simulate.world import DONE, REQUEST, STEP, Records
from capacity.step_model import StepModel
from capacity.workload import Replay, Requests, Workload
from core.errors import ConfigError, Problem

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Tier:
    """One tier's scheduler (replicas included) and what its steps cost."""

    scheduler: Scheduler
    step_model: StepModel


@dataclass(frozen=True)
class Fleet:
    """What stands behind the gateway. Shares are of independent requests, as metrics of the gateway give them.

    `cache_hit_rate`: of all requests; a hit is answered whole after `cache_s`. `frontier_share`: of the misses.
    `overhead_s`: what the gateway adds to each miss before its tier sees it.
    """

    small: Tier
    frontier: Tier | None = None
    frontier_share: float = 0.0
    cache_hit_rate: float = 0.0
    cache_s: float = 0.001
    overhead_s: float = 0.0

    def __post_init__(self) -> None:
        problems = [
            Problem(name, f"{value!r}; legal is a share from 0 to 1")
            for name, value in (("cache_hit_rate", self.cache_hit_rate), ("frontier_share", self.frontier_share))
            if not 0 <= value <= 1
        ]
        if self.frontier is None and self.frontier_share > 0:
            problems.append(Problem("frontier_share", "above 0 needs the frontier tier's step model"))
        if problems:
            raise ConfigError(problems)


WAYS = ("cache", "small", "frontier")


def run_fleet(workload: Workload, fleet: Fleet, seed: int, *, warmup: float = 0.0, log_steps: int = 0) -> Result:
    """Take the requests of `seed` through the fleet; the classes are cache, small and frontier.

    Where the workload names classes of its own, each is parted by the way it went.
    """
    requests = workload.draw(seed)
    if requests.clients is not None:
        raise ConfigError([Problem("concurrency", "a closed loop is for one tier, not for a fleet")])
    # Other dice than those of the workload: a hit rate must not choose among lengths.
    rng = np.random.default_rng([seed, 1])
    hit = rng.random(len(requests)) < fleet.cache_hit_rate
    strong = rng.random(len(requests)) < fleet.frontier_share
    way = np.where(hit, 0, np.where(strong, 2, 1)).astype(np.int16)
    parts = []
    for index, tier in ((1, fleet.small), (2, fleet.frontier)):
        rows = np.flatnonzero(way == index)
        if tier is not None and len(rows):
            part = replace(requests.take(rows), arrived=requests.arrived[rows] + fleet.overhead_s)
            parts.append((rows, run(Replay(part), tier.scheduler, tier.step_model, seed, log_steps=log_steps)))
    return _together(requests, way, parts, fleet, warmup)


def _together(
    requests: Requests, way: NDArray[np.int16], parts: list[tuple[Rows, Result]], fleet: Fleet, warmup: float
) -> Result:
    records = np.zeros(len(requests), dtype=REQUEST)
    hits = way == 0
    for name in ("arrived", "prompt", "output", "priority"):
        records[name] = getattr(requests, name)
    records["started"] = requests.arrived
    records["first"] = records["finished"] = requests.arrived + fleet.cache_s
    records["outcome"] = DONE
    records["replica"] = -1
    totals = Totals(float(hits.sum()) * fleet.cache_s, 0.0, 0, 0.0, 0.0)
    logs: list[Records] = []
    warnings: list[str] = []
    before = 0
    for rows, part in parts:
        moved = part.records.copy()
        # The wait for the gateway counts, and the tiers' replicas are numbered through.
        moved["arrived"] = requests.arrived[rows]
        moved["replica"] += before
        records[rows] = moved
        log = part.log.copy()
        log["replica"] += before
        logs.append(log)
        warnings.extend(part.warnings)
        served = (moved["outcome"] == DONE).sum()
        totals = totals.plus(part.totals)
        totals = replace(totals, in_system=totals.in_system + float(served) * fleet.overhead_s)
        before = int(max(moved["replica"].max(), log["replica"].max(initial=-1))) + 1
    names: tuple[str, ...] = WAYS
    group = way
    if requests.names:
        names = tuple(f"{name}, {one}" for name in requests.names for one in WAYS)
        group = (requests.group * len(WAYS) + way).astype(np.int16)
    log = np.concatenate(logs) if logs else np.zeros(0, dtype=STEP)
    return Result(records, group, names, totals, log, warmup, tuple(warnings))
