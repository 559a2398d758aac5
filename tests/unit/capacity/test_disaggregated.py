from dataclasses import replace

import numpy as np
import pytest

from capacity.scheduler import Scheduler, Transfer
from capacity.simulate import run
from capacity.step_model import DecodeCost, PrefillCost, StepModel
from capacity.workload import Clients, Replay, Requests, plain
from core.errors import ConfigError
from tests.unit.capacity.plain_engine import PlainEngine

MODEL = StepModel(DecodeCost(0.01, 0.0005, 1e-6), PrefillCost(0.02, 5e-5, 1e-8))


def load(seed: int, rate: float) -> Requests:
    rng = np.random.default_rng(seed)
    lengths = [rng.integers(1, most, 120).astype(np.int32) for most in (300, 60)]
    return plain(np.cumsum(rng.exponential(1 / rate, 120)), *lengths)


def test_the_first_token_waits_for_prefill_hand_over_and_a_decode_step() -> None:
    one = plain(np.zeros(1), np.full(1, 100, dtype=np.int32), np.full(1, 3, dtype=np.int32))
    scheduler = Scheduler("disaggregated", transfer=Transfer(0.005, 1e-5))
    result = run(Replay(one), scheduler, MODEL, 0)
    handed = MODEL.prefill_s(100) + 0.005 + 1e-5 * 100
    assert result.values("ttft")[0] == pytest.approx(handed + MODEL.decode_s(1, 100))
    rest = MODEL.decode_s(1, 101) + MODEL.decode_s(1, 102)
    assert result.values("e2e")[0] == pytest.approx(handed + MODEL.decode_s(1, 100) + rest)


@pytest.mark.parametrize("blocks", [None, 45])
def test_both_sides_are_the_plain_engine_one_after_the_other(blocks: int | None) -> None:
    scheduler = Scheduler("disaggregated", max_num_seqs=16, kv_blocks=blocks, transfer=Transfer(0.003, 1e-6))
    preempted = 0
    for seed in range(4):
        requests = load(seed, 40.0)
        side = replace(scheduler, kind="continuous")
        prompts = PlainEngine(side, MODEL).run(replace(requests, output=np.ones_like(requests.output)))
        handed = np.array([one.finished for one in prompts]) + 0.003 + 1e-6 * requests.prompt
        order = np.argsort(handed, kind="stable")
        answers = PlainEngine(side, MODEL, given=True).run(replace(requests.take(order), arrived=handed[order]))
        result = run(Replay(requests), scheduler, MODEL, 0)
        np.testing.assert_allclose(result.records["finished"][order], [one.finished for one in answers], rtol=1e-9)
        np.testing.assert_allclose(result.records["first"][order], [one.first for one in answers], rtol=1e-9)
        assert result.littles_law_ratio == pytest.approx(1, abs=1e-9)
        preempted += result.totals.preemptions
    assert (preempted > 0) is (blocks is not None)


def test_more_prefill_replicas_shorten_the_wait_for_the_first_token() -> None:
    requests = load(1, 60.0)
    one, two = (
        run(Replay(requests), Scheduler("disaggregated", prefill_replicas=count), MODEL, 0).mean("ttft").value
        for count in (1, 2)
    )
    assert two < one


def test_a_closed_loop_of_it_is_refused() -> None:
    closed = replace(load(1, 60.0), clients=Clients(4))
    with pytest.raises(ConfigError, match="closed loop"):
        run(Replay(closed), Scheduler("disaggregated"), MODEL, 0)
