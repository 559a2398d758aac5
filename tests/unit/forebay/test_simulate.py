from pathlib import Path
from typing import Any

import orjson
import pytest

from capacity.step_model import DecodeCost, PrefillCost, StepModel, write_step_model
from forebay.main import main

POISSON = [
    "--arrivals",
    "poisson",
    "--rate",
    "100",
    "--requests",
    "5000",
    "--prompt-tokens",
    "1",
    "--output-tokens",
    "1",
]
TEXTBOOK = ["--t-fixed", "50ms", "--t-req", "0.5ms"]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "three.csv"
    path.write_text("arrived_s,prompt_tokens,output_tokens\n0,10,10\n0,10,40\n0,10,100\n")
    return path


def simulate(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["simulate", *map(str, arguments), "--json"]) == 0
    found: dict[str, Any] = orjson.loads(capsys.readouterr().out)
    return found


def test_the_document_has_the_promised_keys(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    found = simulate(capsys, "--trace", trace, *TEXTBOOK, "--max-num-seqs", 3, "--slo-ttft", "1s", "--slo-tpot", "60ms")
    assert {"requests", "duration_s", "throughput_tok_s", "goodput", "goodput_rps", "slot_utilization"} <= set(found)
    for metric in ("ttft", "tpot", "e2e"):
        assert {"p50", "p95", "p99"} <= set(found[metric])
    assert found["requests"] == 3
    assert found["goodput"] == 1.0
    assert found["throughput_tok_s"] == pytest.approx(150 / found["duration_s"])
    assert sum(one["requests"] for one in found["classes"]) == 3


def test_without_targets_there_is_no_goodput(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    assert simulate(capsys, "--trace", trace, *TEXTBOOK)["goodput"] is None


def test_the_worked_example_of_static_batches_wastes_half(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    found = simulate(capsys, "--trace", trace, "--scheduler", "static", "--max-num-seqs", 3, *TEXTBOOK)
    assert found["slot_utilization"] == 0.5


@pytest.mark.parametrize(
    "scheduler",
    [["fixed"], ["window", "--max-wait", "50ms"], ["work-conserving"], ["static"], ["continuous"], ["chunked"]],
)
def test_the_same_seed_gives_the_same_bytes_and_another_does_not(
    capsys: pytest.CaptureFixture[str], scheduler: list[str]
) -> None:
    outputs = []
    for seed in ("3", "3", "4"):
        assert main(["simulate", *POISSON, "--scheduler", *scheduler, *TEXTBOOK, "--seed", seed, "--json"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert orjson.loads(outputs[0])["e2e"] != orjson.loads(outputs[2])["e2e"]


def test_a_fleet_parts_the_requests_between_cache_and_tiers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    write_step_model(StepModel(DecodeCost(0.02, 0.0), PrefillCost(0.02, 0.0)), path)
    fleet = ["--cache-hit-rate", 0.3, "--frontier-share", 0.25, "--frontier-step-model", path, "--overhead", "1ms"]
    found = simulate(capsys, *POISSON, "--max-num-seqs", 64, *TEXTBOOK, *fleet)
    classes = {one["name"]: one for one in found["classes"]}
    assert classes["cache"]["requests"] == pytest.approx(1500, rel=0.1)
    assert classes["frontier"]["requests"] == pytest.approx(875, rel=0.15)
    assert classes["cache"]["e2e"]["p99"] == pytest.approx(0.001)
    assert classes["frontier"]["e2e"]["p50"] < classes["small"]["e2e"]["p50"]
    assert found["littles_law_ratio"] == pytest.approx(1)


def test_priorities_put_one_class_before_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    load = ["--arrivals", "poisson", "--rate", 9, "--requests", 4000, "--class", "chat:0.5:100:50:0"]
    found = simulate(capsys, *load, "--class", "batch:0.5:100:50:1", "--max-num-seqs", 32, *TEXTBOOK)
    classes = {one["name"]: one for one in found["classes"]}
    assert classes["chat"]["ttft"]["p95"] < classes["batch"]["ttft"]["p95"] / 3


def test_requests_and_steps_are_written_out(capsys: pytest.CaptureFixture[str], tmp_path: Path, trace: Path) -> None:
    rows, picture = tmp_path / "rows.jsonl", tmp_path / "trace.json"
    simulate(capsys, "--trace", trace, *TEXTBOOK, "--requests-out", rows, "--chrome-trace", picture)
    lines = [orjson.loads(line) for line in rows.read_bytes().splitlines()]
    assert [line["output_tokens"] for line in lines] == [10, 40, 100]
    assert lines[0]["e2e_s"] == pytest.approx(lines[0]["ttft_s"] + 9 * lines[0]["tpot_s"])
    events = orjson.loads(picture.read_bytes())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 100
    assert {event["ph"] for event in events} == {"M", "X", "b", "e"}


def test_a_calibration_for_other_settings_is_said_aloud(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, trace: Path
) -> None:
    path = tmp_path / "step.json"
    write_step_model(StepModel(DecodeCost(0.02, 0.0), PrefillCost(0.02, 0.0), {"max_num_seqs": 64}), path)
    assert main(["simulate", "--trace", str(trace), "--step-model", str(path), "--max-num-seqs", "8", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "calibrated with 64, asked for 8" in err
    assert "calibrated with 64, asked for 8" in orjson.loads(out)["warnings"][0]


def test_precision_makes_the_run_as_long_as_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    found = simulate(capsys, *POISSON, "--scheduler", "fixed", "--max-num-seqs", 8, *TEXTBOOK, "--precision", 0.005)
    low, high = found["e2e"]["ci95"]["mean"]
    assert (high - low) / 2 <= 0.005 * found["e2e"]["mean"]
    assert found["requests"] > 5000


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([*POISSON], "step_model"),
        ([*POISSON, *TEXTBOOK, "--scheduler", "window"], "max_wait"),
        ([*POISSON, *TEXTBOOK, "--class", "chat"], "class"),
        ([*POISSON, *TEXTBOOK, "--frontier-share", "0.5"], "frontier_share"),
        (
            ["--arrivals", "closed", "--requests", "5", "--prompt-tokens", "1", "--output-tokens", "1", *TEXTBOOK],
            "conc",
        ),
        (["--arrivals", "poisson", "--requests", "5", "--prompt-tokens", "1", *TEXTBOOK], "output_tokens"),
        (["--trace", "absent.csv", *TEXTBOOK], "absent.csv"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str], arguments: list[str], named: str) -> None:
    assert main(["simulate", *arguments]) == 2
    assert named in capsys.readouterr().err
