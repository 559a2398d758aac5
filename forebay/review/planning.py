"""What the planner would change, with its cost."""

import math
import shlex
from collections.abc import Mapping
from typing import Any

from forebay.commands.plan_fleet import planned
from forebay.review.finding import Answer, Case, Document, rounded, share
from forebay.review.latency import lengths
from forebay.review.queueing import CEILING

HOURS_A_WEEK = 168
# Below this utilization a tier of several replicas can do with fewer.
IDLE = 0.3


def plan(case: Case, answers: Mapping[str, Answer], words: str | None) -> Document:
    """Replicas per tier by utilization, what routing would save and, with options, the fleet planner's own plan."""
    load = _load(case, answers)
    changes: list[Document] = []
    for tier, figures in answers["queues"].figures["tiers"].items():
        changes += _replicas(case, tier, figures)
    easy = answers["router"].figures["easy_on_frontier"]
    if easy["requests"] and easy["cost"] and easy["cost"] > 0:
        weekly = easy["cost"] / case.seconds * 3600 * HOURS_A_WEEK
        changes.append(
            {
                "change": "send easy requests to the small tier",
                "why": f"{easy['requests']:.0f} requests with a complexity below 0.5 were on the frontier tier",
                "cost_per_week": rounded(-weekly, 4),
            }
        )
    found: Document = {"load": load, "changes": changes, "fleet": None}
    if words is not None:
        found["fleet"] = _fleet(load, words)
    return found


def _load(case: Case, answers: Mapping[str, Answer]) -> Document:
    """What the planner needs: the peak of requests before the cache, lengths, hit rate, share of the frontier tier."""
    now = case.now
    tiers = answers["queues"].figures["tiers"]
    admitted = sum(figures["requests"] or 0.0 for figures in tiers.values())
    hits = answers["cache"].figures["hit_rate"] or 0.0
    output = now.increase("forebay_tokens_total", ("kind",)).get(("output",), 0.0)
    peak = sum(figures["peak_rate_rps"] or 0.0 for figures in tiers.values())
    frontier = tiers.get("frontier", {}).get("requests") or 0.0
    return {
        "peak_rate_rps": rounded(peak / (1 - hits) if hits < 1 else peak),
        "prompt_tokens": rounded(lengths(now).mean, 1),
        "output_tokens": rounded(share(output, admitted), 1),
        "hit_rate": rounded(hits),
        "frontier_share": rounded(share(frontier, admitted)),
    }


def _replicas(case: Case, tier: str, figures: Document) -> list[Document]:
    now, used = figures["replicas"], figures["utilization_peak"]
    if not now or not figures["requests"]:
        return []
    needed = max(1, math.ceil(now * used / CEILING - 1e-9))
    if needed == now or (needed < now and used >= IDLE):
        return []
    step = needed - now
    price = case.gpu_price
    gpus = _gpus(case, tier)
    return [
        {
            "change": f"{tier}: {now:.0f} to {needed} replicas",
            "why": f"{used:.0%} of its places are taken at the peak; {CEILING:.0%} is the ceiling",
            "cost_per_week": None if price is None else rounded(step * gpus * price * HOURS_A_WEEK, 2),
        }
    ]


def _gpus(case: Case, tier: str) -> int:
    """GPUs of a replica, as far as the configuration says."""
    engines: Mapping[str, Mapping[str, Any]] = {}
    if case.config is not None:
        engines = {name: settings.engine for name, settings in case.config.tiers.items()}
    found = [engines.get(tier, {}).get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline")]
    return math.prod(count for count in found if isinstance(count, int))


def _fleet(load: Document, words: str) -> Document:
    """The planner's plan for the measured load; options given in `words` come last, and win."""
    known = {
        "--rate": load["peak_rate_rps"],
        "--prompt-tokens": load["prompt_tokens"],
        "--output-tokens": load["output_tokens"],
        "--hit-rate": load["hit_rate"],
    }
    measured = [word for name, value in known.items() if value for word in (name, f"{value:g}")]
    given = shlex.split(words)
    if load["frontier_share"] and any(word.startswith("--frontier-") for word in given):
        measured += ["--frontier-share", f"{load['frontier_share']:g}"]
    document = planned([*measured, *given])
    return {
        "meets_slo": document["meets_slo"],
        "gpus": document["gpus"],
        "cost_per_hour": document["cost_per_hour"],
        "tiers": {
            name: {key: tier.get(key) for key in ("replicas", "gpus", "utilization", "bottleneck", "cost_per_hour")}
            for name, tier in document["tiers"].items()
        },
        "config": document["config"],
        "warnings": document["warnings"],
    }
