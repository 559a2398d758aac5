"""What is said of a run is what its event log holds: hand-made logs, with figures computed by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load.exchange import Exchange
from bench.load.measures import Aims, Run, document
from bench.load.records import together
from tests.unit.bench.load.logs import exchange, recorded, run_of, wanted


def said(run: Run, aims: Aims | None = None) -> dict[str, Any]:
    return document(run, aims or Aims(), {})


def test_ttft_tpot_itl_and_e2e_are_those_of_the_log() -> None:
    run = run_of([exchange(0, 1.0, [1.5, 1.7, 2.1], usage=3)])
    found = said(run)
    assert found["ttft"]["p50"] == pytest.approx(0.5)
    assert found["e2e"]["p50"] == pytest.approx(1.1)
    assert found["tpot"]["p50"] == pytest.approx((1.1 - 0.5) / 2)
    assert run.values("itl") == pytest.approx([0.2, 0.4])


def test_tpot_counts_the_servers_tokens_where_a_chunk_holds_several() -> None:
    found = said(run_of([exchange(0, 0.0, [1.0, 2.0, 3.0], usage=9)]))
    assert found["tpot"]["mean"] == pytest.approx(2.0 / 8)
    assert found["itl"]["mean"] == pytest.approx(1.0)
    assert found["tokens"]["source"] == "usage"
    assert found["tokens"]["tokens_per_chunk"] == pytest.approx(3.0)


def test_without_usage_chunks_are_the_tokens_and_that_is_said() -> None:
    found = said(run_of([exchange(0, 0.0, [1.0, 2.0, 3.0])]))
    assert (found["tokens"]["source"], found["tokens"]["without_usage"]) == ("chunks", 1)
    assert found["throughput_tok_s"] == pytest.approx(1.0)


def test_an_answer_of_one_token_has_no_tpot_and_misses_no_target_for_it() -> None:
    found = said(run_of([exchange(0, 0.0, [0.2], usage=1)]), Aims(ttft_s=0.3, tpot_s=0.001))
    assert found["tpot"]["p50"] is None
    assert found["goodput"] == 1.0


def test_goodput_is_the_share_of_all_requests_failed_ones_included() -> None:
    seen = [
        exchange(0, 0.0, [0.1, 0.2], usage=2),
        exchange(1, 1.0, [1.6, 1.7], usage=2),
        exchange(2, 2.0, [2.1, 2.9], usage=2),
        exchange(3, 3.0, [], error="http_503"),
    ]
    found = said(run_of(seen), Aims(ttft_s=0.5, tpot_s=0.5))
    assert found["goodput"] == pytest.approx(1 / 4)
    assert found["goodput_rps"] == pytest.approx(1 / 2.9)
    assert found["errors"] == 1
    assert found["outcomes"] == {"done": 3, "http_503": 1}


def test_times_run_from_when_the_request_went_out_and_its_lateness_is_told_apart() -> None:
    found = said(run_of([exchange(0, 0.0, [0.6], usage=1, late=0.1), exchange(1, 1.0, [1.5], usage=1)]))
    assert found["ttft"]["mean"] == pytest.approx(0.5)
    assert found["lateness"]["max_s"] == pytest.approx(0.1)


def test_who_waits_for_a_place_in_flight_waits_for_the_endpoint() -> None:
    from dataclasses import replace

    seen = [exchange(0, 0.0, [0.6], usage=1, late=0.1)]
    run = Run(recorded(seen), replace(wanted(1), bounded=True))
    assert run.values("ttft") == pytest.approx([0.6])
    assert said(run)["lateness"]["max_s"] == 0.0


@pytest.mark.parametrize(("late", "valid"), [(0, True), (1, True), (2, False)])
def test_a_run_is_void_when_over_one_percent_went_out_late(late: int, valid: bool) -> None:
    seen = [exchange(n, n / 10, [n / 10 + 0.5], late=0.02 if n < late else 0.0) for n in range(100)]
    found = said(run_of(seen))
    assert found["valid"] is valid
    assert bool(found["invalid_because"]) is not valid


def test_a_run_is_void_when_the_rate_was_not_sent() -> None:
    # Every request a little later than the one before: none is 10 ms late but the last, all together are 5 % too slow.
    seen = [exchange(n, n * 0.001, [n * 0.001 + 0.5], late=n * 0.00009) for n in range(100)]
    found = said(run_of(seen))
    assert found["lateness"]["late_share"] == 0.0
    assert not found["valid"]


def test_littles_law_holds_where_every_request_is_accounted_for() -> None:
    seen = [exchange(0, 0.0, [1.0, 2.0], usage=2), exchange(1, 0.5, [2.5], usage=1)]
    assert said(run_of(seen, area=4.0))["littles_law_ratio"] == pytest.approx(1.0)


def test_littles_law_shows_a_lost_request() -> None:
    seen = [exchange(0, 0.0, [1.0, 2.0], usage=2), exchange(1, 0.0, [], error="reset")]
    assert said(run_of(seen, area=4.0))["littles_law_ratio"] == pytest.approx(2.0)


def test_classes_are_by_prompt_and_output_length() -> None:
    seen = [exchange(0, 0.0, [1.0, 2.0], usage=2), exchange(1, 0.0, [3.0, 4.0], usage=200)]
    seen[0].prompt_tokens, seen[1].prompt_tokens = 10, 600
    found = {one["name"]: one for one in said(run_of(seen))["classes"]}
    assert set(found) == {"short prompt, short output", "long prompt, long output"}
    assert found["long prompt, long output"]["ttft"]["p50"] == pytest.approx(3.0)
    assert found["short prompt, short output"]["requests"] == 1


def test_parts_by_cache_outcome_and_tier_are_kept_apart() -> None:
    seen = [exchange(0, 0.0, [0.1], usage=1), exchange(1, 0.0, [1.0], usage=1)]
    seen[0].cache, seen[0].tier = "hit-exact", "none"
    seen[1].cache, seen[1].tier = "miss", "small"
    found = said(run_of(seen))
    assert found["cache"] == {"exact": 1, "semantic": 0, "miss": 1, "bypass": 0}
    assert {one["name"]: one["ttft"]["p50"] for one in found["by_cache"]} == pytest.approx({"exact": 0.1, "miss": 1.0})
    assert [one["name"] for one in found["by_tier"]] == ["none", "small"]


def test_a_rate_has_an_interval_around_it() -> None:
    seen = [exchange(n, n / 10, [n / 10 + 0.05, n / 10 + 0.1], usage=2) for n in range(200)]
    found = said(run_of(seen))
    low, high = found["throughput_rps_ci95"]
    assert low <= found["throughput_rps"] <= high
    assert found["throughput_tok_s_ci95"] == pytest.approx([2 * low, 2 * high])
    assert said(run_of(seen[:20]))["throughput_rps_ci95"] is None


def test_everything_failing_is_still_a_document() -> None:
    found = said(run_of([exchange(0, 0.0, [], error="connect")]), Aims(ttft_s=1.0))
    assert (found["success"], found["goodput"], found["ttft"]["p50"]) == (0.0, 0.0, None)


def test_processes_together_are_one_run_in_the_order_of_being_due() -> None:
    odd = [exchange(n, n * 1.0, [n + 0.5, n + 0.6], usage=2) for n in (1, 3)]
    even = [exchange(n, n * 1.0, [n + 0.25], usage=1) for n in (0, 2)]
    both = together([recorded(odd, 1.2), recorded(even, 0.5)])
    run = Run(both, wanted(4))
    assert both.requests["index"].tolist() == [0, 1, 2, 3]
    assert run.values("ttft") == pytest.approx([0.25, 0.5, 0.25, 0.5])
    assert run.values("itl") == pytest.approx([0.1, 0.1])
    assert both.area == pytest.approx(1.7)


@st.composite
def logs(draw: st.DrawFn) -> list[Exchange]:
    made, due = [], 0.0
    for index in range(draw(st.integers(1, 30))):
        due += draw(st.floats(0, 2))
        if draw(st.booleans()) or index == 0:
            gaps = draw(st.lists(st.floats(0.001, 3), min_size=1, max_size=6))
            made.append(exchange(index, due, (due + np.cumsum(gaps)).tolist(), usage=len(gaps)))
        else:
            made.append(exchange(index, due, [], error="reset"))
    return made


@given(logs())
def test_figures_are_those_of_numpy_over_the_log(seen: list[Exchange]) -> None:
    found = said(run_of(seen), Aims(ttft_s=1.0))
    done = [one for one in seen if not one.error]
    ttft = [one.first - one.due for one in done]
    tpot = [(one.last - one.first) / (one.output_tokens - 1) for one in done if one.output_tokens > 1]
    for key, percent in (("p50", 50), ("p90", 90), ("p99", 99)):
        assert found["ttft"][key] == pytest.approx(np.percentile(ttft, percent), abs=1e-9)
        if tpot:
            assert found["tpot"][key] == pytest.approx(np.percentile(tpot, percent), abs=1e-9)
    assert found["goodput"] == pytest.approx(sum(value <= 1.0 for value in ttft) / len(seen))
    assert found["outcomes"]["done"] + found["errors"] == found["requests"] == len(seen)
    assert sum(one["requests"] for one in found["classes"]) == len(seen)
