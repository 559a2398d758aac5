"""Do we send easy requests to the small tier?"""

from collections.abc import Mapping

import numpy as np

from forebay.review.finding import Answer, Case, Document, Finding, last, rounded, share
from forebay.review.samples import Samples

# Reasons where the classifier, or the cascade after it, had the choice.
FREE = ("complexity", "unfamiliar", "no_text", "escalated")
CHOICES, ONE_SIDED, EASY = 30, 0.95, 0.5
DRIFTED, MISROUTED = 0.25, 0.1


def ask_router(case: Case) -> Answer:
    """Shares per tier, what was easy, and what that cost."""
    now = case.now
    decisions = now.increase("forebay_router_decisions_total", ("tier", "reason"))
    free = {tier: _of(decisions, tier, FREE) for tier in ("small", "frontier")}
    scores = now.histogram("forebay_router_complexity")
    easy = share(scores.upto(EASY), scores.count)
    chosen = sum(free.values())
    answer = Answer(
        {
            "decisions": {f"{tier} {reason}": rounded(count, 1) for (tier, reason), count in sorted(decisions.items())},
            "free_choices": rounded(chosen, 1),
            "frontier_share": rounded(share(free["frontier"], chosen)),
            "easy_share": rounded(easy),
            "complexity": {"p25": rounded(scores.quantile(0.25)), "p50": rounded(scores.quantile(0.5))},
            "threshold": last(now, "forebay_router_threshold"),
            "drift": last(now, "forebay_router_drift"),
            "misrouted": rounded(now.sum("forebay_router_misrouted_total"), 1),
            "easy_on_frontier": _price_of_easy(case, free, easy),
        }
    )
    if chosen >= CHOICES and free["frontier"] / chosen >= ONE_SIDED:
        answer.findings.append(_one_sided(answer.figures, decisions, free["frontier"], chosen))
    _misrouted(answer, case, free["small"])
    named = _of(decisions, "frontier", ("override",))
    if named >= CHOICES and named / sum(decisions.values()) >= 0.8 and _of(decisions, "small", None) + chosen > 0:
        answer.findings.append(
            Finding(
                "clients_name_the_frontier_tier",
                "note",
                f"{named / sum(decisions.values()):.0%} of the requests name the frontier tier themselves",
                {"named": rounded(named, 1)},
                "Where clients ask for model: auto, the classifier can send easy requests to the small tier.",
            )
        )
    return answer


def _of(decisions: Mapping[tuple[str, ...], float], tier: str, reasons: tuple[str, ...] | None) -> float:
    return sum(count for (of, why), count in decisions.items() if of == tier and (reasons is None or why in reasons))


def _one_sided(
    figures: Document, decisions: Mapping[tuple[str, ...], float], frontier: float, chosen: float
) -> Finding:
    threshold, easy, drift = figures["threshold"], figures["easy_share"] or 0.0, figures["drift"] or 0.0
    escalated = _of(decisions, "frontier", ("escalated",))
    if escalated > frontier / 2:
        cause = "the cascade gives nearly every answer of the small tier up"
        advice = "Find router.cascade.threshold with forebay router calibrate --cascade, or turn the cascade off."
    elif threshold is not None and (threshold < 0.2 or easy >= 0.2):
        cause = f"the threshold is {threshold:g}, and {easy:.0%} of the scores are below 0.5"
        advice = "Raise router.threshold: forebay router calibrate --frontier-share finds it."
    elif drift > DRIFTED:
        cause = f"scores have drifted from the training sample (index {drift:.2f})"
        advice = "Train on your own traffic: forebay router label, forebay router train."
    else:
        cause = "the classifier finds nearly everything hard"
        advice = "Measure it on your own labels (forebay router evaluate); where it is right, one tier is enough."
    return Finding(
        "router_always_frontier",
        "problem",
        f"{frontier / chosen:.0%} of the free choices go to the frontier tier: {cause}",
        {
            "free_choices": rounded(chosen, 1),
            "frontier": rounded(frontier, 1),
            "threshold": threshold,
            "complexity_p50": figures["complexity"]["p50"],
            "easy_share": figures["easy_share"],
            "cost_of_easy_on_frontier": figures["easy_on_frontier"]["cost"],
        },
        advice,
    )


def _price_of_easy(case: Case, free: Mapping[str, float], easy: float | None) -> Document:
    """Easy requests that the frontier tier had, and what the small tier's price would have spared."""
    now = case.now
    wanted = (easy or 0.0) * sum(free.values())
    count = max(0.0, wanted - free["small"])
    tokens = now.increase("forebay_tokens_total", ("tier", "kind"))
    answered = now.sum("forebay_queue_wait_seconds_count", lambda **one: one.get("tier") == "frontier")
    prices = prices_of(now)
    if not answered or ("frontier", "output") not in prices or ("small", "output") not in prices:
        return {"requests": rounded(count, 1), "cost": None}
    spread = sum(
        tokens.get(("frontier", kind), 0.0) / answered * (prices["frontier", kind] - prices["small", kind]) / 1e6
        for kind in ("input", "output")
    )
    return {"requests": rounded(count, 1), "cost": rounded(count * spread, 6)}


def prices_of(samples: Samples) -> dict[tuple[str, str], float]:
    """Configured prices per million tokens by tier and kind."""
    found = {}
    for one in samples.series.get("forebay_token_price", ()):
        known = one.values[~np.isnan(one.values)]
        if len(known):
            found[one.labels["tier"], one.labels["kind"]] = float(known[-1])
    return found


def _misrouted(answer: Answer, case: Case, small: float) -> None:
    wrong = case.now.sum("forebay_router_misrouted_total")
    if small >= CHOICES and wrong / small > MISROUTED:
        answer.findings.append(
            Finding(
                "too_small_a_tier",
                "note",
                f"about {min(1.0, wrong / small):.0%} of the small tier's answers differ from the frontier tier's",
                {"estimated": rounded(wrong, 1), "small": rounded(small, 1)},
                "Read a sample of the labels before believing it; then lower router.threshold or train on them.",
            )
        )
