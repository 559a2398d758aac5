"""The table over all pairs says where routing pays and where it does not."""

import numpy as np
import pytest

from router.labels import Scored
from router.pairs import Pair, measure_pairs

NOTES: list[str] = []


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, str], Pair]:
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(600, 6)).astype(np.float32)
    hard = inputs[:, 2] + 0.3 * generator.normal(size=600) > 0
    luck = generator.random(600)
    scores = {
        # Fails where it is hard; fails at random; never fails.
        "weak": np.where(hard, 0.0, 1.0),
        "lucky": (luck < 0.7).astype(float),
        "best": np.ones(600),
    }
    rows = [Scored("x" * 20, {name: float(own[at]) for name, own in scores.items()}, "") for at in range(600)]
    return {(pair.weak, pair.strong): pair for pair in measure_pairs(rows, inputs, 4, NOTES.append)}


def test_every_pair_is_there_weaker_first(found: dict[tuple[str, str], Pair]) -> None:
    assert set(found) == {("weak", "lucky"), ("weak", "best"), ("lucky", "best")}
    assert all(pair.weak_mean < pair.strong_mean for pair in found.values())
    assert NOTES == ["3 pairs of 3 models"]


def test_what_can_be_told_beforehand_pays(found: dict[tuple[str, str], Pair]) -> None:
    pair = found["weak", "best"]
    assert pair.verdict == "pays"
    assert pair.measured.apgr is not None
    assert pair.measured.apgr > 0.65
    assert pair.measured.apgr_ci is not None
    assert pair.measured.apgr_ci[0] > 0.5


def test_chance_is_no_signal(found: dict[tuple[str, str], Pair]) -> None:
    assert found["lucky", "best"].verdict == "no signal"
