"""`forebay plan`: documents and exit codes as they are promised."""

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.main import main

BATCH = ["plan", "batch", "--arrival-rate", "100", "--t-fixed", "50ms", "--t-req", "0.5ms"]
GPT3 = ["plan", "kv", "--layers", "96", "--hidden", "12288", "--seq-len", "2048", "--dtype-bytes", "2"]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """The document that a command prints, alone on stdout."""
    assert main([*arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_textbook_example(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, *BATCH, "--method", "surrogate", "--batch", "1,8,16")
    assert (found["min_batch_stable"], found["min_batch_target"], found["best_batch"]) == (6, 8, 10)
    first, eight, _ = found["rows"]
    assert (first["stable"], first["wait_s"], first["response_s"], first["in_system"]) == (False, None, None, None)
    assert eight["response_s"] == pytest.approx(0.1450769, rel=1e-6)
    assert eight["in_system"] == pytest.approx(14.50769, rel=1e-6)
    assert {"surrogate_unfit", "work_conserving", "unstable"} <= {advice["code"] for advice in found["advice"]}


def test_full_batches_and_their_objective(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, *BATCH, "--method", "fixed", "--batch", "10,11", "--slo-p99", "200ms")
    assert (found["best_batch"], found["max_batch_slo"]) == (7, 10)
    ten, eleven = found["rows"]
    assert ten["p99_s"] < 0.2 < eleven["p99_s"]
    assert eleven["advice"] == ["slo_missed"]
    assert found["objectives"]["latency"]["batch"] == 7
    assert found["objectives"]["throughput_within_slo"]["batch"] == 10
    assert found["recommended"]["dispatch"] == "work-conserving"
    assert found["recommended"]["response_s"] < found["objectives"]["latency"]["response_s"]


def test_the_default_serves_what_waits(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, *BATCH, "--batch", "8")
    assert found["method"] == "work-conserving"
    [row] = found["rows"]
    assert row["accumulation_s"] == 0
    assert row["response_s"] == pytest.approx(row["wait_s"] + row["service_s"])
    assert row["response_s"] == pytest.approx(0.08175073, rel=1e-6)


def test_a_window_that_upsets_a_stable_batch_is_flagged(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, *BATCH, "--batch", "8", "--max-wait", "20ms")
    [row] = found["rows"]
    assert not row["stable"]
    assert row["mean_batch"] == pytest.approx(2.9986, rel=1e-4)
    assert row["accumulation_s"] == pytest.approx(0.0133012, rel=1e-5)
    assert row["min_wait_s"] == pytest.approx(0.0440126, rel=1e-5)
    assert row["advice"] == ["window_unstable"]


def test_what_no_batch_can_do_is_infeasible(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, *BATCH[:3], "2000", *BATCH[4:], code=1)
    assert (found["min_batch_stable"], found["best_batch"], found["feasible"]) == (None, None, False)
    assert found["advice"][0]["code"] == "infeasible"


def test_an_objective_that_nothing_keeps_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, *BATCH, "--batch", "8", "--slo-p99", "100ms", code=1)
    assert found["max_batch_slo"] is None
    assert found["recommended"]["p99_s"] > 0.1


def test_replicas_for_answers_of_many_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, *BATCH, "--batch", "8,64", "--output-tokens", "100")
    assert [(row["replicas"], row["replicas_target"]) for row in found["rows"]] == [(68, 90), (13, 18)]


def test_tables_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BATCH, "--slo-p99", "200ms"]) == 0
    text = capsys.readouterr().out
    assert "best 12" in text
    assert "recommended: work-conserving" in text
    assert main([*GPT3, "--gpu-memory", "640GB", "--weights", "350GB"]) == 0
    assert "9.664 GB = 9.000 GiB" in capsys.readouterr().out


def test_requests_that_fit(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, *GPT3, "--gpu-memory", "640GB", "--weights", "350GB")
    assert (found["bytes_per_token"], found["bytes_per_request"]) == (4_718_592, 9_663_676_416)
    assert found["max_requests"] == 30
    found = printed(capsys, *GPT3, "--gpu-memory", "640GB", "--weights", "350GB", "--memory-fraction", "0.9")
    assert found["max_requests"] == 23
    assert printed(capsys, *GPT3)["max_requests"] is None
    found = printed(capsys, *GPT3, "--gpu-memory", "300GB", "--weights", "350GB", code=1)
    assert found["max_requests"] == 0


def test_a_config_json_counts_its_weights_and_warns(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000}
    config.write_text(json.dumps({"num_hidden_layers": 32, "hidden_size": 4096, **heads}))
    asked = ["plan", "kv", "--config", str(config), "--seq-len", "1000", "--block-size", "16"]
    assert main([*asked, "--gpu-memory", "80GiB", "--memory-fraction", "0.9", "--max-model-len", "8192", "--json"]) == 0
    out, errors = capsys.readouterr()
    found = json.loads(out)
    assert found["bytes_per_token"] == 131_072
    assert found["bytes_per_request"] == 1008 * 131_072
    assert found["weights_bytes"] == pytest.approx(14.48e9, rel=0.01)
    assert found["max_requests"] > found["max_requests_contiguous"] > 0
    assert "4.0 times" in errors
    assert "4.0 times" in found["warnings"][0]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([*BATCH[:5], "50", *BATCH[6:]], "not a duration"),
        ([*BATCH, "--batch", "1,0"], "whole number"),
        ([*BATCH, "--target-utilization", "1.5"], "at most 1"),
        ([*BATCH[:5], "0ms", "--t-req", "0ms"], "service time"),
        (["plan", "kv", "--seq-len", "10"], "--config"),
        ([*GPT3, "--kv-heads", "8"], "kv_heads"),
        ([*GPT3, "--gpu-memory", "640GB"], "--weights"),
        (["plan", "kv", "--config", "nowhere.json", "--seq-len", "10"], "nowhere.json"),
    ],
)
def test_bad_usage_is_named(capsys: pytest.CaptureFixture[str], arguments: list[str], named: str) -> None:
    try:
        code = main(arguments)
    except SystemExit as stopped:
        code = int(str(stopped.code))
    assert code == 2
    assert named in capsys.readouterr().err
