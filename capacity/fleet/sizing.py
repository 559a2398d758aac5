"""How much one replica serves within an objective: estimated for every setting, simulated for the best of them.

The estimate is a mean value at a constant number of sequences; it ranks settings in microseconds. What is recommended
is then simulated, with the demand's own lengths and arrivals, and its rate is found by halving.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from capacity.fleet.ask import Demand, EngineOption, FleetAsk, Objective
from capacity.simulate import Result, Scheduler, Transfer, run

SEQUENCES = (8, 16, 32, 64, 128, 256, 512)
BUDGETS = (2048, 8192)
BLOCK = 16
# A percentile lies above the mean by about this much when the engine is not yet full; only the ranking hangs on it.
_TAIL = {"ttft": 2.5, "tpot": 1.3, "e2e": 3.0}
_WARMUP = 0.1


@dataclass(frozen=True)
class Setting:
    """An engine with its limits."""

    option: EngineOption
    kind: str
    """continuous or chunked."""
    max_num_seqs: int
    token_budget: int

    def scheduler(self, replicas: int = 1) -> Scheduler:
        """For the simulator."""
        return Scheduler(
            kind="chunked" if self.kind == "chunked" else "continuous",
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=max(self.token_budget, self.max_num_seqs),
            kv_blocks=self.blocks,
            block_size=BLOCK,
            replicas=replicas,
        )

    @property
    def blocks(self) -> int | None:
        """Blocks of the cache; None where its size is unknown."""
        tokens = self.option.cache_tokens
        return None if tokens is None else max(1, tokens // BLOCK)

    def sequences(self, demand: Demand) -> float:
        """Most sequences at one time: the engine's limit, or what the cache holds at their mean length."""
        tokens = self.option.cache_tokens
        if tokens is None:
            return float(self.max_num_seqs)
        return min(float(self.max_num_seqs), tokens / (demand.prompt_tokens + demand.output_tokens / 2))


@dataclass(frozen=True)
class Capacity:
    """Requests per second of one replica (or one cell of prefill and decode replicas) within the objective."""

    rate: float
    saturation: float
    """Requests per second that it does when it is never idle."""
    bound_by: str
    """ttft, tpot, e2e, utilization, or infeasible."""


def replicas_for(rate: float, capacity: float) -> int:
    """Replicas of this capacity that a rate needs; 0 where the capacity is none."""
    return max(1, math.ceil(rate / capacity - 1e-9)) if capacity > 0 else 0


def settings(option: EngineOption) -> list[Setting]:
    """Every setting of an engine that its calibration allows."""
    fixed = option.fixed
    sequences: Sequence[int] = (int(fixed["max_num_seqs"]),) if "max_num_seqs" in fixed else SEQUENCES
    budgets: Sequence[int] = (int(fixed["max_num_batched_tokens"]),) if "max_num_batched_tokens" in fixed else BUDGETS
    kinds: Sequence[str] = ("continuous", "chunked")
    if "enable_chunked_prefill" in fixed:
        kinds = ("chunked",) if fixed["enable_chunked_prefill"] else ("continuous",)
    found = []
    for kind in kinds:
        for budget in budgets:
            # Whole prompts want a large budget, pieces of them a small one.
            if len(budgets) > 1 and (budget == 8192) == (kind == "chunked"):
                continue
            found += [Setting(option, kind, count, budget) for count in sequences]
    return found


def estimate(setting: Setting, demand: Demand, objective: Objective, target_utilization: float) -> Capacity:
    """Mean-value estimate of one replica's capacity."""
    model, most = setting.option.step_model, setting.sequences(demand)
    if most < 1:
        return Capacity(0.0, 0.0, "kv_memory")

    def latency(sequences: float) -> dict[str, float]:
        found = model.at_concurrency(sequences, demand.prompt_tokens, demand.output_tokens)
        return {"ttft": found.ttft_s, "tpot": found.tpot_s or 0.0, "e2e": found.e2e_s}

    def missed(sequences: float) -> str | None:
        found = latency(sequences)
        return next((name for name, aim in objective.targets.items() if found[name] * _TAIL[name] > aim), None)

    saturation = most / latency(most)["e2e"]
    bound = missed(most)
    if bound is None:
        return Capacity(target_utilization * saturation, saturation, "utilization")
    alone = latency(1.0)
    if any(alone[name] > aim for name, aim in objective.targets.items()):
        worst = max(objective.targets, key=lambda name: alone[name] / objective.targets[name])
        return Capacity(0.0, saturation, worst)
    low, high = 0.0, most
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if missed(max(middle, 1e-3)) is None else (low, middle)
    found = low / latency(max(low, 1e-3))["e2e"] if low > 1e-3 else 0.1 * saturation
    return Capacity(min(found, target_utilization * saturation), saturation, bound)


def kept(result: Result, objective: Objective) -> str | None:
    """The first target that a simulation misses; None where it keeps all."""
    for name, aim in objective.targets.items():
        values = result.values(name)
        if not len(values):
            continue
        if result.percentile(name, 100 * objective.percentile).value > aim:
            return name
    return "lost" if not result.done.all() else None


def simulate(setting: Setting, ask: FleetAsk, rate: float, replicas: int = 1) -> Result:
    """One simulation of `replicas` replicas under a rate for all of them together."""
    workload = ask.demand.workload(rate, ask.requests, ask.seed)
    return run(workload, setting.scheduler(replicas), setting.option.step_model, ask.seed, warmup=_WARMUP)


def measured(setting: Setting, ask: FleetAsk, guess: Capacity) -> Capacity:
    """The capacity of one replica by simulation, to 5 %: halving around the estimate."""

    def misses(rate: float) -> str | None:
        return kept(simulate(setting, replace(ask, requests=ask.requests // 2), rate), ask.objective)

    return _search(misses, guess, ask.target_utilization)


def _search(misses: Callable[[float], str | None], guess: Capacity, target_utilization: float) -> Capacity:
    """The largest rate that misses no target, to 5 %, at most the target utilization of saturation."""
    most = target_utilization * guess.saturation
    start = min(max(guess.rate, 0.05 * most), most)
    if most <= 0:
        return replace(guess, rate=0.0)
    bound = misses(start)
    if bound is None:
        low, high, reason = start, start, "utilization"
        while high < most:
            high = min(most, high * 1.5)
            found = misses(high)
            if found is not None:
                reason = found
                break
            low = high
        if low >= most:
            return Capacity(most, guess.saturation, "utilization")
    else:
        low, high, reason = start, start, bound
        while bound is not None:
            high, reason, low = low, bound, low / 2
            if low < 1e-3 * most:
                return Capacity(0.0, guess.saturation, reason)
            bound = misses(low)
    while high > 1.05 * low:
        middle = math.sqrt(low * high)
        found = misses(middle)
        low, high, reason = (middle, high, reason) if found is None else (low, middle, found)
    return Capacity(low, guess.saturation, reason)


@dataclass(frozen=True)
class Cell:
    """Prefill and decode replicas that work together."""

    prefill: int
    decode: int


def cell_capacity(setting: Setting, cell: Cell, ask: FleetAsk) -> Capacity:
    """The capacity of a cell of prefill and decode replicas, by simulation."""
    option = setting.option
    transfer = Transfer(0.001, option.kv_bytes_per_token / ask.link)
    scheduler = replace(
        setting.scheduler(cell.decode),
        kind="disaggregated",
        prefill_replicas=cell.prefill,
        transfer=transfer,
        max_num_batched_tokens=max(8192, setting.max_num_seqs),
    )
    demand, model = ask.demand, option.step_model
    # Neither side can do more than its own work allows.
    prompt = model.prefill_s(demand.prompt_tokens)
    most = setting.sequences(demand)
    step = model.decode_s(most, most * (demand.prompt_tokens + demand.output_tokens / 2))
    saturation = min(cell.prefill / prompt, cell.decode * most / (step * demand.output_tokens))

    def misses(rate: float) -> str | None:
        workload = demand.workload(rate, ask.requests // 2, ask.seed)
        return kept(run(workload, scheduler, model, ask.seed, warmup=_WARMUP), ask.objective)

    return _search(misses, Capacity(0.6 * saturation, saturation, "utilization"), ask.target_utilization)
