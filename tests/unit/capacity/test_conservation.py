"""Whatever the scheduler and its bounds: nothing gets lost, nothing happens before its time, no limit is passed."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.scheduler import Scheduler
from capacity.simulate import run
from capacity.simulate.world import DONE, TIMED_OUT
from capacity.step_model import DecodeCost, PrefillCost, StepModel
from capacity.workload import Clients, PrefixBlocks, Replay, Requests

MODEL = StepModel(DecodeCost(0.01, 0.0004, 1e-6), PrefillCost(0.012, 3e-5, 1e-9, 0.0002, 40, 0.003))
BLOCK = 32


@st.composite
def loads(draw: st.DrawFn) -> Requests:
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    count = draw(st.integers(1, 80))
    prompt = rng.integers(1, draw(st.sampled_from((4, 400))), count).astype(np.int32)
    lengths = np.minimum(prompt // BLOCK, 5)
    ids = np.concatenate([rng.integers(0, 3) * 10 + np.arange(n) for n in lengths]).astype(np.int32)
    clients = draw(st.sampled_from((None, Clients(1), Clients(6, 0.01))))
    return Requests(
        np.sort(rng.random(count)) * draw(st.sampled_from((0.0, 1.0, 60.0))),
        prompt,
        rng.integers(1, draw(st.sampled_from((2, 70))), count).astype(np.int32),
        np.zeros(count, dtype=np.int16),
        rng.integers(0, 3, count).astype(np.int8),
        prefix=PrefixBlocks(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), ids, BLOCK, 40),
        clients=clients,
    )


@st.composite
def schedulers(draw: st.DrawFn) -> Scheduler:
    kind = draw(st.sampled_from(("static", "fixed", "window", "work-conserving", "continuous", "chunked")))
    engine = kind in ("continuous", "chunked")
    slots = draw(st.integers(1, 12))
    return Scheduler(
        kind,
        max_num_seqs=slots,
        max_num_batched_tokens=draw(st.sampled_from((slots, slots + 60, None))),
        kv_blocks=draw(st.sampled_from((None, 20, 60))),
        prefix_cache=engine and draw(st.booleans()),
        max_wait_s=0.05,
        window=draw(st.sampled_from(("close", "hold"))),
        replicas=draw(st.integers(1, 3)),
        dispatch=draw(st.sampled_from(("round-robin", "least-outstanding", None))),
        max_waiting=draw(st.sampled_from((None, 0, 3))),
        queue_timeout_s=draw(st.sampled_from((None, 0.0, 0.2))) if engine else None,
    )


@settings(max_examples=250)
@given(loads(), schedulers())
def test_every_request_has_one_end_and_every_limit_holds(requests: Requests, scheduler: Scheduler) -> None:
    result = run(Replay(requests), scheduler, MODEL, 0, log_steps=20_000)
    records, done = result.records, result.done
    assert sum(result.counts().values()) == len(requests)
    ratio = result.littles_law_ratio
    assert ratio is None or abs(ratio - 1) < 1e-9
    assert (records["arrived"] >= requests.arrived).all()
    assert (records["started"][done] >= records["arrived"][done]).all()
    assert (records["first"][done] > records["started"][done]).all()
    assert (records["finished"][done] >= records["first"][done]).all()
    assert (result.log["decoding"] <= scheduler.max_num_seqs).all()
    assert scheduler.kv_blocks is None or result.totals.peak_kv_blocks <= scheduler.kv_blocks
    late = records["outcome"] == TIMED_OUT
    assert (records["started"][late] < 0).all()
    if scheduler.queue_timeout_s is not None:
        waits = records["started"][done] - records["arrived"][done]
        assert (waits <= scheduler.queue_timeout_s + 1e-9).all()
    if requests.clients is not None:
        stays = np.isin(records["outcome"], (DONE, TIMED_OUT))
        starts, ends = records["arrived"][stays], records["finished"][stays]
        crowd = [int(((starts <= now) & (ends > now)).sum()) for now in starts]
        assert max(crowd, default=0) <= requests.clients.in_flight


@settings(max_examples=40)
@given(loads(), schedulers())
def test_steps_that_are_kept_for_a_picture_change_nothing(requests: Requests, scheduler: Scheduler) -> None:
    plain = run(Replay(requests), scheduler, MODEL, 0)
    kept = run(Replay(requests), scheduler, MODEL, 0, log_steps=20_000)
    for name in ("outcome", "replica", "preempted"):
        assert (plain.records[name] == kept.records[name]).all()
    np.testing.assert_allclose(plain.records["finished"], kept.records["finished"], rtol=1e-9)
    assert plain.totals.steps == kept.totals.steps
    assert replace(kept, log=plain.log).counts() == plain.counts()
