"""`forebay plan fleet` as a document, and as a fragment of the configuration."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from capacity.fleet.advice import BOTTLENECKS, FIXES, diagnose, fixes
from capacity.fleet.ask import EngineOption, FleetAsk
from capacity.fleet.sizing import Setting
from capacity.fleet.tier import Apart, Sized, TierPlan, plan_tier
from capacity.simulate import Result

# Engines with one thing changed, by tier and code of the fix.
Cheaper = Mapping[str, dict[str, EngineOption]]
_LONGEST_WAIT_S = 10.0


def plan_fleet(ask: FleetAsk, cheaper: Cheaper, note: Callable[[str], None]) -> tuple[dict[str, Any], list[TierPlan]]:
    """The document and the plans behind it. Times in seconds."""
    plans = [plan_tier(tier, ask, note) for tier in ask.tiers if tier.share > 0]
    tiers = {plan.ask.name: _tier(plan, ask, cheaper.get(plan.ask.name, {})) for plan in plans}
    met = all(plan.chosen is not None for plan in plans) and all(
        tier["percentiles_meet_objective"] for tier in tiers.values()
    )
    gpus = sum(plan.chosen.gpus for plan in plans if plan.chosen is not None)
    costs = [tier["cost_per_hour"] for tier in tiers.values()]
    document: dict[str, Any] = {
        "meets_slo": met,
        "rate_rps": ask.demand.rate,
        "hit_rate": ask.hit_rate,
        "frontier_share": ask.frontier_share,
        "objective": asdict(ask.objective),
        "target_utilization": ask.target_utilization,
        "tiers": tiers,
        "gpus": gpus if met else None,
        "cost_per_hour": sum(costs) if met and all(cost is not None for cost in costs) else None,
        "warnings": _warnings(ask, plans),
    }
    document["config"] = fragment(plans) if any(plan.chosen for plan in plans) else None
    return document, plans


def _tier(plan: TierPlan, ask: FleetAsk, cheaper: dict[str, EngineOption]) -> dict[str, Any]:
    shown = plan.chosen or plan.nearest
    if shown is None:
        why = "no engine holds the weights and two requests: more GPUs per replica, or a quantization"
        return {"replicas": None, "cost_per_hour": None, "percentiles_meet_objective": False, "bottleneck": why}
    option, setting = shown.setting.option, shown.setting
    diagnosis = diagnose(shown, plan.demand, plan.simulated)
    price = plan.ask.gpu_price
    # Where nothing keeps the objective, the engine alone misses it.
    code = diagnosis.code if plan.chosen else shown.capacity.bound_by
    return {
        "model": plan.ask.model,
        "rate_rps": plan.demand.rate,
        "replicas": plan.chosen.replicas if plan.chosen else None,
        "replicas_interval": [plan.low, plan.high],
        "nearest": None if plan.chosen else _measures(shown, plan),
        "gpu": option.gpu,
        "gpus": plan.chosen.gpus if plan.chosen else None,
        "tensor_parallel": option.tensor_parallel,
        "quantization": option.quantization,
        "chunked_prefill": setting.kind == "chunked",
        "max_num_seqs": setting.max_num_seqs,
        "max_num_batched_tokens": setting.token_budget,
        "kv_cache_tokens": option.cache_tokens,
        "capacity_rps_per_replica": shown.capacity.rate,
        "saturation_rps_per_replica": shown.capacity.saturation,
        "utilization": plan.demand.rate / (shown.replicas * shown.capacity.saturation) if shown.replicas else None,
        "bound_by": shown.capacity.bound_by,
        "percentiles": _percentiles(plan.simulated, ask),
        "percentiles_ci95": _intervals(plan.simulated, ask),
        "step_s": _step(option, diagnosis.sequences, plan),
        "percentiles_meet_objective": _meets(plan.simulated, ask),
        "cost_per_hour": None if price is None or not plan.chosen else plan.chosen.gpus * price,
        "bottleneck": code,
        "bottleneck_text": BOTTLENECKS.get(code, code),
        "step_shares": diagnosis.shares,
        "sequences_per_replica": diagnosis.sequences,
        "fixes": fixes(plan, ask, cheaper),
        "advice": _advice(plan, diagnosis.sequences),
        "chunking": _kinds(plan),
        "disaggregation": _apart(plan.apart, plan.chosen),
        "queue": queue(plan),
        "source": "data sheet, four of five within the interval" if option.interval > 1 else "calibration",
    }


def _measures(shown: Sized, plan: TierPlan) -> dict[str, Any]:
    """What the nearest engine does with one request at a time: the best that there is."""
    model, demand = shown.setting.option.step_model, plan.demand
    alone = model.at_concurrency(1.0, demand.prompt_tokens, demand.output_tokens)
    return {"ttft_s": alone.ttft_s, "tpot_s": alone.tpot_s, "e2e_s": alone.e2e_s}


def _percentiles(result: Result | None, ask: FleetAsk) -> dict[str, float | None]:
    if result is None:
        return {}
    percent = 100 * ask.objective.percentile
    return {
        f"{name}_s": result.percentile(name, percent).value if len(result.values(name)) else None
        for name in ("ttft", "tpot", "e2e")
    }


def _intervals(result: Result | None, ask: FleetAsk) -> dict[str, list[float | None]]:
    """95 % intervals of the simulation itself; that of the step times is in `step_s`."""
    if result is None:
        return {}
    percent = 100 * ask.objective.percentile
    found = {name: result.percentile(name, percent) for name in ("ttft", "tpot", "e2e") if len(result.values(name))}
    return {f"{name}_s": [one.low, one.high] for name, one in found.items()}


def _step(option: EngineOption, sequences: float, plan: TierPlan) -> dict[str, float]:
    """Seconds of a decode step at the planned load, with the interval that holds four of five measurements."""
    context = sequences * (plan.demand.prompt_tokens + plan.demand.output_tokens / 2)
    seconds = option.step_model.decode_s(sequences, context)
    return {"value": seconds, "low": seconds / option.interval, "high": seconds * option.interval}


def _meets(result: Result | None, ask: FleetAsk) -> bool:
    if result is None:
        return False
    found = _percentiles(result, ask)
    return all((found[f"{name}_s"] or 0.0) <= aim for name, aim in ask.objective.targets.items())


def _advice(plan: TierPlan, sequences: float) -> list[dict[str, str]]:
    found = [{"code": "offline_static", "text": FIXES["offline_static"]}]
    chosen = plan.chosen
    if chosen is not None and chosen.capacity.saturation * chosen.replicas > 2 * plan.demand.rate:
        found.append({"code": "underused", "text": FIXES["underused"]})
    # Verifying drafts is free while a step only reads weights; a hundred sequences are near the ridge of most devices.
    if plan.chosen is not None and sequences < 32:
        found.append({"code": "speculation", "text": FIXES["speculation"]})
    return found


def _kinds(plan: TierPlan) -> dict[str, Any]:
    """Chunked prefill on and off, each at its best."""
    return {
        kind: {"replicas": one.replicas, "gpus": one.gpus, "capacity_rps_per_replica": one.capacity.rate}
        for kind, one in plan.best_by_kind.items()
    }


def _apart(apart: Apart | None, chosen: Sized | None) -> dict[str, Any] | None:
    """Prefill and decode apart against together."""
    if chosen is None:
        return None
    if apart is None:
        return {"pays": False, "why": "no ratio of prefill to decode replicas keeps the objective"}
    pays = apart.gpus < chosen.gpus
    why = f"{apart.gpus} GPUs apart against {chosen.gpus} together, and {apart.transfer_s * 1000:.1f} ms per hand-over"
    if not pays:
        why += "; it duplicates the weights and gains nothing here: prove chunked prefill and batching first"
    return {
        "pays": pays,
        "why": why,
        "ratio": [apart.cell.prefill, apart.cell.decode],
        "prefill_replicas": apart.cells * apart.cell.prefill,
        "decode_replicas": apart.cells * apart.cell.decode,
        "gpus": apart.gpus,
        "transfer_s": apart.transfer_s,
        "capacity_rps_per_cell": apart.capacity.rate,
    }


def queue(plan: TierPlan) -> dict[str, Any] | None:
    """Bounds of the tier's queue: what is in flight when full, and what can still be served in time behind it."""
    chosen = plan.chosen
    if chosen is None:
        return None
    longest = _LONGEST_WAIT_S
    inflight = math.ceil(chosen.replicas * chosen.setting.sequences(plan.demand))
    waiting = math.ceil(chosen.replicas * chosen.capacity.saturation * longest)
    return {"max_inflight": max(1, inflight), "max_waiting": waiting, "max_wait_s": longest}


def fragment(plans: list[TierPlan]) -> dict[str, Any]:
    """The part of the configuration that states the plan; `forebay check` accepts it."""
    tiers = {}
    for plan in plans:
        bounds = queue(plan)
        if plan.chosen is None or bounds is None:
            continue
        per_replica = max(1, math.ceil(plan.demand.rate / plan.chosen.replicas * _stay(plan)))
        tiers[plan.ask.name] = {
            "model": plan.ask.model,
            "engine": _engine(plan.chosen.setting),
            "replicas": {
                "min": plan.chosen.replicas,
                "max": max(plan.high or 0, plan.chosen.replicas + max(1, plan.chosen.replicas // 4)),
                "target_ongoing_requests": min(per_replica, plan.chosen.setting.max_num_seqs),
            },
            "queue": {
                "max_inflight": bounds["max_inflight"],
                "max_waiting": bounds["max_waiting"],
                "max_wait": f"{bounds['max_wait_s']:.0f}s",
            },
        }
    return {"tiers": tiers}


def _stay(plan: TierPlan) -> float:
    """Mean seconds of a request in the engine."""
    return float(plan.simulated.values("e2e").mean()) if plan.simulated is not None else 1.0


def _engine(setting: Setting) -> dict[str, Any]:
    option = setting.option
    engine: dict[str, Any] = {
        "tensor_parallel_size": option.tensor_parallel,
        "max_num_seqs": setting.max_num_seqs,
        "max_num_batched_tokens": max(setting.token_budget, setting.max_num_seqs),
        "enable_chunked_prefill": setting.kind == "chunked",
    }
    if option.quantization in ("fp8", "awq", "gptq"):
        engine["quantization"] = option.quantization
    if option.cache_dtype != "auto":
        engine["kv_cache_dtype"] = option.cache_dtype
    return engine


def _warnings(ask: FleetAsk, plans: list[TierPlan]) -> list[str]:
    found = []
    bursts = ask.demand.burstiness
    if bursts is not None and not bursts.poisson:
        windows = ", ".join(f"{value:.1f} at {window} s" for window, value in bursts.dispersion.items() if value)
        found.append(
            f"the trace is not Poisson (gaps vary by {bursts.gap_cv:.2f}; index of dispersion {windows}): percentiles "
            "of a Poisson stream do not apply, the plan replays the trace"
        )
    for plan in plans:
        shown = plan.chosen or plan.nearest
        if shown is None:
            continue
        option = shown.setting.option
        if option.interval > 1:
            found.append(
                f"{plan.ask.name}: step times are from data sheets, within a factor of {option.interval:g} in four "
                "of five cases; calibrate with `forebay bench fit`"
            )
        if option.cache_tokens is None:
            found.append(f"{plan.ask.name}: the size of the KV cache is unknown and taken as enough")
        result = plan.simulated
        found += [f"{plan.ask.name}: {warning}" for warning in (result.warnings if result is not None else ())]
        if plan.chosen is not None and plan.high is None:
            found.append(f"{plan.ask.name}: at the slow end of the interval no number of replicas keeps the objective")
    return found
