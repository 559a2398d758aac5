"""Little's law and utilization per tier, against the ceiling of a steady state."""

import numpy as np

from capacity.queues import littles_law_ratio
from forebay.review.finding import TIERS, Answer, Case, Document, Finding, rounded, share
from forebay.review.samples import Numbers

# Above this share of its places a tier's waits grow out of proportion, so planners stay below it.
CEILING = 0.7
WAIT_S, REFUSED, REQUESTS = 1.0, 0.01, 30
ROOM = ("queue_full", "queue_timeout", "deadline")
# A peak is the mean of so much of the time; shorter ones are noise.
PEAK_PARTS = 12


def ask_queues(case: Case) -> Answer:
    """Arrivals, service, what is inside by the law and as seen, utilization, waits and refusals."""
    answer = Answer({"ceiling": CEILING, "tiers": {}})
    for tier in TIERS:
        figures = _tier(case, tier)
        if figures is None:
            continue
        answer.figures["tiers"][tier] = figures
        answer.findings += _findings(tier, figures)
    return answer


def _tier(case: Case, tier: str) -> Document | None:
    now = case.now

    def mine(**labels: str) -> bool:
        return labels.get("tier") == tier

    limit, inside = now.gauge("forebay_inflight_limit", mine), now.gauge("forebay_inflight", mine)
    if not np.isfinite(limit).any():
        return None
    wait = now.histogram("forebay_queue_wait_seconds", mine)
    admitted, waited = (
        now.sum("forebay_queue_wait_seconds_count", mine),
        now.sum("forebay_queue_wait_seconds_sum", mine),
    )
    spent = now.sum("forebay_request_duration_seconds_sum", mine)
    finished = now.sum("forebay_request_duration_seconds_count", mine)
    rate = admitted / case.seconds
    service = share(max(0.0, spent - waited), finished)
    used = inside / limit
    mean = float(np.nanmean(used))
    seen = float(np.nanmean(inside))
    shed = now.sum("forebay_shed_total", lambda **one: mine(**one) and one.get("reason") in ROOM)
    ratio = littles_law_ratio(rate, seen, service) if service and rate > 0 else None
    return {
        "requests": rounded(admitted, 1),
        "rate_rps": rounded(rate),
        "peak_rate_rps": rounded(peak(now.rate("forebay_queue_wait_seconds_count", mine))),
        "service_s": rounded(service),
        "inside_expected": rounded(rate * service, 3) if service is not None else None,
        "inside_seen": rounded(seen, 3),
        "littles_law_ratio": rounded(ratio, 3),
        "places": rounded(float(np.nanmax(limit)), 1),
        "replicas": rounded(now.highest("forebay_replicas_up", mine), 1),
        "utilization": rounded(mean),
        "utilization_peak": rounded(peak(used)),
        "wait_p95_s": rounded(wait.quantile(0.95)),
        "refused": rounded(share(shed, shed + admitted)),
    }


def peak(values: Numbers) -> float:
    """The highest mean over a twelfth of the time."""
    known = values[np.isfinite(values)]
    if not len(known):
        return 0.0
    width = max(1, len(known) // PEAK_PARTS)
    sums = np.convolve(known, np.ones(width) / width, mode="valid")
    return float(sums.max())


def _findings(tier: str, figures: Document) -> list[Finding]:
    found = []
    if (figures["requests"] or 0) < REQUESTS:
        return []
    if figures["utilization"] >= CEILING:
        found.append(
            Finding(
                f"{tier}_over_ceiling",
                "problem",
                f"the {tier} tier has {figures['utilization']:.0%} of its places taken on average, above {CEILING:.0%}",
                {
                    name: figures[name]
                    for name in ("utilization", "utilization_peak", "rate_rps", "service_s", "places")
                },
                "Add replicas, or raise queue.max_inflight where the engines have room.",
            )
        )
    if (figures["wait_p95_s"] or 0.0) >= WAIT_S:
        found.append(
            Finding(
                f"{tier}_waits",
                "problem",
                f"the 95th percentile of the wait for the {tier} tier is {figures['wait_p95_s']:.2f} s",
                {name: figures[name] for name in ("wait_p95_s", "utilization", "utilization_peak", "rate_rps")},
                "Whatever the throughput, people wait: see who takes the places, and plan.",
            )
        )
    if (figures["refused"] or 0.0) >= REFUSED:
        found.append(
            Finding(
                f"{tier}_refuses",
                "problem",
                f"the {tier} tier refuses {figures['refused']:.1%} of its requests for want of room",
                {name: figures[name] for name in ("refused", "utilization", "rate_rps", "peak_rate_rps")},
                "A longer queue buys nothing beyond saturation: add replicas.",
            )
        )
    return found
