"""Router: tiers, complexity, drift, the cascade, misrouting, feedback."""

from helm.dashboards.record import (
    Board,
    Panel,
    Query,
    Row,
    above,
    bands,
    below,
    pick,
    quantile,
    quantiles,
    share,
    shares,
    shares_by,
    total,
)

DECISIONS = "forebay_router_decisions_total"
FREE = 'reason=~"complexity|unfamiliar|no_text"'
FEEDBACK = "forebay_feedback_total"
GOOD = pick(FEEDBACK, 'verdict="good"')
SAVED = pick("forebay_saved_cost_total", 'source="router"')
ASKED_SMALL = pick(DECISIONS, 'reason=~"complexity|unfamiliar|sticky"', 'tier="small"')
ESCALATED = pick(DECISIONS, 'reason="escalated"')
BANDS = (("0.2", "below 0.2"), ("0.5", "0.2 to 0.5"), ("0.8", "0.5 to 0.8"), ("1.0", "0.8 and above"))

_SHARES = Row(
    "Which tier",
    (
        Panel(
            "Share per tier",
            "Of all decisions, explicit ones included.",
            "percentunit",
            above(0.95, "one tier has nearly everything."),
            (Query(shares(total(pick(DECISIONS), "tier"), total(pick(DECISIONS))), "{{tier}}"),),
            "stack",
            most=1,
        ),
        Panel(
            "Frontier share of free choices",
            "Of the requests that the classifier decided about.",
            "percentunit",
            above(0.95, "easy requests go to the frontier tier too, or the threshold is far too low."),
            (Query(share(total(pick(DECISIONS, FREE, 'tier="frontier"')), total(pick(DECISIONS, FREE))), "frontier"),),
            most=1,
        ),
        Panel(
            "Decisions by reason",
            "override: the request named its tier. unfamiliar: unlike the training data.",
            "reqps",
            below(0.001, "nothing is decided."),
            (Query(total(pick(DECISIONS), "reason"), "{{reason}}"),),
            "stack",
        ),
    ),
)
_SCORES = Row(
    "Complexity",
    (
        Panel(
            "Complexity of scored requests",
            "Share per band of the score.",
            "percentunit",
            above(0.95, "where one band reaches it alone, the classifier does not tell requests apart."),
            bands("forebay_router_complexity", BANDS, total(pick("forebay_router_complexity_count"))),
            "stack",
            most=1,
        ),
        Panel(
            "Threshold and complexity",
            "The threshold beside the quartiles of the score: outside of them one tier has nearly everything.",
            "short",
            above(0.9, "so high a threshold sends next to nothing to the frontier tier."),
            (
                Query(f"max({pick('forebay_router_threshold')})", "threshold"),
                Query(quantile(0.25, pick("forebay_router_complexity_bucket")), "p25"),
                Query(quantile(0.5, pick("forebay_router_complexity_bucket")), "p50"),
                Query(quantile(0.75, pick("forebay_router_complexity_bucket")), "p75"),
            ),
            most=1,
        ),
        Panel(
            "Drift",
            "Population stability index of the last 1,000 scores against the training sample.",
            "short",
            above(0.25, "the traffic is another one than the classifier was trained on: train on your own."),
            (Query(f"max({pick('forebay_router_drift')})", "index"),),
        ),
    ),
)
_RIGHT = Row(
    "Is it right",
    (
        Panel(
            "Escalated by the cascade",
            "Of the requests that the small tier was asked first, the share that went on to the frontier tier.",
            "percentunit",
            above(0.5, "the small tier is asked in vain every second time."),
            (
                Query(
                    share(
                        total(ESCALATED),
                        f"({total(ASKED_SMALL)} + ({total(ESCALATED)} or on() vector(0)))",
                    ),
                    "escalated",
                ),
            ),
            most=1,
        ),
        Panel(
            "Held back by the cascade",
            "First content of the small tier to the verdict.",
            "s",
            above(2, "the shipped deadline: streams start later by so much."),
            quantiles(pick("forebay_cascade_held_seconds_bucket")),
        ),
        Panel(
            "Estimated misrouting",
            "Share of the small tier's requests that were not for it, estimated from labels. Needs labels.rate.",
            "percentunit",
            above(0.1, "lower the threshold, or train on the labels."),
            (
                Query(
                    share(total(pick("forebay_router_misrouted_total")), total(pick(DECISIONS, FREE, 'tier="small"'))),
                    "too small",
                ),
            ),
            most=1,
        ),
        Panel(
            "Good feedback by tier",
            "Share of feedback with a score of 0.5 and above, over 6 hours.",
            "percentunit",
            below(0.7, "people are not content with this tier's answers."),
            (
                Query(
                    shares_by(
                        "tier",
                        f"sum by (tier) (increase({GOOD}[6h]))",
                        f"sum by (tier) (increase({pick(FEEDBACK)}[6h]))",
                    ),
                    "{{tier}}",
                ),
            ),
            most=1,
        ),
        Panel(
            "Saved by routing",
            "Per hour, in the unit of the prices, net of what the cascade gave up.",
            "short",
            below(0.0, "routing costs more than it saves."),
            (Query(f"{total(SAVED)} * 3600", "per hour"),),
        ),
        Panel(
            "Unfamiliar",
            "Share of free choices about requests unlike the training data.",
            "percentunit",
            above(0.3, "the classifier guesses: label and train on your own traffic."),
            (Query(share(total(pick(DECISIONS, 'reason="unfamiliar"')), total(pick(DECISIONS, FREE))), "unfamiliar"),),
            most=1,
        ),
    ),
)
BOARD = Board(
    "router",
    "Forebay / Router",
    "Which tier requests go to, by what score, and whether that is right.",
    (_SHARES, _SCORES, _RIGHT),
)
