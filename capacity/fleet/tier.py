"""One tier: the cheapest engine and number of replicas that keep the objective, and what stands against others."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from capacity.fleet.ask import Demand, EngineOption, FleetAsk, TierAsk
from capacity.fleet.sizing import (
    Capacity,
    Cell,
    Setting,
    cell_capacity,
    estimate,
    kept,
    measured,
    replicas_for,
    settings,
    simulate,
)
from capacity.simulate import Result

# Fleets up to this size are simulated whole, larger ones in proportion.
WHOLE = 4
CELLS = (Cell(1, 1), Cell(1, 2), Cell(2, 1), Cell(1, 3), Cell(3, 1))


@dataclass(frozen=True)
class Sized:
    """A setting with the replicas that a rate needs."""

    setting: Setting
    capacity: Capacity
    replicas: int

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.replicas * self.setting.option.gpus


@dataclass(frozen=True)
class Apart:
    """Prefill and decode on replicas of their own."""

    cell: Cell
    cells: int
    capacity: Capacity
    gpus: int
    transfer_s: float
    """Seconds to hand a mean prompt's cache over."""


@dataclass(frozen=True)
class TierPlan:
    """What the plan says about a tier. Where nothing keeps the objective, `chosen` is None and `nearest` is not."""

    ask: TierAsk
    demand: Demand
    chosen: Sized | None
    nearest: Sized | None
    simulated: Result | None
    """The chosen fleet under its rate, in proportion where it is large."""
    best_by_kind: dict[str, Sized]
    apart: Apart | None
    low: int | None
    high: int | None
    """Replicas at the fast and the slow end of the step times' interval; None: the slow end cannot keep it."""


def plan_tier(tier: TierAsk, whole: FleetAsk, note: Callable[[str], None]) -> TierPlan:
    """The plan of one tier. `note` hears what is being tried."""
    demand = whole.demand.part(tier.share)
    ask = replace(whole, demand=demand)
    ranked = _ranked(tier, ask)
    sized: list[Sized] = []
    for setting, guess in _finalists(ranked):
        note(f"{tier.name}: {setting.kind}, {setting.max_num_seqs} sequences, {setting.option.tensor_parallel} ranks")
        found = measured(setting, ask, guess)
        sized.append(Sized(setting, found, replicas_for(demand.rate, found.rate)))
    feasible = sorted((one for one in sized if one.capacity.rate > 0), key=_cost)
    kinds = {one.setting.kind: one for one in reversed(feasible)}
    nearest = _nearest(ranked, demand) if not feasible else None
    chosen, result = _proved(feasible[0], ask) if feasible else (None, None)
    apart = _apart(chosen, ask, note) if chosen is not None else None
    low, high = _ends(chosen, ask) if chosen is not None else (None, None)
    return TierPlan(tier, demand, chosen, nearest, result, kinds, apart, low, high)


def _cost(one: Sized) -> tuple[float, int, float]:
    # Of fleets of one cost, the one with the most room, then the plainer setting.
    return (one.gpus, one.replicas, -one.capacity.rate)


def _ranked(tier: TierAsk, ask: FleetAsk) -> list[tuple[Setting, Capacity]]:
    """Every setting with its estimate, the cheapest fleet first."""
    found = [
        (setting, estimate(setting, ask.demand, ask.objective, ask.target_utilization))
        for option in tier.options
        for setting in settings(option)
    ]

    def cost(entry: tuple[Setting, Capacity]) -> tuple[float, float]:
        setting, capacity = entry
        # As if replicas could be parted: of equal wholes the one with more room ranks first.
        return (-capacity.rate / setting.option.gpus, setting.max_num_seqs)

    return sorted(found, key=cost)


def _finalists(ranked: list[tuple[Setting, Capacity]]) -> list[tuple[Setting, Capacity]]:
    """The best two of all, and the best of each kind on the two best engines."""
    taken = ranked[:2]
    for kind in ("continuous", "chunked"):
        mine = [entry for entry in ranked if entry[0].kind == kind]
        for ranks in list(dict.fromkeys(entry[0].option.tensor_parallel for entry in mine))[:2]:
            best = next(entry for entry in mine if entry[0].option.tensor_parallel == ranks)
            taken += [best] if best not in taken else []
    return taken


def _proved(sized: Sized, ask: FleetAsk) -> tuple[Sized, Result]:
    """The fleet simulated together; a replica more until it keeps the objective, one less while it still does."""

    def together(replicas: int) -> Result:
        shown = min(replicas, WHOLE)
        return simulate(sized.setting, ask, ask.demand.rate * shown / replicas, shown)

    least = replicas_for(ask.demand.rate, ask.target_utilization * sized.capacity.saturation)
    replicas, result = sized.replicas, together(sized.replicas)
    if kept(result, ask.objective) is None:
        while replicas > least:
            fewer = together(replicas - 1)
            if kept(fewer, ask.objective) is not None:
                break
            replicas, result = replicas - 1, fewer
    else:
        for _ in range(max(2, replicas // 4)):
            replicas, result = replicas + 1, together(replicas + 1)
            if kept(result, ask.objective) is None:
                break
    return replace(sized, replicas=replicas), result


def _apart(chosen: Sized, ask: FleetAsk, note: Callable[[str], None]) -> Apart | None:
    """The cheapest ratio of prefill to decode replicas, with the chosen engine."""
    best: Apart | None = None
    option = chosen.setting.option
    setting = replace(chosen.setting, kind="continuous")
    for cell in CELLS:
        note(f"prefill apart, {cell.prefill}:{cell.decode}")
        found = cell_capacity(setting, cell, ask)
        if found.rate <= 0:
            continue
        cells = replicas_for(ask.demand.rate, found.rate)
        gpus = cells * (cell.prefill + cell.decode) * option.gpus
        transfer = 0.001 + ask.demand.prompt_tokens * option.kv_bytes_per_token / ask.link
        if best is None or gpus < best.gpus:
            best = Apart(cell, cells, found, gpus, transfer)
    return best


def _ends(chosen: Sized, ask: FleetAsk) -> tuple[int | None, int | None]:
    """Replicas if every step took as long as the ends of its interval: the proved number, scaled by the estimates."""
    factor = chosen.setting.option.interval
    if factor <= 1:
        return chosen.replicas, chosen.replicas

    def scaled(option: EngineOption) -> int | None:
        setting = replace(chosen.setting, option=option)
        guess = estimate(setting, ask.demand, ask.objective, ask.target_utilization)
        found = measured(setting, ask, guess)
        return replicas_for(ask.demand.rate, found.rate) or None

    option = chosen.setting.option
    low, high = scaled(option.slower(1 / factor)), scaled(option.slower(factor))
    return min(low or chosen.replicas, chosen.replicas), None if high is None else max(high, chosen.replicas)


def _nearest(ranked: list[tuple[Setting, Capacity]], demand: Demand) -> Sized | None:
    """Where nothing keeps the objective: the setting that comes closest, by its latency with one request at a time."""
    if not ranked:
        return None

    def alone(entry: tuple[Setting, Capacity]) -> float:
        found = entry[0].option.step_model.at_concurrency(1.0, demand.prompt_tokens, demand.output_tokens)
        return found.e2e_s

    setting, capacity = min(ranked, key=alone)
    return Sized(setting, capacity, replicas_for(demand.rate, 0.7 * capacity.saturation))
