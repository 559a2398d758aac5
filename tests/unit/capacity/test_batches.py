"""Batch servers against the same rules written as recursions."""

import numpy as np
import pytest
from numpy.typing import NDArray

from capacity.arrivals import Poisson
from capacity.scheduler import Scheduler
from capacity.simulate import Slo, run
from capacity.step_model import DecodeCost, PrefillCost, StepModel
from capacity.workload import Clients, Group, Replay, Requests, Spread, Synthetic, plain
from core.errors import ConfigError

TEXTBOOK = StepModel.of_batch(0.05, 0.0005)
Times = NDArray[np.float64]


def poisson(rate: float, count: int, seed: int = 0) -> Requests:
    return Synthetic(Poisson(rate), count, [Group("all", 1, Spread(1, 1))]).draw(seed)


def at(times: list[float], outputs: list[int] | None = None) -> Requests:
    tokens = np.array(outputs or [1] * len(times), dtype=np.int32)
    return plain(np.array(times), np.full(len(times), 10, dtype=np.int32), tokens)


def finishes(requests: Requests, scheduler: Scheduler, model: StepModel = TEXTBOOK) -> Times:
    result = run(Replay(requests), scheduler, model, 0)
    assert result.littles_law_ratio == pytest.approx(1, abs=1e-9)
    assert sum(result.counts().values()) == len(requests)
    finished: Times = result.records["finished"]
    return finished


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 4, 8])
def test_a_work_conserving_server_takes_who_is_there(servers: int, size: int) -> None:
    requests = poisson(60.0 * servers, 3000)
    arrived, expected = requests.arrived, np.empty(3000)
    free, i = np.zeros(servers), 0
    while i < 3000:
        start = max(arrived[i], free.min())
        count = min(size, int(np.searchsorted(arrived, start, side="right")) - i)
        end = start + 0.05 + 0.0005 * count
        expected[i : i + count] = end
        free[free.argmin()] = end
        i += count
    found = finishes(requests, Scheduler("work-conserving", max_num_seqs=size, replicas=servers))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("servers", [1, 2])
def test_fixed_batches_wait_for_their_last_and_the_rest_is_served_at_the_end(servers: int) -> None:
    requests = poisson(100.0 * servers, 1003)
    free, expected = np.zeros(servers), np.empty(1003)
    for first in range(0, 1003, 8):
        last = min(first + 8, 1003)
        start = max(requests.arrived[last - 1], free.min())
        expected[first:last] = free[free.argmin()] = start + 0.05 + 0.0005 * (last - first)
    found = finishes(requests, Scheduler("fixed", max_num_seqs=8, replicas=servers))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_window_closes_when_it_is_full_or_its_time_is_over() -> None:
    times = [0.0, 0.01, 0.02, 0.2, 0.29, 0.301, 0.35]
    scheduler = Scheduler("window", max_num_seqs=3, max_wait_s=0.1)
    first, second, third = 0.02 + 0.0515, 0.3 + 0.051, 0.401 + 0.051
    expected = [first] * 3 + [second] * 2 + [third] * 2
    np.testing.assert_allclose(finishes(at(times), scheduler), expected)


def test_a_window_that_holds_fills_until_the_server_is_free_and_one_that_closes_does_not() -> None:
    times = [0.0, 0.02, 0.045]
    close = finishes(at(times), Scheduler("window", max_num_seqs=8, max_wait_s=0.01))
    hold = finishes(at(times), Scheduler("window", max_num_seqs=8, max_wait_s=0.01, window="hold"))
    np.testing.assert_allclose(close, [0.0605, 0.111, 0.1615])
    np.testing.assert_allclose(hold, [0.0605, 0.1115, 0.1115])


def test_a_full_waiting_room_refuses_and_an_idle_server_needs_none() -> None:
    times = [0.0, 0.01, 0.02, 0.03, 0.2]
    scheduler = Scheduler("work-conserving", max_num_seqs=1, max_waiting=2)
    result = run(Replay(at(times)), scheduler, TEXTBOOK, 0)
    assert result.counts() == {"done": 4, "rejected": 1, "timed_out": 0, "too_long": 0}
    assert result.records["outcome"][3] != result.records["outcome"][0]
    empty = Scheduler("work-conserving", max_num_seqs=1, max_waiting=0)
    assert run(Replay(at([0.0, 0.01, 0.2])), empty, TEXTBOOK, 0).counts()["done"] == 2


def test_three_answers_of_10_40_and_100_tokens_waste_half_of_a_static_batch() -> None:
    model = StepModel(DecodeCost(0.01, 0.0), PrefillCost(0.01, 0.0))
    result = run(Replay(at([0.0, 0.0, 0.0], [10, 40, 100])), Scheduler("static", max_num_seqs=8), model, 0)
    assert result.document(Slo())["slot_utilization"] == 0.5
    np.testing.assert_allclose(result.values("e2e"), 1.0)
    np.testing.assert_allclose(result.values("ttft"), 0.01)
    free = run(Replay(at([0.0, 0.0, 0.0], [10, 40, 100])), Scheduler("continuous", max_num_seqs=8), model, 0)
    np.testing.assert_allclose(free.values("e2e"), [0.1, 0.4, 1.0])


def test_a_static_batch_keeps_room_for_all_its_sequences_to_its_end() -> None:
    model = StepModel(DecodeCost(0.01, 0.0), PrefillCost(0.01, 0.0))
    requests = at([0.0] * 4, [22] * 4)
    # 10 + 22 tokens are two blocks of 16; with their rounding, four blocks hold one and eight hold two.
    assert len(set(finishes(requests, Scheduler("static", kv_blocks=4), model))) == 4
    assert len(set(finishes(requests, Scheduler("static", kv_blocks=8), model))) == 2
    assert len(set(finishes(requests, Scheduler("static"), model))) == 1


def test_dispatch_chooses_whose_queue_grows() -> None:
    times = [0.0, 0.001, 0.002, 0.003]
    turns = run(Replay(at(times)), Scheduler("work-conserving", 1, replicas=2, dispatch="round-robin"), TEXTBOOK, 0)
    assert turns.records["replica"].tolist() == [0, 1, 0, 1]
    fewest = Scheduler("work-conserving", 4, replicas=2, dispatch="least-outstanding")
    assert run(Replay(at(times)), fewest, TEXTBOOK, 0).records["replica"].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("kind", ["work-conserving", "fixed", "static", "continuous", "chunked"])
def test_a_closed_loop_never_has_more_in_flight_than_clients(kind: str) -> None:
    requests = Requests(**{**vars(at([0.0] * 200, [5] * 200)), "clients": Clients(7, think_s=0.002)})
    result = run(Replay(requests), Scheduler(kind, max_num_seqs=4), TEXTBOOK, 0)  # type: ignore[arg-type]
    assert result.counts()["done"] == 200
    assert result.littles_law_ratio == pytest.approx(1, abs=1e-9)
    arrived, finished = result.records["arrived"], result.records["finished"]
    in_flight = [int(((arrived <= now) & (finished > now)).sum()) for now in arrived]
    assert max(in_flight) == 7


def test_a_window_without_its_time_and_a_shared_engine_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_wait"):
        Scheduler("window")
    with pytest.raises(ConfigError, match="dispatch"):
        Scheduler("continuous", dispatch="shared")
    with pytest.raises(ConfigError, match="queue_timeout"):
        Scheduler("static", queue_timeout_s=1.0)
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        Scheduler("chunked", max_num_seqs=300, max_num_batched_tokens=256)
