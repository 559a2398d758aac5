import numpy as np
import pytest

from capacity.arrivals import Arrivals, Constant, Gamma, Mmpp, Poisson, burstiness
from capacity.workload import Group, Sampled, Spread, Synthetic
from core.errors import ConfigError

RNG = 20_260_101


@pytest.mark.parametrize(
    ("process", "cv"), [(Poisson(50), 1.0), (Gamma(50, 3.0), 3.0), (Gamma(50, 0.5), 0.5), (Constant(50), 0.0)]
)
def test_arrivals_have_their_rate_and_spread(process: Arrivals, cv: float) -> None:
    gaps = np.diff(process.times(200_000, np.random.default_rng(RNG)))
    assert 1 / gaps.mean() == pytest.approx(50, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, abs=0.05)


def test_modulated_arrivals_keep_their_mean_rate_and_their_dispersion() -> None:
    process = Mmpp(20.0, ratio=6.0, burst_s=2.0, calm_s=8.0)
    times = process.times(400_000, np.random.default_rng(RNG))
    assert (np.diff(times) >= 0).all()
    assert len(times) / times[-1] == pytest.approx(20, rel=0.03)
    counts = np.bincount((times // 100).astype(int))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(process.dispersion, rel=0.25)
    assert process.dispersion > 10
    assert burstiness(times).dispersion[60] == pytest.approx(process.dispersion, rel=0.3)


def test_poisson_looks_poisson_and_bursts_do_not() -> None:
    rng = np.random.default_rng(RNG)
    assert burstiness(Poisson(20).times(50_000, rng)).poisson
    bursty = burstiness(Mmpp(20.0).times(50_000, rng))
    assert bursty.gap_cv < 2
    assert not bursty.poisson


@pytest.mark.parametrize("shape", ["exponential", "lognormal"])
def test_lengths_have_their_mean_and_are_at_least_one(shape: str) -> None:
    prompt, output = Spread(500, 3, shape, shape).draw(200_000, np.random.default_rng(RNG))
    assert prompt.mean() == pytest.approx(500, rel=0.02)
    assert output.mean() == pytest.approx(3, rel=0.05)
    assert min(prompt.min(), output.min()) >= 1


def test_sampled_lengths_stay_pairs() -> None:
    seen = np.arange(1, 100, dtype=np.int32)
    prompt, output = Sampled(seen, seen * 2).draw(1000, np.random.default_rng(RNG))
    assert (output == prompt * 2).all()


def test_classes_have_their_shares_lengths_and_priorities() -> None:
    groups = [Group("chat", 3, Spread(100, 50), 0), Group("batch", 1, Spread(2000, 400), 2)]
    requests = Synthetic(Poisson(1), 40_000, groups).draw(1)
    assert requests.names == ("chat", "batch")
    assert (requests.group == 1).mean() == pytest.approx(0.25, abs=0.01)
    assert set(requests.prompt[requests.group == 1]) == {2000}
    assert set(requests.priority[requests.group == 0]) == {0}


def test_the_same_seed_draws_the_same_requests() -> None:
    workload = Synthetic(Mmpp(5), 500, [Group("all", 1, Spread(9, 9, "exponential", "lognormal"))])
    one, same, other = workload.draw(1), workload.draw(1), workload.draw(2)
    assert (one.arrived == same.arrived).all()
    assert (one.output == same.output).all()
    assert (one.arrived != other.arrived).any()


@pytest.mark.parametrize("process", [Poisson(0), Gamma(1, -1), Mmpp(1, ratio=0), Constant(float("inf"))])
def test_a_rate_that_is_none_is_refused(process: Arrivals) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        process.times(3, np.random.default_rng(0))
