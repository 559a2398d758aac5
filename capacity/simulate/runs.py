"""One run, from a workload to its result; and runs that are long enough for a wanted precision."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from capacity.intervals import Estimate
from capacity.scheduler import BATCHES, Scheduler
from capacity.simulate.batches import hall_of, serve
from capacity.simulate.engine import drive
from capacity.simulate.result import Result, Totals
from capacity.simulate.world import DONE, Records, World, world_of
from capacity.step_model import StepModel
from capacity.workload import Requests, Workload
from core.errors import ConfigError, Problem


def run(
    workload: Workload,
    scheduler: Scheduler,
    step_model: StepModel,
    seed: int,
    *,
    warmup: float = 0.0,
    log_steps: int = 0,
) -> Result:
    """Draw the requests of `seed` and take them through the scheduler until all have left.

    The same arguments give the same result to the last bit. `warmup`: share of the requests that percentiles leave out,
    from the first one on; `log_steps`: how many steps to keep for a picture.
    """
    requests = workload.draw(seed)
    if scheduler.kind in BATCHES:
        result = _batches(requests, scheduler, step_model, log_steps)
    elif scheduler.kind == "disaggregated":
        result = _disaggregated(requests, scheduler, step_model, log_steps)
    else:
        result = _engine(requests, scheduler, step_model, log_steps)
    warnings = [f"step model: {one}" for one in step_model.mismatches(scheduler.settings())]
    if scheduler.prefix_cache and (requests.prefix is None or scheduler.kind in BATCHES):
        warnings.append("prefix cache: without effect, these requests have no prefix blocks or are served in batches")
    return replace(result, warmup=warmup, warnings=tuple(warnings))


@dataclass(frozen=True)
class Precise:
    """The last run of `run_until`, its estimate, and whether that is as precise as was asked."""

    result: Result
    estimate: Estimate
    reached: bool


def run_until(
    workload: Callable[[int], Workload],
    scheduler: Scheduler,
    step_model: StepModel,
    seed: int,
    *,
    estimate: Callable[[Result], Estimate],
    relative: float,
    least: int = 20_000,
    most: int = 8_000_000,
) -> Precise:
    """Double the number of requests until half the interval of `estimate` is at most `relative` of it.

    `workload` makes the workload of a number of requests, `least` at first; at `most` it ends in any case. The first
    tenth of each run is left out: it started with nobody in the system.
    """
    count = least
    while True:
        result = run(workload(count), scheduler, step_model, seed, warmup=0.1)
        found = estimate(result)
        reached = found.relative is not None and found.relative <= relative
        if reached or count * 2 > most:
            return Precise(result, found, reached)
        count *= 2


def _result(records: Records, requests: Requests, totals: Totals, log: Records) -> Result:
    return Result(records, requests.group, requests.names, totals, log)


def _engine(requests: Requests, scheduler: Scheduler, model: StepModel, log: int) -> Result:
    world = world_of(requests, scheduler, model, scheduler.replicas, log=log)
    drive(world)
    return _result(world.requests, requests, _totals(world, scheduler), world.log[: int(world.limits[0]["logged"])])


def _totals(world: World, scheduler: Scheduler) -> Totals:
    replicas = world.replicas
    steps = int(replicas["iteration"].sum())
    return Totals(
        float(replicas["area"].sum()),
        float(replicas["busy"].sum()),
        steps,
        float(replicas["slot_steps"].sum()),
        float(steps * scheduler.max_num_seqs),
        int(replicas["preemptions"].sum()),
        int(replicas["peak_used"].max()),
        int(replicas["prefilled"].sum()),
    )


def _batches(requests: Requests, scheduler: Scheduler, model: StepModel, log: int) -> Result:
    hall = hall_of(requests, scheduler, model, log)
    serve(hall)
    tally = hall.rules[0]
    totals = Totals(
        float(tally["served"] + hall.lines["waited"].sum()),
        float(tally["busy"]),
        int(tally["batches"]),
        float(tally["useful"]),
        float(tally["all"]),
    )
    return _result(hall.requests, requests, totals, hall.log[: int(tally["logged"])])


def _disaggregated(requests: Requests, scheduler: Scheduler, model: StepModel, log: int) -> Result:
    """Prefill there, decode here: two rooms in a row, the second fed by what leaves the first.

    The decode side yields every token, the first one too, from its first step on: that is how engines with a KV
    connector answer. Bounds on waiting and time hold where a request enters, the prefill side. A prefill replica gives
    its blocks free when the prompt is computed, a decode replica takes its own when the request joins.
    """
    if requests.clients is not None:
        raise ConfigError([Problem("concurrency", "a closed loop is not simulated with disaggregated prefill")])
    front = replace(scheduler, kind="continuous", replicas=scheduler.prefill_replicas)
    prompts = replace(requests, output=np.ones_like(requests.output))
    first = world_of(prompts, front, model, front.replicas, log=log)
    drive(first)
    moved = first.requests["outcome"] == DONE
    handed = first.requests["finished"] + scheduler.transfer.fixed_s + scheduler.transfer.token_s * requests.prompt
    order = np.flatnonzero(moved)[np.argsort(handed[moved], kind="stable")]
    back = replace(scheduler, kind="continuous", max_waiting=None, queue_timeout_s=None, prefix_cache=False)
    records = first.requests.copy()
    records["output"] = requests.output
    if not len(order):
        return _result(records, requests, _totals(first, front), first.log[: int(first.limits[0]["logged"])])
    second = world_of(
        replace(requests.take(order), arrived=handed[order]), back, model, back.replicas, given=True, log=log
    )
    drive(second)
    for name in ("first", "finished", "outcome", "replica", "preempted"):
        records[name][order] = second.requests[name]
    in_transfer = float((handed[moved] - first.requests["finished"][moved]).sum())
    totals = _totals(second, back).plus(replace(_totals(first, front), slot_steps=0.0, all_slot_steps=0.0))
    totals = replace(totals, in_system=totals.in_system + in_transfer)
    log_back = second.log[: int(second.limits[0]["logged"])]
    log_back["replica"] += front.replicas
    return _result(records, requests, totals, np.concatenate([first.log[: int(first.limits[0]["logged"])], log_back]))
