"""The fast engine and the plain one agree on every request."""

import numpy as np
import pytest

from capacity.scheduler import Scheduler
from capacity.simulate import run
from capacity.simulate.result import OUTCOMES
from capacity.step_model import DecodeCost, PrefillCost, StepModel
from capacity.workload import PrefixBlocks, Replay, Requests
from tests.unit.capacity.plain_engine import PlainEngine

MODEL = StepModel(DecodeCost(0.01, 0.0007, 1e-6), PrefillCost(0.013, 2e-5, 1e-8, 0.0003, 50, 0.004))
PREFIX = 32


def load(seed: int, *, rate: float = 40.0, count: int = 150, priorities: int = 1, prefix: bool = False) -> Requests:
    rng = np.random.default_rng(seed)
    prompt = rng.integers(1, 300, count).astype(np.int32)
    blocks = None
    if prefix:
        lengths = np.minimum(prompt // PREFIX + rng.integers(0, 2, count), 6)
        # Few distinct beginnings, so that prefixes meet again.
        ids = [rng.integers(0, 3) * 40 + np.arange(n) + 7 * (rng.integers(0, 2) if n > 2 else 0) for n in lengths]
        flat = np.concatenate(ids).astype(np.int32)
        blocks = PrefixBlocks(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), flat, PREFIX, 200)
    return Requests(
        np.cumsum(rng.exponential(1 / rate, count)),
        prompt,
        rng.integers(1, 60, count).astype(np.int32),
        np.zeros(count, dtype=np.int16),
        rng.integers(0, priorities, count).astype(np.int8),
        prefix=blocks,
    )


CASES = {
    "free": (Scheduler("continuous", max_num_seqs=16), {}),
    "idle gaps": (Scheduler("continuous", max_num_seqs=16), {"rate": 1.0}),
    "small budget": (Scheduler("continuous", max_num_seqs=8, max_num_batched_tokens=200), {}),
    "chunked": (Scheduler("chunked", max_num_seqs=16, max_num_batched_tokens=64), {}),
    "priorities": (Scheduler("chunked", max_num_seqs=4, max_num_batched_tokens=128), {"priorities": 3}),
    "refusing": (Scheduler("continuous", max_num_seqs=4, max_waiting=5), {"rate": 200.0}),
    "tight memory": (Scheduler("continuous", max_num_seqs=16, kv_blocks=40), {}),
    "tight memory, chunked": (
        Scheduler("chunked", max_num_seqs=16, max_num_batched_tokens=64, kv_blocks=45),
        {"priorities": 2},
    ),
    "blocks of one": (Scheduler("continuous", max_num_seqs=16, kv_blocks=700, block_size=1), {}),
    "prefix cache": (Scheduler("continuous", max_num_seqs=16, prefix_cache=True), {"prefix": True}),
    "prefix cache, tight": (
        Scheduler("chunked", max_num_seqs=16, max_num_batched_tokens=96, kv_blocks=60, prefix_cache=True),
        {"prefix": True},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_request_is_treated_as_the_plain_engine_treats_it(name: str) -> None:
    scheduler, shape = CASES[name]
    preempted = 0
    for seed in range(4):
        requests = load(seed, **shape)
        plain = PlainEngine(scheduler, MODEL, PREFIX if requests.prefix is not None else 0)
        expected = plain.run(requests)
        result = run(Replay(requests), scheduler, MODEL, 0)
        records = result.records
        assert [OUTCOMES[code] for code in records["outcome"]] == [one.outcome for one in expected]
        done = result.done
        for mine, theirs in (("started", "started"), ("first", "first"), ("finished", "finished")):
            values = np.array([getattr(one, theirs) for one in expected])
            np.testing.assert_allclose(records[mine][done], values[done], rtol=1e-9, err_msg=f"{name} {mine}")
        assert records["preempted"].tolist() == [one.preempted for one in expected]
        assert result.littles_law_ratio == pytest.approx(1, abs=1e-9)
        preempted += result.totals.preemptions
    assert (preempted > 0) is ("tight" in name or "blocks" in name)
