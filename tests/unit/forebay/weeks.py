"""Made-up weeks as Prometheus would answer: a healthy one, and one per planted problem."""

from collections.abc import Mapping
from typing import Any

from forebay.review.finding import Case
from forebay.review.reviewing import halves, review
from forebay.review.samples import FORMAT, read_export

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
