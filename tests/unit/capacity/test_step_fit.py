import csv
import os
from pathlib import Path

import pytest

from capacity.step_fit import DecodeStep, MixedStep, PrefillStep, fit_steps
from capacity.step_model import DecodeCost, PrefillCost, StepModel
from core.errors import ConfigError

DATA = os.environ.get("FOREBAY_DATA")
TRUTH = StepModel(DecodeCost(0.012, 0.0002, 3e-7), PrefillCost(0.02, 4e-5, 2e-9))


def decode(n: int, context: float) -> DecodeStep:
    return DecodeStep(n, context, TRUTH.decode_s(n, context))


def prefill(prompts: int, tokens: float) -> PrefillStep:
    return PrefillStep(prompts, tokens, TRUTH.prefill_s(tokens, prompts))


PREFILLS = [prefill(1, 128), prefill(1, 512), prefill(1, 4096), prefill(4, 512)]


def test_exact_measurements_give_their_model_back() -> None:
    found = fit_steps([decode(n, n * each) for n in (1, 8, 32) for each in (100, 2000)], PREFILLS, {"gpu": "x"})
    assert found.model.decode.fixed_s == pytest.approx(TRUTH.decode.fixed_s)
    assert found.model.decode.seq_s == pytest.approx(TRUTH.decode.seq_s)
    assert found.model.decode.ctx_token_s == pytest.approx(TRUTH.decode.ctx_token_s)
    assert found.model.prefill.token_s == pytest.approx(TRUTH.prefill.token_s)
    assert found.model.prefill.token2_s == pytest.approx(TRUTH.prefill.token2_s)
    assert max(map(abs, (*found.decode_errors, *found.prefill_errors))) < 1e-9
    assert (found.largest_batch, found.largest_prompt, found.convex) == (32, 4096, False)
    assert found.model.engine == {"gpu": "x"}


@pytest.mark.parametrize(("beyond", "found_s"), [(0.013, 0.013), (-0.004, 0.0)])
def test_what_mixing_costs_is_the_median_of_what_the_rest_does_not_explain(beyond: float, found_s: float) -> None:
    decodes = [decode(n, n * each) for n in (1, 8, 32) for each in (100, 2000)]
    mixed = [
        MixedStep(4, 900, tokens, TRUTH.step_s(4, 900, tokens) + beyond + noise)
        for tokens, noise in ((64, 0.0), (128, 0.2), (512, -0.001))
    ]
    found = fit_steps(decodes, PREFILLS, {}, mixed)
    assert found.model.prefill.mixed_s == pytest.approx(found_s, abs=1e-9)
    assert found.model.step_s(4, 900, 64) == pytest.approx(TRUTH.step_s(4, 900, 64) + found_s)
    assert found.mixed_errors[1] == pytest.approx(found.model.step_s(4, 900, 128) / mixed[1].seconds - 1)


def test_one_context_length_is_part_of_the_cost_of_a_sequence() -> None:
    found = fit_steps([decode(n, n * 500) for n in (1, 8, 32)], PREFILLS, {})
    assert found.model.decode.ctx_token_s == 0
    assert found.model.decode.seq_s == pytest.approx(TRUTH.decode.seq_s + 500 * TRUTH.decode.ctx_token_s)


def test_no_time_is_below_zero() -> None:
    bent = [PrefillStep(1, tokens, 1e-7 * tokens**2) for tokens in (100.0, 200.0, 400.0)]
    found = fit_steps([DecodeStep(1, 100, 0.02), DecodeStep(2, 200, 0.019)], bent, {}).model
    assert min(found.prefill.fixed_s, found.prefill.token_s, found.decode.fixed_s, found.decode.seq_s) >= 0


def test_too_few_measurements_are_refused() -> None:
    with pytest.raises(ConfigError, match="two different batches"):
        fit_steps([decode(8, 100), decode(8, 900)], PREFILLS, {})
    with pytest.raises(ConfigError, match="amounts of prompt"):
        fit_steps([decode(1, 100), decode(8, 900)], PREFILLS[:1], {})


@pytest.mark.skipif(DATA is None, reason="FOREBAY_DATA names no folder of reference data")
def test_real_decode_steps_bend_and_a_fit_to_small_batches_underrates_large_ones() -> None:
    path = Path(DATA or "") / "capacity" / "splitwise_measured_llama2-70b_a100.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["suspect"] == "False" and row["token_size"] == "128"]
    mine = [row for row in rows if row["tensor_parallel"] == "4" and row["prompt_size"] == "512"]
    steps = {
        int(row["batch_size"]): DecodeStep(
            int(row["batch_size"]), int(row["batch_size"]) * 576, float(row["token_ms_median"]) / 1000
        )
        for row in mine
    }
    prompts = [
        PrefillStep(int(row["batch_size"]), float(row["prompt_size"]), float(row["prompt_ms_median"]) / 1000)
        for row in rows
        if row["tensor_parallel"] == "4"
    ]
    few = fit_steps([steps[batch] for batch in (1, 8, 32)], prompts, {})
    missing = few.model.decode_s(64, 64 * 576) / steps[64].seconds - 1
    assert missing == pytest.approx(-0.176, abs=0.02)
    assert few.largest_batch == 32
    assert fit_steps(list(steps.values()), prompts, {}).convex
