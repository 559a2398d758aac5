"""The README's table, and what it is made of."""

import json
from pathlib import Path

import numpy as np
import pytest

from bench.foretold import Round, cut, summary
from bench.live import COMPARISONS, document, lengths, page, rows
from bench.load_accuracy import Figure
from bench.load_peers import slice_of
from bench.whole import BEGIN, END, between, rewritten, table
from capacity.traces import read_trace
from core.config import validate

ROOT = Path(__file__).resolve().parents[3]


def test_the_table_stands_between_its_marks_and_nothing_else_changes() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    made = rewritten(text, "| new |")
    assert made == f"before\n{BEGIN}\n\n| new |\n\n{END}\nafter\n"
    assert rewritten(made, "| new |") == made


def test_the_readme_has_a_place_for_the_table() -> None:
    assert rewritten((ROOT / "README.md").read_text(encoding="utf-8"), "x")
    with pytest.raises(ValueError, match="no place"):
        rewritten("nothing here", "x")


def test_rows_come_from_the_documents_that_are_there(tmp_path: Path) -> None:
    live = {
        "rounds": 5,
        "rows": rows(
            "batching", ("static", "continuous"), ([{"tok_s": 1.0}] * 5, [{"tok_s": v} for v in (2, 2, 2, 3, 1)])
        ),
    }
    (tmp_path / "live.json").write_text(json.dumps(live))
    foretold = {"load": 0.8, "rows": [{"figure": "ttft", "off": -0.123, "rounds": [-0.123, 0.05, -0.2]}]}
    (tmp_path / "foretold.json").write_text(json.dumps(foretold))
    lines = table(tmp_path).splitlines()
    assert len(lines) == 4
    assert "continuous over static" in lines[2]
    assert "2.00 x" in lines[2]
    assert "-12.3% | -20.0% … +5.0% (all rounds)" in lines[3]


def test_what_was_foretold_is_compared_round_by_round() -> None:
    # A machine that is half as fast in one round is foretold as such: no round is compared with another's simulation.
    found = summary([Round(1.0, {"ttft": 1.0}, {"ttft": 1.1}), Round(0.5, {"ttft": 2.0}, {"ttft": 2.2})], 0.8)
    assert found["missed"] == []
    assert abs(found["rows"][0]["off"] + 1 / 11) < 1e-9
    assert summary([Round(1.0, {"ttft": 1.0}, {"ttft": 2.0})], 0.8)["missed"] == ["ttft"]


def test_static_and_continuous_are_drawn_round_by_round() -> None:
    made = page(rows("batching", ("static", "continuous"), ([{"tok_s": 1.0}] * 3, [{"tok_s": 2.0}] * 3)))
    assert made.count("<polyline") == 2
    assert "continuous over static: 2.00" in made


def test_intervals_are_written_in_full() -> None:
    assert between([1.234, 5.678]) == "1.23 … 5.68"
    assert between([-0.01, 0.02], percent=True) == "-1.0% … +2.0%"
    assert between(None) == "-"


def test_what_is_allowed_is_two_percent_or_a_millisecond() -> None:
    assert Figure(10, "ttft p50", 0.0509, 0.05).off == pytest.approx(0.9)
    assert Figure(10, "e2e p50", 1.03, 1.0).off == pytest.approx(1.5)


@pytest.mark.parametrize("name", list(COMPARISONS))
def test_every_comparison_is_a_configuration(name: str) -> None:
    validate(document(name, "packaged:SmolLM2-135M-Instruct"))


def test_both_sides_of_a_round_have_the_same_lengths() -> None:
    assert lengths(3) == lengths(3) != lengths(4)
    assert min(lengths(3)) >= 1


def test_peers_get_the_requests_that_we_send(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    rows_ = [f"{n * 0.5},{100 * n + 1},{n}" for n in range(1, 11)]
    trace.write_text("\n".join(["arrived_s,prompt_tokens,output_tokens", *rows_]) + "\n")
    made = slice_of(trace, 10, 4.0, tmp_path)
    ours = read_trace(made.csv).requests
    theirs = [json.loads(line) for line in made.jsonl.read_text().splitlines()]
    assert [one["input_length"] for one in theirs] == ours.prompt.tolist()
    assert [one["output_length"] for one in theirs] == ours.output.tolist()
    assert np.allclose([one["timestamp"] for one in theirs], ours.arrived, atol=1e-5)
    assert ours.arrived[-1] == pytest.approx(9 / 4.0)
    ids = [number for one in theirs for number in one["hash_ids"]]
    assert len(ids) == len(set(ids))


def test_a_trace_is_cut_to_what_the_engine_takes(tmp_path: Path) -> None:
    trace, out = tmp_path / "t.csv", tmp_path / "o.csv"
    trace.write_text("arrived_s,prompt_tokens,output_tokens\n0,5000,900\n1,10,1\n2,10,10\n")
    cut(trace, 2, out)
    found = read_trace(out).requests
    assert found.prompt.tolist() == [400, 10]
    assert found.output.tolist() == [60, 2]
