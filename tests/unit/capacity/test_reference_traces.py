"""Recorded traffic read and simulated, against figures worked out elsewhere."""

import os
from pathlib import Path

import orjson
import pytest

from capacity.arrivals import burstiness
from capacity.scheduler import Scheduler
from capacity.simulate import run
from capacity.step_model import StepModel
from capacity.traces import read_trace
from capacity.workload import Replay

DATA = os.environ.get("FOREBAY_DATA")
pytestmark = pytest.mark.skipif(DATA is None, reason="FOREBAY_DATA names no folder of reference data")


def test_the_azure_trace_has_its_published_statistics() -> None:
    folder = Path(DATA or "")
    requests = read_trace(folder / "traces" / "azure_conv_2023.csv").requests
    expected = orjson.loads((folder / "capacity" / "trace_stats.json").read_bytes())["azure_conv_2023"]
    assert len(requests) == expected["n"]
    assert requests.prompt.sum() == expected["sum_in"]
    assert requests.output.sum() == expected["sum_out"]
    found = burstiness(requests.arrived)
    assert found.rate == pytest.approx(expected["rate"], rel=1e-3)
    assert found.gap_cv == pytest.approx(expected["iat_cv"], rel=1e-3)
    for window in (1, 10, 60):
        assert found.dispersion[window] == pytest.approx(expected[f"IDC_{window}s"], rel=0.02)
    assert not found.poisson


@pytest.mark.parametrize(("batch", "servers"), [(8, 1), (8, 2), (16, 1), (16, 2)])
def test_a_trace_waits_longer_than_poisson_arrivals_of_its_rate(batch: int, servers: int) -> None:
    folder = Path(DATA or "")
    requests = read_trace(folder / "traces" / "azure_conv_2023.csv").requests
    expected = orjson.loads((folder / "capacity" / "expected_public.json").read_bytes())["trace_driven_greedy_gpt3_ms"]
    named = expected[f"azure_conv rescaled to 100/s greedy B={batch} c={servers}"]
    replay = Replay(requests, 100 / burstiness(requests.arrived).rate)
    scheduler = Scheduler("work-conserving", max_num_seqs=batch, replicas=servers)
    result = run(replay, scheduler, StepModel.of_batch(0.05, 0.0005), 0)
    assert result.mean("e2e").value * 1000 == pytest.approx(named["mean"], rel=0.005)
    assert result.percentile("e2e", 99).value * 1000 == pytest.approx(named["p99"], rel=0.02)


def test_shared_prefixes_of_a_trace_are_found_again() -> None:
    requests = read_trace(Path(DATA or "") / "traces" / "mooncake_conversation_first20min.csv").requests
    assert requests.prefix is not None
    model = StepModel.of_batch(0.02, 0.0001)
    shared, alone = (
        run(Replay(requests), Scheduler("chunked", prefix_cache=on, replicas=8), model, 0) for on in (True, False)
    )
    assert shared.totals.prefilled_tokens + int(shared.records["cached"].sum()) == alone.totals.prefilled_tokens
    assert shared.records["cached"].sum() > 0.05 * requests.prompt.sum()
