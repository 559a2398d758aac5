"""What `forebay top` makes of the gateway's events."""

import io
from typing import Any

import pytest
from rich.console import Console

from forebay.recent import Recent
from forebay.screen import screen


def row(time: float, **known: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "time": time, "tenant": "t", "route": "/v1/chat/completions", "cache": "miss", "tier": "small", "shed": False,
        "status": 200, "reason": None, "route_reason": "complexity", "stream": False, "similarity": None,
        "complexity": 0.25, "queue_ms": 0.0, "ttft_ms": None, "tpot_ms": None, "duration_ms": 12.0,
    }  # fmt: skip
    return plain | known


STATE: dict[str, Any] = {
    "time": 1000.0, "draining": False, "degraded": ["tier small: it is slow"], "breakers": {"embedder": "closed"},
    "cache": {"exact": 3, "semantic": 2, "store": {"kind": "memory"}},
    "totals": {"saved_tokens": {"exact": 40.0}, "saved_cost": {"exact": 0.5}},
    "tiers": {
        "small": {
            "model": "m", "inflight": 1, "waiting": 2, "max_inflight": 8, "max_waiting": 9,
            "servers": [{"url": "http://s", "health": "up", "breaker": "open"}],
        }
    },
}  # fmt: skip


def test_figures_are_those_of_the_last_minute() -> None:
    recent = Recent()
    rows = [
        row(930.0, cache="hit-exact", tier="none"),
        row(950.0, cache="hit-exact", tier="none", stream=True, ttft_ms=1.0),
        row(960.0, cache="hit-semantic", tier="none"),
        row(991.0, stream=True, ttft_ms=100.0, tpot_ms=10.0),
        row(992.0, stream=True, ttft_ms=200.0, tpot_ms=20.0, tier="frontier"),
        row(993.0, cache="bypass", status=429, shed=True, reason="queue_full", tier="small"),
        row(994.0, status=502, tier="frontier"),
    ]
    recent.take("decisions", {"decisions": rows, "missed": 0})
    recent.take("state", STATE)
    found = recent.figures()
    assert (found.requests, found.rate, found.errors) == (6, 0.4, 1)
    assert (found.exact, found.semantic) == (0.2, 0.2)
    assert (found.small, found.frontier) == (0.5, 0.5)
    assert found.shed == {"queue_full": 1}
    assert found.ttft_ms == pytest.approx((150.0, 195.0))
    assert found.tpot_ms == pytest.approx((15.0, 19.5))


def test_decisions_that_were_not_sent_count_as_those_that_were() -> None:
    recent = Recent()
    recent.take("decisions", {"decisions": [row(999.0), row(999.5, cache="hit-exact", tier="none")], "missed": 8})
    recent.take("state", STATE)
    found = recent.figures()
    assert (found.requests, found.rate, found.exact) == (10, 1.0, 0.5)


def test_nothing_yet_is_no_figure() -> None:
    recent = Recent()
    recent.take("state", STATE)
    found = recent.figures()
    assert (found.rate, found.exact, found.small, found.ttft_ms) == (0, None, None, None)


def test_the_screen_says_what_there_is() -> None:
    recent = Recent()
    recent.take("decisions", {"decisions": [row(999.0, tenant=f"tenant{n}") for n in range(5)], "missed": 0})
    recent.take("state", STATE)
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(screen(recent, "live", 3))
    text = console.export_text()
    for part in (
        "live",
        "1/8",
        "2/9",
        "breaker open",
        "it is slow",
        "tenant4",
        "0.250",
        "complexity",
        "cache in memory",
    ):
        assert part in text, part
    assert "tenant1" not in text, "three rows were asked for"
