"""Overview: traffic, latency, goodput, errors, cost."""

from helm.dashboards.record import (
    Board,
    Panel,
    Query,
    Row,
    above,
    below,
    pick,
    quantile,
    quantiles,
    share,
    total,
)

SERVED = pick("forebay_requests_total", 'route=~"/v1/.*"', 'status!="499"')
FAILED = pick("forebay_requests_total", 'route=~"/v1/.*"', 'status=~"5.."')
LOOKED_UP = pick("forebay_requests_total", 'cache=~"hit-.*|miss"')
HITS = pick("forebay_requests_total", 'cache=~"hit-.*"')
FIRST = "forebay_time_to_first_token_seconds"
TOKEN = "forebay_time_per_output_token_seconds"  # noqa: S105  # a metric's name
E2E = "forebay_request_duration_seconds"
IN_TIME = share(total(pick(f"{FIRST}_bucket", 'le="2.5"')), total(pick(f"{FIRST}_count")))
STEADY = share(total(pick(f"{TOKEN}_bucket", 'le="0.1"')), total(pick(f"{TOKEN}_count")))
_TOKENS = total(pick("forebay_tokens_total", 'kind=~"input|output"'), "tier, kind")
_PRICES = f"max by (tier, kind) ({pick('forebay_token_price')})"
COST = f"sum by (tier) ({_TOKENS} * on (tier, kind) {_PRICES}) * 3600 / 1e6"
SAVED = f"{total(pick('forebay_saved_cost_total'), 'source')} * 3600"


def burn(late: str, budget: float) -> str:
    """How many times as fast as allowed a budget of errors is spent."""
    return f"({late}) / {budget}"


_NOW = Row(
    "Now",
    (
        Panel(
            "Requests",
            "Requests per second under /v1.",
            "reqps",
            below(0.001, "nobody asks, or nobody gets through."),
            (Query(total(SERVED), "requests"),),
            "number",
            width=4,
        ),
        Panel(
            "Faults",
            "Share of requests that ended with 5xx.",
            "percentunit",
            above(0.01, "more than the objective of 1 % allows."),
            (Query(share(total(FAILED), total(SERVED)), "5xx"),),
            "number",
            width=4,
        ),
        Panel(
            "First token, p95",
            "Arrival to first content of a stream, cache hits included.",
            "s",
            above(2.5, "later than the objective."),
            (Query(quantile(0.95, pick(f"{FIRST}_bucket")), "p95"),),
            "number",
            width=4,
        ),
        Panel(
            "In time",
            "Share of streams whose first token came within 2.5 s.",
            "percentunit",
            below(0.95, "fewer than the objective of 95 %."),
            (Query(IN_TIME, "in time"),),
            "number",
            width=4,
        ),
        Panel(
            "Cost",
            "Tokens times configured prices, per hour, in the unit of the prices.",
            "short",
            above(100, "more per hour than most budgets plan for; set it to yours."),
            (Query(f"sum({COST})", "per hour"),),
            "number",
            width=4,
        ),
        Panel(
            "Saved",
            "What caches and routing saved, per hour, in the unit of the prices.",
            "short",
            below(0, "routing costs more than it saves: the cascade gives up too much."),
            (Query(f"sum({SAVED})", "per hour"),),
            "number",
            width=4,
        ),
    ),
)
_TRAFFIC = Row(
    "Traffic and errors",
    (
        Panel(
            "Requests by tier",
            "Answered by a tier, or by a cache (none).",
            "reqps",
            below(0.001, "no traffic."),
            (Query(total(SERVED, "tier"), "{{tier}}"),),
            "stack",
        ),
        Panel(
            "Requests by status",
            "499: the client left. 429: a limit or a full queue.",
            "reqps",
            below(0.001, "no traffic."),
            (Query(total(pick("forebay_requests_total", 'route=~"/v1/.*"'), "status"), "{{status}}"),),
            "stack",
        ),
        Panel(
            "Error budget burn",
            "How many times as fast as 30 days allow the budgets are spent: 1 % faults, 5 % late first tokens.",
            "short",
            above(6, "the budget of a month is gone in five days."),
            (
                Query(burn(share(total(FAILED), total(SERVED)), 0.01), "faults"),
                Query(burn(f"1 - ({IN_TIME})", 0.05), "late first tokens"),
            ),
        ),
        Panel(
            "Servers that answer",
            "Per tier, the highest number that a gateway sees.",
            "short",
            below(1, "the tier has none."),
            (Query(f"max by (tier) ({pick('forebay_replicas_up')})", "{{tier}}"),),
        ),
        Panel(
            "Failed calls to servers",
            "By tier and kind; those before the first content are tried again elsewhere.",
            "reqps",
            above(0.1, "servers fail, even where clients do not see it."),
            (Query(total(pick("forebay_upstream_errors_total"), "tier, kind"), "{{tier}} {{kind}}"),),
        ),
        Panel(
            "Breakers",
            "0 closed, 1 half open, 2 open: the worst of the servers of each tier, and of stores and embedder.",
            "short",
            above(1, "something is left alone because it fails."),
            (
                Query(f"max by (tier) ({pick('forebay_breaker_state')})", "{{tier}}"),
                Query(f"max by (dependency) ({pick('forebay_dependency_breaker_state')})", "{{dependency}}"),
            ),
            most=2,
        ),
    ),
)
_LATENCY = Row(
    "Latency",
    (
        Panel(
            "First token",
            "TTFT: arrival to first content of a stream, cache hits included.",
            "s",
            above(2.5, "later than the objective."),
            quantiles(pick(f"{FIRST}_bucket")),
        ),
        Panel(
            "Time per output token",
            "TPOT: first to last content of a stream, per further token.",
            "s",
            above(0.1, "slower than people read."),
            quantiles(pick(f"{TOKEN}_bucket")),
        ),
        Panel(
            "Whole answer",
            "E2E: arrival to last byte.",
            "s",
            above(60, "longer than most clients wait."),
            quantiles(pick(f"{E2E}_bucket")),
        ),
        Panel(
            "First token by tier, p95",
            "none: answered by a cache.",
            "s",
            above(2.5, "later than the objective."),
            (Query(quantile(0.95, pick(f"{FIRST}_bucket"), "tier"), "{{tier}}"),),
        ),
        Panel(
            "Goodput",
            "Share of streams with their first token within 2.5 s, and with at most 0.1 s per further token.",
            "percentunit",
            below(0.95, "fewer than the objective."),
            (Query(IN_TIME, "first token"), Query(STEADY, "per token")),
            most=1,
        ),
        Panel(
            "Time in the gateway itself",
            "Waits for queue, tier and client taken out.",
            "s",
            above(0.05, "the gateway is short of CPU."),
            quantiles(pick("forebay_overhead_seconds_bucket")),
        ),
    ),
)
_MONEY = Row(
    "Cost",
    (
        Panel(
            "Cost per hour",
            "Input and output tokens times configured prices, by tier.",
            "short",
            above(100, "more per hour than most budgets plan for; set it to yours."),
            (Query(COST, "{{tier}}"),),
            "stack",
        ),
        Panel(
            "Saved per hour",
            "By what saved it: exact and semantic hits, and easy requests on the small tier.",
            "short",
            below(0, "it costs more than it saves."),
            (Query(SAVED, "{{source}}"),),
            "stack",
        ),
        Panel(
            "Hit rate",
            "Share of requests that were looked up and answered by a cache.",
            "percentunit",
            below(0.01, "the cache does not earn its memory."),
            (Query(share(total(HITS), total(LOOKED_UP)), "hits"),),
            most=1,
        ),
    ),
)
BOARD = Board(
    "overview",
    "Forebay / Overview",
    "Traffic, latency, goodput, errors and cost of the gateway.",
    (_NOW, _TRAFFIC, _LATENCY, _MONEY),
)
