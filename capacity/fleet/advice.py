"""What holds a tier back, and which change would save most."""

from dataclasses import dataclass, replace
from typing import Any

from capacity.fleet.ask import Demand, EngineOption, FleetAsk
from capacity.fleet.sizing import Setting, estimate, replicas_for, settings
from capacity.fleet.tier import Sized, TierPlan
from capacity.simulate import Result

BOTTLENECKS = {
    "kv_memory": "the KV cache limits how many sequences run at one time",
    "weights_read": "steps mostly read weights: the batch is too small to make that worth while",
    "cache_read": "steps mostly read the KV cache",
    "prefill_compute": "steps mostly compute prompts",
    "sequences": "steps mostly grow with the number of sequences",
    "ttft": "even an idle engine needs longer to the first token than the objective allows",
    "tpot": "even an idle engine needs longer per token than the objective allows",
    "e2e": "even an idle engine needs longer for an answer than the objective allows",
}
FIXES = {
    "cache_more": "a hit rate 10 points higher (cache predictable requests)",
    "kv_fp8": "KV cache in 8 bits (kv_cache_dtype: fp8); check answers with `forebay bench agree`",
    "weights_fp8": "weights in 8 bits; check answers with `forebay bench agree`",
    "slo_relaxed": "an objective one and a half times as long",
    "more_ranks": "more GPUs per replica",
    "offline_static": "move work that nobody waits for to static batches off peak",
    "underused": "utilization is under 0.5: a smaller GPU, or two tiers on one, would cost less",
    "speculation": "speculative decoding, where acceptance is above the draft's share of a step",
}


@dataclass(frozen=True)
class Diagnosis:
    """The bottleneck and where a step's time goes, as shares."""

    code: str
    shares: dict[str, float]
    sequences: float
    """In one engine at the planned load."""


def diagnose(sized: Sized, demand: Demand, result: Result | None) -> Diagnosis:
    """Where the time of a step goes at the planned load, and what limits the engine."""
    setting, model = sized.setting, sized.setting.option.step_model
    rate = demand.rate / max(sized.replicas, 1)
    sequences = 1.0
    if result is not None:
        stayed = result.values("e2e")
        sequences = max(1.0, rate * float(stayed.mean())) if len(stayed) else 1.0
    most = setting.sequences(demand)
    sequences = min(sequences, most)
    joining = sequences / max(demand.output_tokens, 1.0)
    prompt = demand.prompt_tokens
    parts = {
        "weights_read": model.decode.fixed_s,
        "sequences": model.decode.seq_s * sequences,
        "cache_read": model.decode.ctx_token_s * sequences * (prompt + demand.output_tokens / 2),
        "prefill_compute": joining
        * (model.prefill.seq_s + model.prefill.token_s * prompt + model.prefill.token2_s * prompt**2),
    }
    total = sum(parts.values()) or 1.0
    shares = {name: value / total for name, value in parts.items()}
    full = result is not None and setting.blocks is not None and result.totals.peak_kv_blocks > 0.95 * setting.blocks
    tight = full and most < setting.max_num_seqs
    return Diagnosis("kv_memory" if tight else max(shares, key=lambda name: shares[name]), shares, sequences)


def fixes(plan: TierPlan, ask: FleetAsk, cheaper: dict[str, EngineOption]) -> list[dict[str, Any]]:
    """Changes with the GPUs that each would save, the best first. `cheaper`: engines with one thing changed, by code.

    By the estimate's ratio to the planned setting, not by simulation: they say where to look.
    """
    chosen = plan.chosen
    if chosen is None:
        return _ways_out(plan, ask, cheaper)
    demand = plan.demand
    base = estimate(chosen.setting, demand, ask.objective, ask.target_utilization).rate
    found: list[dict[str, Any]] = []

    # Several replicas together do a little more than one alone was shown to do.
    proved = max(chosen.capacity.rate, demand.rate / chosen.replicas)

    def add(code: str, choice: list[Setting], wanted: FleetAsk, rate: float) -> None:
        after = max(estimate(one, demand, wanted.objective, ask.target_utilization).rate for one in choice)
        if base > 0 and after > 0:
            replicas = replicas_for(rate, proved * after / base)
            saved = chosen.gpus - replicas * choice[0].option.gpus
            if saved >= 0:
                found.append({"code": code, "text": FIXES[code], "replicas": replicas, "gpus_saved": saved})

    higher = min(1.0, ask.hit_rate + 0.1)
    add("cache_more", [chosen.setting], ask, demand.rate * (1 - higher) / max(1 - ask.hit_rate, 1e-9))
    for code, option in cheaper.items():
        add(code, settings(option), ask, demand.rate)
    targets = {f"{name}_s": 1.5 * aim for name, aim in ask.objective.targets.items()}
    add(
        "slo_relaxed",
        settings(chosen.setting.option),
        replace(ask, objective=replace(ask.objective, **targets)),
        demand.rate,
    )
    order = {"cache_more": 0, "kv_fp8": 1, "weights_fp8": 2, "more_ranks": 3, "slo_relaxed": 4}
    return sorted(found, key=lambda fix: (-fix["gpus_saved"], order.get(fix["code"], 9)))


def _ways_out(plan: TierPlan, ask: FleetAsk, cheaper: dict[str, EngineOption]) -> list[dict[str, Any]]:
    """Changes with which the objective could be kept at all, the fewest GPUs first."""
    relaxed = replace(ask.objective, **{f"{name}_s": 1.5 * aim for name, aim in ask.objective.targets.items()})
    tries = [(code, option, ask.objective) for code, option in cheaper.items()]
    tries += [("slo_relaxed", option, relaxed) for option in plan.ask.options]
    found: dict[str, dict[str, Any]] = {}
    for code, option, objective in tries:
        choices = [estimate(one, plan.demand, objective, ask.target_utilization) for one in settings(option)]
        rate = max(one.rate for one in choices)
        if rate > 0:
            replicas = replicas_for(plan.demand.rate, rate)
            change = {"code": code, "text": FIXES[code], "replicas": replicas, "gpus": replicas * option.gpus}
            if code not in found or change["gpus"] < found[code]["gpus"]:
                found[code] = {**change, "gpus_saved": 0}
    return sorted(found.values(), key=lambda fix: fix["gpus"])
