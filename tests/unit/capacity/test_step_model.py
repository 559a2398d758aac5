from pathlib import Path

import orjson
import pytest

from capacity.step_model import (
    DecodeCost,
    PrefillCost,
    StepModel,
    parse_step_model,
    read_step_model,
    total_latency,
    write_step_model,
)
from core.errors import ConfigError

MODEL = StepModel(
    DecodeCost(0.02, 0.0001, 1e-7), PrefillCost(0.015, 1e-4, 1e-9), {"max_num_seqs": 128, "model": "org/small"}
)


def test_a_step_that_prefills_and_decodes_reads_the_weights_once() -> None:
    apart = MODEL.decode_s(10, 5000) + MODEL.prefill_s(200)
    assert MODEL.step_s(10, 5000, 200) == pytest.approx(apart - 0.015)
    assert MODEL.step_s(0, 0, 200) == pytest.approx(MODEL.prefill_s(200))
    assert MODEL.step_s(10, 5000, 0) == pytest.approx(MODEL.decode_s(10, 5000))


def test_the_prefill_gives_the_first_token() -> None:
    alone = MODEL.unloaded(100, 3)
    first, second = MODEL.decode_s(1, 101), MODEL.decode_s(1, 102)
    assert alone.ttft_s == pytest.approx(MODEL.prefill_s(100))
    assert alone.e2e_s == pytest.approx(MODEL.prefill_s(100) + first + second)
    assert alone.tpot_s == pytest.approx((first + second) / 2)
    assert MODEL.unloaded(100, 1).tpot_s is None


@pytest.mark.parametrize(
    ("ttft", "n", "tpot", "total"), [(0.2, 100, 0.03, 3.17), (0.5, 512, 0.02, 10.72), (0.2, 1, 0.03, 0.2)]
)
def test_total_latency_counts_one_step_less_than_tokens(ttft: float, n: int, tpot: float, total: float) -> None:
    assert total_latency(ttft, n, tpot) == pytest.approx(total)
    assert total_latency(ttft, n, tpot) < ttft + n * tpot


def test_the_textbook_service_model_costs_the_same_for_a_prompt_and_a_token() -> None:
    model = StepModel.of_batch(0.05, 0.0005)
    assert model.decode_s(8) == pytest.approx(0.054)
    assert model.step_s(7, 0, 1000, 1) == pytest.approx(0.054)


def test_prompt_tokens_hide_behind_the_reading_of_the_weights() -> None:
    model = StepModel(DecodeCost(0.01, 0.0), PrefillCost(0.01, 1e-4, hidden_tokens=100))
    assert model.step_s(40, 0, 60) == pytest.approx(0.01)
    assert model.step_s(40, 0, 80) == pytest.approx(0.012)
    assert model.step_s(200, 0, 80) == pytest.approx(0.018)
    assert model.prefill_s(150) == pytest.approx(0.015)


def test_mixing_costs_only_steps_that_do_both() -> None:
    model = StepModel(DecodeCost(0.01, 0.001), PrefillCost(0.02, 1e-4, mixed_s=0.005))
    assert model.step_s(4, 0, 100) == pytest.approx(0.004 + 0.02 + 0.01 + 0.005)
    assert model.prefill_s(100) == pytest.approx(0.03)
    assert model.step_s(4, 0, 0) == pytest.approx(0.014)
    assert parse_step_model(model.document()) == model


def test_concurrency_one_is_the_unloaded_request_up_to_its_arrival_within_a_step() -> None:
    model = StepModel(DecodeCost(0.02, 0.0, 0.0), PrefillCost(0.02, 0.0))
    assert model.at_concurrency(1, 100, 50).tpot_s == pytest.approx(0.02, rel=0.03)


def test_a_written_model_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    write_step_model(MODEL, path)
    assert read_step_model(path) == MODEL
    assert set(orjson.loads(path.read_bytes())["prefill"]) == {"fixed_s", "token_s", "token2_s"}


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ([], "an object with"),
        ({"prefill": {"fixed_s": 0, "token_s": 0}}, "decode: missing"),
        ({"decode": {"fixed_s": 1, "seq_s": 1, "quad_s": 1}, "prefill": {"fixed_s": 0, "token_s": 0}}, "decode.quad_s"),
        ({"decode": {"fixed_s": 1}, "prefill": {"fixed_s": 0, "token_s": 0}}, "decode.seq_s: missing"),
        ({"decode": {"fixed_s": 1, "seq_s": "x"}, "prefill": {"fixed_s": 0, "token_s": 0}}, "decode.seq_s"),
        ({"decode": {"fixed_s": 1, "seq_s": -1}, "prefill": {"fixed_s": 0, "token_s": 0}}, "decode.seq_s"),
    ],
)
def test_a_wrong_file_is_refused_by_key_path(document: object, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_step_model(document)


def test_a_calibration_names_the_settings_it_was_not_made_with() -> None:
    assert MODEL.mismatches({"max_num_seqs": 128}) == []
    assert MODEL.mismatches({"max_num_seqs": 64, "dtype": "bfloat16"}) == [
        "max_num_seqs: calibrated with 128, asked for 64"
    ]
