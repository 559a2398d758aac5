"""Queueing formulas against hand values, against each other, and against small simulations."""

import math
from itertools import pairwise

import numpy as np
import pytest

from capacity import queues
from capacity.batching import Load, Tradeoff, best_batch, knee, max_batch_slo, minimums, pareto
from capacity.bulk import Bulk
from capacity.closed_window import ClosedWindow
from capacity.fixed_batch import FixedBatch
from capacity.service import ServiceTime, fit_service, min_replicas, min_stable_batch, min_target_batch, stable_batch
from capacity.window import min_wait, window

DECODE = ServiceTime(0.05, 0.0005)


def simulate(rate: float, service: ServiceTime, limit: int, rng: np.random.Generator, requests: int = 200_000) -> tuple:
    """Mean batch and responses of a server that takes up to `limit` whenever it is idle."""
    arrivals = np.cumsum(rng.exponential(1 / rate, requests))
    ends = np.empty(requests)
    first, now, batches = 0, 0.0, 0
    while first < requests:
        now = max(now, arrivals[first])
        last = min(int(np.searchsorted(arrivals, now, side="right")), first + limit)
        now += service.seconds(last - first)
        ends[first:last] = now
        first, batches = last, batches + 1
    return requests / batches, ends - arrivals


def test_the_stable_batch_is_strictly_above_the_arrival_rate() -> None:
    assert stable_batch(DECODE, 100) == pytest.approx(5.263157894736842)
    assert min_stable_batch(DECODE, 100) == 6
    # Exactly 10 would only keep up: 11.
    assert min_stable_batch(ServiceTime(0.08, 0.002), 100) == 11
    assert min_stable_batch(DECODE, 10) == 1
    assert min_stable_batch(DECODE, 2000) is None
    assert stable_batch(DECODE, 2000) == math.inf


def test_the_target_is_another_number_and_may_be_met_exactly() -> None:
    assert min_target_batch(DECODE, 100, 0.75) == 8
    # λ·T(8)/8 = 0.675 to the last digit.
    assert min_target_batch(DECODE, 100, 0.675) == 8
    assert min_target_batch(DECODE, 100, 0.05) is None
    assert min_target_batch(ServiceTime(0.08, 0.002), 100, 1) == 11


def test_replicas_count_output_tokens_and_round_up_without_noise() -> None:
    counts = [min_replicas(DECODE, 100, batch, passes=100) for batch in (8, 16, 30, 32, 64)]
    assert counts == [68, 37, 22, 21, 13]
    counts = [min_replicas(DECODE, 100, batch, passes=100, utilization=0.75) for batch in (8, 16, 30, 32, 64)]
    assert counts == [90, 49, 29, 28, 18]


def test_doubling_gives_less_and_less() -> None:
    assert DECODE.doubling_gain(16)[0] == pytest.approx(1.7575757575)
    assert DECODE.batch_of_doubling_gain(1.2) == pytest.approx(200)


def test_a_fit_finds_the_line_and_says_when_there_is_none() -> None:
    line = fit_service([1, 8, 32, 32], [DECODE.seconds(batch) for batch in (1, 8, 32, 32)])
    assert (line.service.fixed_s, line.service.request_s) == pytest.approx((0.05, 0.0005))
    assert not line.convex
    bent = fit_service([1, 8, 32, 64], [0.0505, 0.052, 0.06, 0.1])
    assert bent.convex
    assert bent.relative_error > 0.05
    assert fit_service([1, 8], [0.06, 0.05]).service.request_s == 0
    with pytest.raises(ValueError, match="two different batches"):
        fit_service([4, 4], [0.1, 0.1])


@pytest.mark.parametrize(("servers", "load"), [(1, 0.5), (1, 0.95), (4, 3.2), (16, 15.8)])
def test_constant_service_halves_the_wait_of_one_server_and_nearly_of_many(servers: int, load: float) -> None:
    exact, markov = queues.mdc_wait(load, 1, servers), queues.mmc(load, 1, servers).wait_s
    if servers == 1:
        assert exact == pytest.approx(markov / 2, rel=1e-10)
    assert 0.5 < exact / markov < 0.55 or servers == 1
    assert queues.mgc_wait(load, 1, servers, 1) == pytest.approx(markov)
    assert queues.mgc_wait(load, 1, servers, 0) == pytest.approx(exact, rel=0.01)


def test_heavy_traffic_converges() -> None:
    assert queues.mdc_wait(0.9999, 1, 1) == pytest.approx(0.9999 / (2 * 0.0001), rel=1e-6)
    assert queues.mdc_wait(1, 1, 1) == math.inf


def test_a_bounded_queue_loses_what_it_cannot_serve() -> None:
    assert queues.mmck(3, 1, 4, 4).loss == pytest.approx(queues.erlang_b(4, 3))
    crowded = queues.mmck(9, 1, 8, 32)
    assert crowded.loss == pytest.approx(0.11531473181893721)
    assert queues.littles_law_ratio(9 * (1 - crowded.loss), crowded.in_system, crowded.response_s) == pytest.approx(1)
    wait = queues.mmc(3.2, 1, 4)
    assert wait.wait_quantile(1 - wait.wait_probability) == 0
    assert wait.wait_quantile(0.99) > wait.wait_s


def test_batches_arrive_more_regularly_than_the_surrogate_believes() -> None:
    exact, surrogate = Load(100, DECODE, "fixed").queue(8), Load(100, DECODE, "surrogate").queue(8)
    assert exact.wait_s * 1e3 == pytest.approx(2.72261, rel=1e-5)
    assert surrogate.wait_s * 1e3 == pytest.approx(56.0769, rel=1e-5)
    assert exact.accumulation_s == surrogate.accumulation_s == pytest.approx(0.035)


@pytest.mark.parametrize(("batch", "p99"), [(6, 236.4), (7, 164.5), (8, 173.4), (10, 197.6), (16, 268.6), (64, 798.0)])
def test_percentiles_of_full_batches(batch: int, p99: float) -> None:
    found = FixedBatch(100, DECODE.seconds(batch), batch).response_quantile(0.99)
    assert found * 1e3 == pytest.approx(p99, rel=0.01)


def test_several_servers_take_full_batches_in_turn() -> None:
    rng = np.random.default_rng(7)
    filled = np.cumsum(rng.exponential(1 / 240, 8 * 60_000)).reshape(-1, 8)
    free, responses = np.zeros(2), []
    for batch in filled:
        server = int(free.argmin())
        free[server] = max(free[server], batch[-1]) + 0.05
        responses.append(free[server] - batch)
    found = FixedBatch(240, 0.05, 8, servers=2)
    assert np.mean(responses) == pytest.approx(found.response_s, rel=0.02)
    assert np.quantile(responses, 0.99) == pytest.approx(found.response_quantile(0.99), rel=0.03)


@pytest.mark.parametrize(
    ("rate", "service", "limit"),
    [(100, DECODE, 6), (100, DECODE, 8), (100, DECODE, 64), (0.8, ServiceTime(1, 0), 1), (90, ServiceTime(0, 0.01), 4)],
)
def test_work_conserving_service_is_what_a_simulation_shows(rate: float, service: ServiceTime, limit: int) -> None:
    found = Bulk(service, rate, limit)
    mean_batch, responses = simulate(rate, service, limit, np.random.default_rng(3))
    assert found.mean_batch == pytest.approx(mean_batch, rel=0.01)
    assert found.response_s == pytest.approx(responses.mean(), rel=0.05)
    assert found.response_quantile(0.99) == pytest.approx(np.quantile(responses, 0.99), rel=0.08)
    assert found.response_quantile(0.5) == pytest.approx(np.quantile(responses, 0.5), rel=0.05)


def test_one_at_a_time_with_constant_service_is_m_d_1() -> None:
    for load in (0.1, 0.462, 0.5, 0.68, 0.9, 0.99, 0.9995):
        for seconds in (1.0, 0.0172, 0.0334):
            exact = queues.mdc_wait(load / seconds, seconds, 1)
            assert Bulk(ServiceTime(seconds, 0), load / seconds, 1).wait_s == pytest.approx(exact, rel=1e-6)


def test_a_larger_limit_is_never_slower_when_nobody_waits_for_a_batch() -> None:
    for rate, service in ((100, DECODE), (700, ServiceTime(0.02, 0.001)), (30, ServiceTime(0.2, 0.01))):
        first = min_stable_batch(service, rate)
        assert first is not None
        responses = [Bulk(service, rate, limit).response_s for limit in range(first, first + 16)]
        assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(responses))


def test_a_waiting_room_bounds_delay_and_loses_the_rest() -> None:
    small, large = Bulk(DECODE, 100, 4, room=8), Bulk(DECODE, 100, 4, room=128)
    assert (small.loss, small.response_s) == pytest.approx((0.23763375, 0.12445791), rel=1e-6)
    # A longer queue serves no more and waits 13 ms per place.
    assert large.loss == pytest.approx(1 - 1 / 1.3, rel=1e-3)
    assert large.response_s - Bulk(DECODE, 100, 4, room=64).response_s == pytest.approx(64 * 0.013, rel=1e-6)
    assert Bulk(DECODE, 100, 8, room=200).response_s == pytest.approx(Bulk(DECODE, 100, 8).response_s, rel=1e-6)


def test_a_window_closes_when_full_or_late() -> None:
    found = window(100, 8, 0.1)
    assert found.mean_batch == pytest.approx(7.759869682612938, rel=1e-6)
    assert found.fill_s * 1e3 == pytest.approx(62.751067872731475, rel=1e-6)
    assert found.accumulation_s * 1e3 == pytest.approx(34.136571013920914, rel=1e-6)
    assert found.sizes.sum() == pytest.approx(1)
    assert window(100, 8, math.inf).accumulation_s == pytest.approx(0.035)
    assert window(100, 1, 0.02).accumulation_s == 0
    assert window(100, 64, 0).mean_batch == 1


def test_a_short_wait_upsets_a_large_limit() -> None:
    assert not ClosedWindow(DECODE, 100, 8, 0.02).stable
    assert ClosedWindow(DECODE, 100, 8, 0.05).stable
    assert min_wait(DECODE, 100, 8) == pytest.approx(0.044012606373462134, rel=1e-6)
    assert min_wait(DECODE, 100, 7, 0.75) is None
    assert min_wait(ServiceTime(0.001, 0.0001), 100, 8) == 0


def test_the_queue_of_windows_is_what_a_simulation_shows() -> None:
    for limit, wait, mean, p99 in ((8, 0.05, 88.1, 144.3), (16, 0.05, 83.3, 107.4), (32, 0.2, 165.5, 262.5)):
        found = ClosedWindow(DECODE, 100, limit, wait)
        assert found.response_s * 1e3 == pytest.approx(mean, rel=3e-3)
        assert found.response_quantile(0.99) * 1e3 == pytest.approx(p99, rel=0.01)


def test_the_best_batch_is_searched_among_all_integers() -> None:
    assert best_batch(Load(100, DECODE, "surrogate"), 512) == 10
    assert best_batch(Load(100, DECODE, "fixed"), 512) == 7
    greedy = Load(100, DECODE)
    best = best_batch(greedy, 512)
    least = greedy.queue(512).response_s
    assert best is not None
    assert greedy.queue(best).response_s <= least * 1.001 < greedy.queue(best - 1).response_s
    assert best_batch(Load(2000, DECODE), 512) is None
    assert best_batch(greedy, 5) is None
    assert minimums(greedy, 7, 0.75) == (6, None)


def test_the_largest_batch_within_an_objective() -> None:
    fixed = Load(100, DECODE, "fixed")
    assert max_batch_slo(fixed, 512, 0.2) == 10
    assert max_batch_slo(fixed, 9, 0.2) == 9
    assert max_batch_slo(fixed, 512, 0.1) is None
    # The exponential rule on the surrogate refuses every batch.
    assert max_batch_slo(Load(100, DECODE, "surrogate"), 512, 0.2) is None
    assert max_batch_slo(Load(100, DECODE), 512, 0.11) == 512
    assert max_batch_slo(Load(100, DECODE), 512, 0.1) is None


def test_the_pareto_set_leaves_out_what_is_worse_in_both() -> None:
    points = [Tradeoff(6, 113, 0.105), Tradeoff(7, 131, 0.091), Tradeoff(8, 148, 0.092), Tradeoff(32, 485, 0.221)]
    kept = pareto(points)
    assert [point.batch for point in kept] == [7, 8, 32]
    bend = knee(kept)
    assert bend is not None
    assert bend.batch == 8
    assert knee([]) is None
