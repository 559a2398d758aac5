"""What the benches of the simulator read and know beforehand."""

from pathlib import Path

import pytest

from bench.capacity_reality import arguments, closed_sweeps, open_sweeps, scheduler_of
from bench.capacity_theory import Cell, line, simulate

OPEN = (
    "config,model,image,gpu,args,stage,n,requested_rate,req_s,prompt_mean,output_mean,ttft_mean,e2e_mean,e2e_p99\n"
    "a,m,i,nvidia-h100-80gb,--max-num-seqs=64 --no-enable-chunked-prefill,0,60,1,0.99,200,60,30,480,500\n"
    "a,m,i,nvidia-h100-80gb,--max-num-seqs=64 --no-enable-chunked-prefill,1,600,10,9.9,200,60,35,500,550\n"
    "b,m,i,nvidia-l4,--max-model-len 512,0,60,1,0.99,200,60,30,480,500\n"
)
CLOSED = (
    "concurrency,ttft_ms,itl_ms,out_tok_s,model,gpu,precision,tp,isl,osl\n"
    "1.0,400,18.5,51.5,m,2xH100,fp8,2,5000,500\n50.0,830,59.7,814,m,2xH100,fp8,2,5000,500\n"
)


def test_engine_arguments_give_the_scheduler_and_the_rest_is_vllms_default() -> None:
    settings = arguments("--model=$(MODEL) --max-num-seqs=192 --no-enable-chunked-prefill", "nvidia-h100-80gb")
    assert settings == {
        "max_num_seqs": 192,
        "max_num_batched_tokens": 8192,
        "enable_chunked_prefill": False,
        "enable_prefix_caching": True,
    }
    assert scheduler_of(settings).kind == "continuous"
    spaced = scheduler_of(arguments("--max-num-batched-tokens 512 --max-num-seqs 32", "nvidia-l4"))
    assert (spaced.kind, spaced.token_budget, spaced.max_num_seqs) == ("chunked", 512, 32)


def test_a_file_is_parted_by_configuration(tmp_path: Path) -> None:
    path = tmp_path / "infperf_openloop_x.csv"
    path.write_text(OPEN)
    one, other = open_sweeps(path)
    assert [point.rate for point in one.points] == [1, 10]
    assert one.points[1].measured == {"req_s": 9.9, "ttft_mean": 0.035, "e2e_mean": 0.5, "e2e_p99": 0.55}
    assert one.engine["max_num_seqs"] == 64
    assert other.schedulers[0].kind == "chunked"
    closed = tmp_path / "nim_closedloop_x.csv"
    closed.write_text(CLOSED)
    (sweep,) = closed_sweeps(closed)
    assert [point.concurrency for point in sweep.points] == [1, 50]
    assert sweep.points[1].measured["tok_s"] == 814


@pytest.mark.parametrize(
    ("cell", "exact"),
    [
        (Cell("M/M/1", 0.5, exponential=True), 2.0),
        (Cell("M/D/1", 0.5), 1.5),
        (Cell("M/M/2", 0.8, 2, exponential=True), 1 + 1.7777777777777786),
        (Cell("M/M/1/5", 0.8, exponential=True, room=5), 2.563065207044265),
        (Cell("E_8/D/1", 0.675, stages=8), 1 + 2.7226098351169497 / 54),
    ],
)
def test_exact_responses_are_the_textbooks(cell: Cell, exact: float) -> None:
    assert cell.exact() == pytest.approx(exact, rel=1e-6)


def test_a_cell_reports_what_it_misses() -> None:
    cell = Cell("M/D/1", 0.5)
    runs = [simulate(cell, seed) for seed in range(6)]
    assert all(one.balanced for one in runs)
    assert line(cell, runs)["error"] == pytest.approx(0, abs=0.01)
    far = Cell("M/D/1", 0.6)
    assert "mean" in line(far, runs)["missed"]  # type: ignore[operator]
