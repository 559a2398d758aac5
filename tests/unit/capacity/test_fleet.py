"""Fleet plans: what is chosen keeps its objective in simulation, and what cannot is named."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from capacity.devices import DEVICES
from capacity.fleet.ask import Demand, FleetAsk, Objective, TierAsk
from capacity.fleet.observed import observed
from capacity.fleet.options import ModelOn, calibrated
from capacity.fleet.plan import plan_fleet
from capacity.fleet.sizing import Setting, estimate, kept, simulate
from capacity.step_model import DecodeCost, PrefillCost, StepModel, write_step_model
from capacity.workload import Spread, plain
from core.config import validate
from forebay.commands.check import engine_problems
from forebay.main import main
from tests.unit.capacity.test_memory import LLAMA

ENGINE = StepModel(DecodeCost(0.01, 5e-5, 2e-8), PrefillCost(0.01, 4e-5, 1e-9), {"max_num_seqs": 64})
DEMAND = Demand(12, 500, 150, Spread(500, 150, "lognormal", "lognormal"))
OPTION = calibrated(ENGINE, 60_000, 131_072.0, "A100")


def ask(objective: Objective, demand: Demand = DEMAND, **changes: Any) -> FleetAsk:
    tier = TierAsk("small", "org/small", 1.0, (OPTION,), 2.0)
    return FleetAsk(demand, objective, (tier,), requests=4000, **changes)


def test_the_plan_is_the_smallest_fleet_that_keeps_the_objective() -> None:
    wanted = ask(Objective(ttft_s=0.5, tpot_s=0.03), replace(DEMAND, rate=40.0))
    document, [plan] = plan_fleet(wanted, {}, lambda _: None)
    assert document["meets_slo"]
    assert plan.chosen is not None
    replicas = plan.chosen.replicas
    found = document["tiers"]["small"]
    assert found["percentiles"]["ttft_s"] <= 0.5
    assert found["percentiles"]["tpot_s"] <= 0.03
    assert found["cost_per_hour"] == 2.0 * replicas
    assert found["max_num_seqs"] == 64
    assert replicas > 1
    fewer = simulate(plan.chosen.setting, wanted, 40.0, replicas - 1)
    least = 40.0 / (plan.chosen.capacity.saturation * wanted.target_utilization)
    assert kept(fewer, wanted.objective) is not None or replicas - 1 < least


def test_more_load_needs_more_replicas_and_a_hit_rate_fewer() -> None:
    objective = Objective(ttft_s=0.5, tpot_s=0.03)
    counts = []
    for share in (0.4, 1.0, 3.0):
        wanted = ask(objective, replace(DEMAND, rate=DEMAND.rate * share))
        counts.append(plan_fleet(wanted, {}, lambda _: None)[0]["tiers"]["small"]["replicas"])
    assert counts == sorted(counts)
    assert counts[0] < counts[2]


def test_what_no_engine_can_do_names_the_nearest() -> None:
    document, [plan] = plan_fleet(ask(Objective(tpot_s=0.005)), {}, lambda _: None)
    assert not document["meets_slo"]
    assert plan.chosen is None
    tier = document["tiers"]["small"]
    assert (tier["replicas"], tier["bottleneck"]) == (None, "tpot")
    assert tier["nearest"]["tpot_s"] == pytest.approx(0.01, rel=0.1)
    assert tier["fixes"] == []
    assert document["config"] is None


def test_where_nothing_keeps_the_objective_a_way_out_is_shown() -> None:
    faster = OPTION.slower(0.4)
    wanted = ask(Objective(tpot_s=0.008))
    document, _ = plan_fleet(wanted, {"small": {"weights_fp8": faster}}, lambda _: None)
    assert not document["meets_slo"]
    codes = {fix["code"]: fix["replicas"] for fix in document["tiers"]["small"]["fixes"]}
    assert codes["weights_fp8"] >= 1
    assert codes["slo_relaxed"] >= 1


def test_a_model_that_does_not_fit_is_said_so() -> None:
    on = ModelOn(LLAMA, DEVICES["T4"])
    tier = TierAsk("small", "org/small", 1.0, on.all((1,), 500, 150))
    document, _ = plan_fleet(FleetAsk(DEMAND, Objective(ttft_s=1), (tier,)), {}, lambda _: None)
    assert not document["meets_slo"]
    assert "no engine holds the weights" in document["tiers"]["small"]["bottleneck"]
    assert [option.tensor_parallel for option in on.all((1, 2, 4), 500, 150)] == [2, 4]


def test_a_small_cache_is_the_bottleneck() -> None:
    tight = replace(OPTION, cache_tokens=6_000)
    tier = TierAsk("small", "org/small", 1.0, (tight,))
    wanted = replace(ask(Objective(ttft_s=2.0)), tiers=(tier,))
    document, [plan] = plan_fleet(wanted, {"small": {"kv_fp8": OPTION}}, lambda _: None)
    found = document["tiers"]["small"]
    assert found["bottleneck"] == "kv_memory"
    assert found["fixes"][0]["code"] == "kv_fp8"
    assert found["fixes"][0]["gpus_saved"] > 0
    assert plan.chosen is not None


def test_prefill_apart_is_weighed_with_its_cost() -> None:
    found = plan_fleet(ask(Objective(ttft_s=0.5, tpot_s=0.03)), {}, lambda _: None)[0]["tiers"]["small"][
        "disaggregation"
    ]
    assert found["pays"] == (found["gpus"] < plan_gpus(found))
    assert found["transfer_s"] == pytest.approx(0.001 + 500 * 131_072 / 50e9)
    assert "GPUs apart against" in found["why"]


def plan_gpus(found: dict[str, Any]) -> int:
    return int(found["why"].split("against ")[1].split(" ")[0])


def test_a_bursty_trace_is_replayed_and_said_to_be_no_poisson() -> None:
    rng = np.random.default_rng(1)
    gaps = np.where(rng.random(6000) < 0.02, rng.exponential(4.0, 6000), rng.exponential(0.02, 6000))
    sizes = np.full(6000, 300, dtype=np.int32)
    demand = Demand.of_trace(plain(np.cumsum(gaps), sizes, sizes // 3))
    document, _ = plan_fleet(ask(Objective(ttft_s=1.0), demand), {}, lambda _: None)
    assert any("not Poisson" in warning for warning in document["warnings"])
    calm = replace(demand, recorded=None)
    calm_fleet = plan_fleet(ask(Objective(ttft_s=1.0), calm), {}, lambda _: None)[0]
    assert document["tiers"]["small"]["replicas"] > calm_fleet["tiers"]["small"]["replicas"]


def test_an_estimate_has_replicas_at_both_ends_of_its_interval() -> None:
    unsure = replace(OPTION, interval=1.4)
    wanted = replace(ask(Objective(ttft_s=1.0, tpot_s=0.03)), tiers=(TierAsk("small", "org/small", 1.0, (unsure,)),))
    document, [plan] = plan_fleet(wanted, {}, lambda _: None)
    low, high = document["tiers"]["small"]["replicas_interval"]
    step = document["tiers"]["small"]["step_s"]
    assert step["high"] / step["low"] == pytest.approx(1.96)
    assert plan.chosen is not None
    assert low <= plan.chosen.replicas < high
    assert any("data sheets" in warning for warning in document["warnings"])


def test_capacity_falls_with_the_objective() -> None:
    setting = Setting(OPTION, "continuous", 64, 8192)
    rates = [estimate(setting, DEMAND, Objective(tpot_s=aim), 0.85).rate for aim in (0.014, 0.02, 0.04)]
    assert 0 < rates[0] < rates[1] <= rates[2]
    assert estimate(setting, DEMAND, Objective(tpot_s=0.009), 0.85).rate == 0


def test_the_fragment_is_a_configuration() -> None:
    document, _ = plan_fleet(ask(Objective(ttft_s=0.5, tpot_s=0.03)), {}, lambda _: None)
    config = validate(document["config"])
    assert config.tiers.small is not None
    assert config.tiers.small.replicas.min == document["tiers"]["small"]["replicas"]
    assert engine_problems(config, "gpu") == []


TINY = ["--rate", "1", "--prompt-tokens", "9", "--output-tokens", "9", "--slo-ttft", "1s"]
METRICS = """# HELP forebay_requests_total Requests
forebay_requests_total{route="/v1/chat/completions",tier="none",cache="hit-exact",status="200"} 30
forebay_requests_total{route="/v1/chat/completions",tier="none",cache="hit-semantic",status="200"} 10
forebay_requests_total{route="/v1/chat/completions",tier="small",cache="miss",status="200"} 45
forebay_requests_total{route="/v1/chat/completions",tier="frontier",cache="miss",status="200"} 15
forebay_requests_total{route="/v1/chat/completions",tier="none",cache="miss",status="429"} 7
forebay_tokens_total{tier="small",kind="input"} 30000.0
forebay_tokens_total{tier="frontier",kind="output"} 6000.0
"""


def test_metrics_give_hit_rate_share_and_lengths() -> None:
    found = observed(METRICS)
    assert (found.hit_rate, found.frontier_share) == (0.4, 0.25)
    assert (found.prompt_tokens, found.output_tokens) == (500, 100)
    assert observed("").hit_rate is None


def test_the_command_writes_a_fragment_that_check_accepts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model, step, frontier = tmp_path / "config.json", tmp_path / "step.json", tmp_path / "frontier.json"
    model.write_text(json.dumps(LLAMA))
    write_step_model(ENGINE, step)
    frontier.write_text(json.dumps(LLAMA | {"num_hidden_layers": 40}))
    metrics = tmp_path / "metrics.txt"
    metrics.write_text(METRICS)
    out, report = tmp_path / "plan.yaml", tmp_path / "plan.html"
    load = ["--rate", "20", "--metrics", str(metrics), "--slo-ttft", "2s", "--slo-tpot", "80ms"]
    small = ["--model", "org/small", "--step-model", str(step), "--kv-tokens", "60000"]
    big = ["--frontier-model", "org/big", "--frontier-model-config", str(frontier), "--frontier-gpu", "H100"]
    assert main(["plan", "fleet", *load, *small, *big, "--out", str(out), "--report", str(report), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["hit_rate"], document["frontier_share"]) == (0.4, 0.25)
    assert document["tiers"]["small"]["rate_rps"] == pytest.approx(20 * 0.6 * 0.75)
    assert document["tiers"]["frontier"]["source"].startswith("data sheet")
    assert set(yaml.safe_load(out.read_text())["tiers"]) == {"small", "frontier"}
    assert main(["check", "--config", str(out)]) == 0
    page = report.read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "<table>" in page
    assert main(["plan", "fleet", *load, *small, *big, "--report", str(tmp_path / "plan.md")]) == 0
    assert (tmp_path / "plan-small.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--slo-ttft", "1s"], "--trace"),
        (TINY[:-2], "no objective"),
        (TINY, "--model-config"),
        (
            [
                "--rate",
                "1",
                "--prompt-tokens",
                "9",
                "--output-tokens",
                "9",
                "--slo-ttft",
                "1s",
                "--frontier-share",
                "0.5",
            ],
            "frontier share",
        ),
    ],
)
def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str], arguments: list[str], named: str) -> None:
    assert main(["plan", "fleet", *arguments]) == 2
    assert named in capsys.readouterr().err


def test_a_calibration_is_not_applied_to_another_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    step = tmp_path / "step.json"
    write_step_model(replace(ENGINE, engine={"gpu": "A100"}), step)
    assert main(["plan", "fleet", *TINY, "--step-model", str(step), "--gpu", "H100"]) == 2
    assert "calibrated with 'A100'" in capsys.readouterr().err
