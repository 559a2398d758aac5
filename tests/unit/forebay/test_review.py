"""`forebay review` on made-up weeks: each planted problem is told from the others, and a healthy week has none."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay.main import main
from forebay.review.finding import Case
from forebay.review.log import read_log
from forebay.review.report import markdown, page, plots
from forebay.review.reviewing import halves, review
from forebay.review.samples import FORMAT, Samples, on_grid, read_export

STEP, POINTS = 60.0, 241
SECONDS = STEP * (POINTS - 1) / 2
INSTANCE = {"job": "forebay", "instance": "a"}
CHAT = "/v1/chat/completions"


class Week:
    """Counters that grow evenly and gauges that stay, as the answers of Prometheus; `grow` is per half of the time."""

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] = []

    def grow(self, name: str, amount: float, before: float | None = None, **labels: str) -> None:
        first = amount if before is None else before
        half = POINTS // 2
        values = [
            first * point / half if point <= half else first + amount * (point - half) / half for point in range(POINTS)
        ]
        self._add(name, values, labels)

    def stay(self, name: str, value: float, **labels: str) -> None:
        self._add(name, [value] * POINTS, labels)

    def spread(
        self,
        name: str,
        counts: Mapping[float, float],
        *,
        before: Mapping[float, float] | None = None,
        total: float,
        **labels: str,
    ) -> None:
        """A histogram: how many values fell into the bucket with this bound."""
        for bound in [*counts, float("inf")]:
            upto = sum(count for edge, count in counts.items() if edge <= bound)
            old = None if before is None else sum(count for edge, count in before.items() if edge <= bound)
            self.grow(f"{name}_bucket", upto, old, le="+Inf" if bound == float("inf") else f"{bound:g}", **labels)
        self.grow(f"{name}_sum", total, **labels)
        self.grow(f"{name}_count", sum(counts.values()), None if before is None else sum(before.values()), **labels)

    def drop(self, *names: str) -> None:
        self.results = [one for one in self.results if not one["metric"]["__name__"].startswith(names)]

    def _add(self, name: str, values: list[float], labels: Mapping[str, str]) -> None:
        metric = {"__name__": name, **INSTANCE, **labels}
        self.results.append({"metric": metric, "values": [[STEP * n, f"{v:g}"] for n, v in enumerate(values)]})

    @property
    def export(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "start": 0,
            "end": STEP * (POINTS - 1),
            "step": STEP,
            "answers": [{"status": "success", "data": {"resultType": "matrix", "result": self.results}}],
        }

    def reviewed(self, **case: Any) -> dict[str, Any]:
        now, before = halves(read_export(self.export))
        return review(Case(now, before, **case))

    def problems(self) -> list[str]:
        return [one["code"] for one in self.reviewed()["findings"] if one["severity"] == "problem"]


def healthy() -> Week:
    week = Week()
    for cache, tier, count in (
        ("hit-exact", "none", 3000),
        ("hit-semantic", "none", 900),
        ("miss", "small", 3900),
        ("miss", "frontier", 2000),
    ):
        week.grow("forebay_requests_total", count, route=CHAT, status="200", tier=tier, cache=cache)
    for result, count in (("hit", 900), ("miss", 5000), ("guarded", 300)):
        week.grow("forebay_cache_lookups_total", count, layer="semantic", result=result)
    week.spread("forebay_cache_similarity", {0.5: 3000, 0.8: 2000, 0.9: 700, 1.0: 500}, total=3200)
    week.stay("forebay_cache_threshold", 0.8)
    week.stay("forebay_router_threshold", 0.5)
    week.stay("forebay_router_drift", 0.05)
    week.spread("forebay_router_complexity", {0.2: 2000, 0.5: 1900, 0.8: 1200, 1.0: 800}, total=2400)
    week.grow("forebay_router_decisions_total", 3900, tier="small", reason="complexity")
    week.grow("forebay_router_decisions_total", 2000, tier="frontier", reason="complexity")
    for tier, count, price in (("small", 3900, 0.1), ("frontier", 2000, 2.0)):
        week.stay("forebay_inflight_limit", 192, tier=tier)
        # 3,900 in two hours for 4 s each are 2.17 at one time.
        week.stay("forebay_inflight", count * 4 / SECONDS, tier=tier)
        week.stay("forebay_replicas_up", 2, tier=tier)
        for kind in ("input", "output"):
            week.stay("forebay_token_price", price, tier=tier, kind=kind)
            week.grow("forebay_tokens_total", count * 150, tier=tier, kind=kind)
        week.spread("forebay_queue_wait_seconds", {0.01: count}, total=count * 0.001, tier=tier, priority="normal")
        week.grow("forebay_request_duration_seconds_sum", count * 4.001, tier=tier, cache="miss")
        week.grow("forebay_request_duration_seconds_count", count, tier=tier, cache="miss")
        week.spread(
            "forebay_time_to_first_token_seconds",
            {0.16: count * 0.8, 0.32: count * 0.2},
            total=count * 0.15,
            tier=tier,
            cache="miss",
        )
        week.spread("forebay_time_per_output_token_seconds", {0.02: count}, total=count * 0.015, tier=tier)
        week.spread(
            "forebay_prompt_tokens",
            {64: count * 0.3, 256: count * 0.5, 1024: count * 0.2},
            total=count * 200,
            tier=tier,
        )
    for tenant in ("shop", "desk"):
        week.grow("forebay_tenant_requests_total", 4900, tenant=tenant)
        week.grow("forebay_tenant_tokens_total", 885_000, tenant=tenant)
    return week


def monopolised() -> Week:
    week = healthy()
    week.drop("forebay_prompt_tokens", "forebay_tenant", "forebay_queue_wait")
    week.spread("forebay_prompt_tokens", {64: 1000, 256: 2500, 16384: 400}, total=400 * 12_000 + 500_000, tier="small")
    week.spread("forebay_queue_wait_seconds", {0.01: 3000, 2.5: 900}, total=1400, tier="small", priority="normal")
    week.grow("forebay_tenant_requests_total", 9400, tenant="shop")
    week.grow("forebay_tenant_requests_total", 400, tenant="batch")
    week.grow("forebay_tenant_tokens_total", 1_000_000, tenant="shop")
    week.grow("forebay_tenant_tokens_total", 4_900_000, tenant="batch")
    return week


def strict() -> Week:
    week = healthy()
    week.drop("forebay_cache_lookups", "forebay_cache_threshold")
    week.stay("forebay_cache_threshold", 0.97)
    for result, count in (("hit", 60), ("miss", 6100), ("guarded", 40)):
        week.grow("forebay_cache_lookups_total", count, layer="semantic", result=result)
    return week


def one_sided() -> Week:
    week = healthy()
    week.drop("forebay_router_decisions", "forebay_router_threshold")
    week.stay("forebay_router_threshold", 0.0)
    week.grow("forebay_router_decisions_total", 5900, tier="frontier", reason="complexity")
    return week


def test_a_healthy_week_has_no_problem() -> None:
    found = healthy().reviewed()
    assert (found["healthy"], found["findings"]) == (True, [])
    assert found["questions"]["cache"]["hit_rate"] == pytest.approx(3900 / 9800, abs=1e-3)
    assert found["questions"]["router"]["frontier_share"] == pytest.approx(2000 / 5900, abs=1e-3)
    assert found["plan"]["changes"][0]["change"] == "small: 2 to 1 replicas"


@pytest.mark.parametrize(
    ("week", "code"),
    [
        (monopolised, "long_prompts_monopolise"),
        (strict, "threshold_too_high"),
        (one_sided, "router_always_frontier"),
    ],
)
def test_planted_problems_are_told_apart(week: Any, code: str) -> None:
    problems = week().problems()
    assert problems[0] == code
    assert set(problems[1:]) <= {"small_waits"}


def test_who_monopolises_is_named_and_the_wait_follows_from_it() -> None:
    found = {one["code"]: one for one in monopolised().reviewed()["findings"]}
    assert found["long_prompts_monopolise"]["evidence"]["tenant"]["name"] == "batch"
    assert found["small_waits"]["because"] == "long_prompts_monopolise"


def test_a_few_long_prompts_that_nobody_waits_for_are_no_problem() -> None:
    week = healthy()
    week.drop("forebay_prompt_tokens")
    week.spread("forebay_prompt_tokens", {64: 100, 256: 3500, 2048: 300}, total=3600 * 150 + 300 * 1900, tier="small")
    assert week.problems() == []


@pytest.mark.parametrize(
    ("threshold", "drift", "scores", "cause"),
    [
        (0.0, 0.0, {0.2: 4000, 0.8: 1900}, "the threshold is 0,"),
        (0.5, 0.6, {0.5: 200, 1.0: 5700}, "drifted"),
        (0.5, 0.1, {0.5: 200, 1.0: 5700}, "nearly everything hard"),
    ],
)
def test_why_the_router_is_one_sided(threshold: float, drift: float, scores: dict[float, float], cause: str) -> None:
    week = one_sided()
    week.drop("forebay_router_threshold", "forebay_router_drift", "forebay_router_complexity")
    week.stay("forebay_router_threshold", threshold)
    week.stay("forebay_router_drift", drift)
    week.spread("forebay_router_complexity", scores, total=3000)
    (found,) = week.reviewed()["findings"]
    assert cause in found["title"]


def test_easy_requests_on_the_frontier_tier_have_a_price() -> None:
    found = one_sided().reviewed()
    easy = found["questions"]["router"]["easy_on_frontier"]
    assert easy["requests"] == pytest.approx(3900, rel=0.01)
    # 300 tokens each, 1.9 per million dearer.
    assert easy["cost"] == pytest.approx(3900 * 300 * 1.9e-6, rel=0.01)
    assert any(one["change"] == "send easy requests to the small tier" for one in found["plan"]["changes"])


def test_later_first_tokens_than_before_are_seen_with_their_checks_in_order() -> None:
    week = healthy()
    week.drop("forebay_time_to_first_token", "forebay_prompt_tokens")
    week.spread(
        "forebay_time_to_first_token_seconds",
        {0.16: 100, 1.28: 3800},
        before={0.16: 3900},
        total=2000,
        tier="small",
        cache="miss",
    )
    week.spread("forebay_prompt_tokens", {256: 1900, 1024: 2000}, before={256: 3900}, total=0, tier="small")
    found = week.reviewed()
    assert [one["code"] for one in found["findings"]] == ["ttft_up"]
    checks = [one["check"] for one in found["latency"]["ttft"]["checks"]]
    assert checks == ["prompt lengths", "share of hits", "attention backend", "long prompts monopolising"]
    assert [one["check"] for one in found["latency"]["tpot"]["checks"]] == [
        "effective batch", "residency in the KV cache", "quantization", "memory-bound regime",
    ]  # fmt: skip


def test_a_tier_above_the_ceiling_wants_replicas_and_says_what_they_cost() -> None:
    week = healthy()
    week.drop("forebay_inflight_limit")
    week.stay("forebay_inflight_limit", 2.4, tier="small")
    week.stay("forebay_inflight_limit", 192, tier="frontier")
    found = week.reviewed(gpu_price=2.0)
    assert [one["code"] for one in found["findings"]] == ["small_over_ceiling"]
    change = found["plan"]["changes"][0]
    assert change["change"] == "small: 2 to 3 replicas"
    assert change["cost_per_week"] == 1 * 2.0 * 168
    small = found["queueing"]["tiers"]["small"]
    assert small["littles_law_ratio"] == pytest.approx(1, abs=0.02)


def engines(week: Week, slope: float, *, kv: float = 0.4, preempted: float = 0.0, ray: bool = False) -> Week:
    """An engine whose batch goes up and down, and whose time per token follows it."""
    prefix, labels = ("ray_vllm_" if ray else "vllm:"), {"model_name": "m", "engine": "0"}
    batch = [4 + 3 * np.sin(point / 5) for point in range(POINTS)]
    count = [100.0 * point for point in range(POINTS)]
    seconds = np.cumsum([100 * 0.02 * (value / 4) ** slope for value in batch])
    week._add(f"{prefix}num_requests_running", batch, labels)
    week._add(f"{prefix}inter_token_latency_seconds_count", count, labels)
    week._add(f"{prefix}inter_token_latency_seconds_sum", list(map(float, seconds)), labels)
    week.stay(f"{prefix}num_requests_waiting", 0, **labels)
    week.stay(f"{prefix}kv_cache_usage_perc", kv, **labels)
    week.grow(f"{prefix}request_success_total", 1000, finished_reason="stop", **labels)
    week.grow(f"{prefix}num_preemptions_total", 1000 * preempted, **labels)
    return week


@pytest.mark.parametrize(
    ("slope", "kv", "preempted", "regime"),
    [
        (0.05, 0.4, 0.0, "memory-bound"),
        (0.95, 0.4, 0.0, "compute-bound"),
        (0.5, 0.4, 0.0, "mixed"),
        (0.05, 0.97, 0.0, "kv-bound"),
        (0.05, 0.5, 0.2, "kv-bound"),
    ],
)
@pytest.mark.parametrize("ray", [False, True])
def test_what_decode_is_bound_by(slope: float, kv: float, preempted: float, regime: str, ray: bool) -> None:
    found = engines(healthy(), slope, kv=kv, preempted=preempted, ray=ray).reviewed()
    model = found["questions"]["decode"]["models"]["m"]
    assert model["regime"] == regime
    assert model["slope"] == pytest.approx(slope, abs=0.05)
    assert found["healthy"] == (preempted == 0)


def test_counters_that_begin_again_or_appear_later_are_counted_from_0() -> None:
    times = [[10.0 * n, str(v)] for n, v in enumerate((5, 8, 2, 4, 4))]
    late = [[10.0 * n, "7"] for n in (2, 3, 4)]
    samples = on_grid(
        0, 40, 10,
        [
            {"metric": {"__name__": "c", "instance": "a", "x": "1"}, "values": times},
            {"metric": {"__name__": "c", "instance": "a", "x": "2"}, "values": late},
        ],
    )  # fmt: skip
    assert samples.increase("c", ("x",)) == {("1",): 3 + 2 + 2, ("2",): 7}


def test_quantiles_are_those_of_prometheus() -> None:
    week = Week()
    week.spread("h", {0.1: 50, 0.2: 30, 0.4: 20}, total=15)
    histogram = halves(read_export(week.export))[0].histogram("h")
    assert histogram.quantile(0.5) == pytest.approx(0.1, abs=1e-3)
    assert histogram.quantile(0.9) == pytest.approx(0.3, abs=1e-3)
    assert histogram.upto(0.3) == pytest.approx(90, abs=0.1)


def log_lines() -> list[str]:
    def line(second: int, name: str, cache: str, tokens: int = 20) -> str:
        tier = "none" if cache.startswith("hit") else "small"
        entry = {"ts": f"1970-01-01T03:00:{second:02}.000Z", "event": "request", "fingerprint": name, "status": 200}
        return json.dumps({**entry, "cache": cache, "tier": tier, "output_tokens": tokens}, separators=(",", ":"))

    asked = [
        ("a", "miss"),
        ("a", "miss"),
        ("a", "hit-exact"),
        ("b", "miss"),
        ("b", "bypass"),
        ("a", "miss"),
        ("c", "miss"),
    ]
    return [*(line(second, *one) for second, one in enumerate(asked)), "not a line", '{"event":"log"}']


def test_questions_that_missed_again_are_named_by_fingerprint() -> None:
    repeats = read_log(log_lines(), 0, 1e6)
    found = healthy().reviewed(repeats=repeats)
    rows = found["questions"]["cache"]["repeated_misses"]
    assert [(row["fingerprint"], row["requests"], row["missed_again"]) for row in rows] == [("a", 4, 2), ("b", 2, 1)]
    assert rows[0]["output_tokens"] == 40
    assert "header" in rows[1]["why"]
    many = read_log(log_lines() * 20, 0, 1e6)
    assert [one["code"] for one in healthy().reviewed(repeats=many)["findings"]] == ["repeats_missed"]


def test_the_command_reads_an_export_and_writes_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, log = tmp_path / "week.json", tmp_path / "gateway.log"
    source.write_text(json.dumps(strict().export), encoding="utf-8")
    log.write_text("\n".join(log_lines()), encoding="utf-8")
    words = ["review", "--from", str(source), "--log", str(log)]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["findings"][0]["code"] == "threshold_too_high"
    assert document["window"]["log_lines"] == 7
    assert main([*words, "--html", str(tmp_path / "w.html"), "--out", str(tmp_path / "w.md")]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# Forebay review")
    assert "| `a` | 4 | 2 |" in shown
    assert (tmp_path / "w.html").read_text(encoding="utf-8").count("data:image/png") == 3
    assert "![hit rate](w-hit-rate.png)" in (tmp_path / "w.md").read_text(encoding="utf-8")
    assert (tmp_path / "w-hit-rate.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "not an export"),
        ('{"format": "other"}', "not an export"),
        ("{", "week.json"),
        ('{"format": "forebay-review-1"}', "not an export"),
    ],
)
def test_what_is_no_export_is_said_in_a_line(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "week.json"
    source.write_text(text, encoding="utf-8")
    assert main(["review", "--from", str(source)]) == 1
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_prometheus_that_is_not_there_is_said_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["review", "--prometheus", "http://127.0.0.1:9", "--since", "1h"]) == 1
    assert "127.0.0.1:9" in capsys.readouterr().err


def test_a_time_in_which_nothing_happened_is_reviewed_all_the_same() -> None:
    week = Week()
    week.stay("forebay_inflight_limit", 192, tier="small")
    week.stay("forebay_inflight", 0, tier="small")
    week.stay("forebay_requests_total", 5, route=CHAT, status="200", tier="small", cache="miss")
    found = week.reviewed()
    assert found["healthy"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    samples: Samples = read_export(week.export)
    case = Case(samples, None)
    assert "Nothing to act on." in markdown(found, {})
    assert "<html" in page(found, plots(case))
