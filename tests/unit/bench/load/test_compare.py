"""Two results held against each other."""

import pytest

from bench.load.compare import BETTER, SAME, UNKNOWN, WORSE, compared, difference, unlike
from bench.load.repeats import interval, merged


def one(p50: float, half: float | None, name: str = "all") -> dict[str, object]:
    ends = None if half is None else {"p50": [p50 - half, p50 + half]}
    return {"name": name, "ttft": {"p50": p50, "ci95": ends}, "requests": 10}


@pytest.mark.parametrize(
    ("b", "half", "verdict"), [(1.5, 0.1, WORSE), (0.5, 0.1, BETTER), (1.1, 0.2, SAME), (9.0, None, UNKNOWN)]
)
def test_a_verdict_needs_an_interval_without_zero(b: float, half: float | None, verdict: str) -> None:
    assert compared(one(1.0, half), one(b, half))[0].verdict == verdict


def test_half_widths_add_as_squares() -> None:
    found = difference("all", "x", (1.0, 2.0), ([0.7, 1.3], [1.6, 2.4]), less=True)
    assert (found.low, found.high) == (pytest.approx(0.5), pytest.approx(1.5))
    assert found.share == pytest.approx(1.0)


def test_more_throughput_is_better() -> None:
    a = {"throughput_rps": 10.0, "throughput_rps_ci95": [9.0, 11.0]}
    b = {"throughput_rps": 20.0, "throughput_rps_ci95": [19.0, 21.0]}
    assert compared(a, b)[0].verdict == BETTER


def test_a_margin_is_no_difference() -> None:
    assert compared(one(1.0, 0.01), one(1.05, 0.01), margin=0.1)[0].verdict == SAME


def test_classes_are_compared_with_their_like() -> None:
    a = one(1.0, 0.1) | {"classes": [one(1.0, 0.1, "short"), one(5.0, 0.1, "long")]}
    b = one(1.0, 0.1) | {"classes": [one(5.0, 0.1, "long"), one(2.0, 0.1, "short")]}
    found = {part.part: part.verdict for part in compared(a, b)}
    assert found == {"all": SAME, "short": WORSE, "long": SAME}


def test_what_was_not_the_same_is_named() -> None:
    a = {"setup": {"url": "a", "model": "m", "seed": 1}}
    b = {"setup": {"url": "b", "model": "n", "seed": 1}, "valid": False, "invalid_because": ["late"]}
    assert unlike(a, b) == ["model: 'm' against 'n'", "B is not a valid run: late"]


def test_an_interval_over_repeats_is_students() -> None:
    assert interval([1.0, 2.0, 3.0]) == pytest.approx([2 - 2.4841, 2 + 2.4841], abs=1e-3)
    assert interval([1.0]) is None
    assert interval([1.0, None]) is None


def test_repeats_are_averaged_and_counts_add_up() -> None:
    def document(p50: float) -> dict[str, object]:
        return {
            "requests": 10, "throughput_rps": p50, "throughput_tok_s": 1.0, "goodput": None, "valid": True,
            "ttft": {"mean": p50, "p50": p50, "max": p50, "ci95": {"mean": None, "p50": [0, 1]}},
            "tpot": {"p50": None, "ci95": None}, "e2e": {"p50": 1.0, "ci95": None}, "warnings": ["same"],
            "invalid_because": [], "setup": {"seed": p50}, "classes": [{"name": "short", "requests": 5}],
        }  # fmt: skip

    found = merged([document(1.0), document(3.0)])
    assert (found["requests"], found["ttft"]["p50"], found["classes"][0]["requests"]) == (20, 2.0, 10)
    assert found["ttft"]["ci95"]["p50"] == interval([1.0, 3.0])
    assert found["warnings"] == ["same"]
    assert len(found["repeats"]) == 2
