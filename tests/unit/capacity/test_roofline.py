"""Estimates from data sheets: their shape, their limits, and their interval."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from capacity.architecture import read_architecture
from capacity.devices import DEVICES, find_device, ridge_batch, transfer_seconds
from capacity.roofline import PROFILES, Roofline, Shape, shape_of
from capacity.speculation import Speculation, best_tokens, break_even_acceptance, pays
from capacity.weights import count_weights
from tests.unit.capacity.test_memory import FAMILIES

ROOT = Path(__file__).resolve().parents[3]
LLAMA_7B = Shape(32, 4096, 4096, 6.74e9, 6.74e9, 262_144)
LINE = Roofline(LLAMA_7B, DEVICES["A100-SXM-80GB"], PROFILES["vllm"])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A100", "A100-SXM-80GB"),
        ("a100-80gb", "A100-SXM-80GB"),
        ("A100-40GB-SXM", "A100-SXM-40GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("H100-SXM5-80GB", "H100-SXM"),
        ("H100 PCIe", "H100-PCIe"),
        ("nvidia-h100-80gb", "H100-SXM"),
        ("L40S", "L40S"),
        ("A10G-24GB", "A10G"),
    ],
)
def test_a_device_is_found_by_the_names_that_people_write(text: str, name: str) -> None:
    assert find_device(text).name == name


def test_an_unknown_device_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="H200-SXM"):
        find_device("abacus")


@pytest.mark.parametrize(("name", "batch"), [("A100-SXM-40GB", 201), ("H100-SXM", 295), ("L4", 403), ("T4", 203)])
def test_decode_turns_compute_bound_at_the_ridge(name: str, batch: int) -> None:
    assert ridge_batch(DEVICES[name]) == pytest.approx(batch, abs=0.5)


def test_no_step_is_faster_than_the_data_sheet() -> None:
    for profile in PROFILES.values():
        line = replace(LINE, profile=profile)
        assert line.decode_s(1, 0) > 2 * 6.74e9 / 2.039e12
        assert line.prefill_s(2048) > 2 * 6.74e9 * 2048 / 312e12
        assert max(profile.memory, profile.cache, profile.compute16, profile.compute8) < 1


def test_batching_is_free_until_the_ridge_and_caches_never_are() -> None:
    free = LINE.matrices_s(32) / LINE.matrices_s(1)
    paid = LINE.matrices_s(2048) / LINE.matrices_s(1024)
    assert free < 1.05
    assert paid > 1.8
    assert LINE.decode_s(32, 64_000) - LINE.decode_s(32, 32_000) == pytest.approx(
        32_000 * 524_288 / (2.039e12 * LINE.profile.cache)
    )


def test_ranks_share_the_reading_and_pay_for_talking() -> None:
    four = replace(LINE, tensor_parallel=4)
    assert four.decode_s(1, 0) < LINE.decode_s(1, 0)
    assert four.decode_s(1, 0) > LINE.decode_s(1, 0) / 4
    assert four.reduce_s(1) > 0 == LINE.reduce_s(1)


def test_experts_are_read_as_tokens_choose_them() -> None:
    settings = FAMILIES["mixtral-8x7b"][0]
    shape = shape_of(read_architecture(settings), count_weights(settings))
    assert shape.read(1) == pytest.approx(count_weights(settings).active, rel=1e-9)
    assert shape.read(64) == pytest.approx(shape.weights, rel=1e-3)


def test_the_step_model_is_the_curve_around_its_point() -> None:
    model = LINE.step_model(32, 1000, {"gpu": "A100"})
    assert model.engine["gpu"] == "A100"
    assert model.decode_s(64, 0) == pytest.approx(LINE.decode_s(64, 0))
    assert model.decode_s(1, 100) == pytest.approx(LINE.decode_s(1, 100))
    assert model.prefill_s(2000) == pytest.approx(LINE.prefill_s(2000), rel=0.05)


def test_an_estimate_has_an_interval() -> None:
    found = LINE.interval(1.0)
    assert found.low < 1 < found.high
    assert found.high / found.low <= 2


def test_speculation_pays_where_acceptance_is_above_cost() -> None:
    assert Speculation(0.8, 5, 0.05).speedup == pytest.approx(2.951424)
    assert Speculation(0.3, 5, 0.1).speedup < 1
    assert pays(0.3, 0.1)
    assert 0 < best_tokens(0.3, 0.1) < 5
    assert best_tokens(0.1, 0.2) == 0
    edge = break_even_acceptance(5, 0.1)
    assert Speculation(edge, 5, 0.1).speedup == pytest.approx(1)
    assert break_even_acceptance(1, 2) == 1


def test_a_cache_takes_time_to_move() -> None:
    assert transfer_seconds(131_072 * 4096, 50e9, 0.001) == pytest.approx(0.01173741824)


@pytest.mark.skipif("FOREBAY_DATA" not in os.environ, reason="FOREBAY_DATA names no folder of reference data")
@pytest.mark.parametrize("module", ["bench.capacity_cross_gpu", "bench.capacity_closed_forms"])
def test_the_shipped_numbers_hold_on_the_reference_tables(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--json"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)
