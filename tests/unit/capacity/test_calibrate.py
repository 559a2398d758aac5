"""A calibration finds the engine that made the figures, and says so when it was another one."""

import pytest

from capacity.calibrate import Calibration, Point, calibrate, predict
from capacity.scheduler import Scheduler
from capacity.step_model import DecodeCost, PrefillCost, StepModel
from core.errors import ConfigError

SCHEDULER = Scheduler("continuous", max_num_seqs=64, max_num_batched_tokens=4096)
TRUTH = Calibration(
    StepModel(DecodeCost(0.009, 0.00008), PrefillCost(0.009, 2.5e-5, hidden_tokens=120)), SCHEDULER, 0.015, 200, 0.0
)


def measured(load: float, *, closed: bool = False) -> Point:
    shape = {"concurrency": int(load)} if closed else {"rate": load}
    blank = Point(int(12 * load) if not closed else 400, 300, 60, {"req_s": 0.0}, **shape)  # type: ignore[arg-type]
    figures = predict(TRUTH, blank, seeds=(21, 22))
    return Point(blank.requests, 300, 60, figures, **shape)  # type: ignore[arg-type]


def test_a_rate_is_predicted_from_the_others_overload_included() -> None:
    points = [measured(rate) for rate in (5, 40, 80, 160)]
    assert not points[-1].kept_up
    found = calibrate([points[0], points[1], points[3]], SCHEDULER, {"max_num_seqs": 64})
    guess = predict(found, points[2])
    for name, most in (("req_s", 0.02), ("e2e_mean", 0.06), ("e2e_p99", 0.08), ("ttft_mean", 0.12)):
        assert guess[name] == pytest.approx(points[2].measured[name], rel=most), name
    assert found.clients == pytest.approx(200, rel=0.06)
    assert found.model.engine == {"max_num_seqs": 64}


def test_a_higher_concurrency_is_predicted_from_lower_ones() -> None:
    points = [measured(clients, closed=True) for clients in (1, 6, 24)]
    found = calibrate(points, SCHEDULER, {})
    beyond = measured(48, closed=True)
    assert predict(found, beyond)["tok_s"] == pytest.approx(beyond.measured["tok_s"], rel=0.04)


def test_the_wrong_scheduler_fits_worse() -> None:
    points = [measured(rate) for rate in (5, 60, 160)]
    few = Scheduler("continuous", max_num_seqs=16, max_num_batched_tokens=4096)
    assert calibrate(points, SCHEDULER, {}).residual < calibrate(points, few, {}).residual / 2


def test_one_load_is_too_few() -> None:
    with pytest.raises(ConfigError, match="at least 2"):
        calibrate([measured(5)], SCHEDULER, {})
