"""Queues and tenants: who waits, who is refused, who takes how much."""

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
    shares,
    shares_by,
    total,
)

WAIT = "forebay_queue_wait_seconds"
SHED = "forebay_shed_total"
DURATION = pick("forebay_request_duration_seconds_sum", 'tier=~"small|frontier"')
LENGTHS = "forebay_prompt_tokens_bucket"


def _sum(name: str) -> str:
    return f"sum by (tier) ({pick(name)})"


_QUEUES = Row(
    "Queues",
    (
        Panel(
            "Requests inside a tier",
            "Share of max_inflight that is taken.",
            "percentunit",
            above(0.7, "the ceiling for a steady state: above it waits grow out of proportion."),
            (Query(shares_by("tier", _sum("forebay_inflight"), _sum("forebay_inflight_limit")), "{{tier}}"),),
            most=1,
        ),
        Panel(
            "Requests in the queue",
            "Share of max_waiting that is taken.",
            "percentunit",
            above(0.5, "the queue is half full: soon it refuses."),
            (Query(shares_by("tier", _sum("forebay_queue_depth"), _sum("forebay_queue_limit")), "{{tier}}"),),
            most=1,
        ),
        Panel(
            "Depth",
            "Requests that wait, and requests inside the tier.",
            "short",
            above(64, "more than two steps of a usual batch wait."),
            (
                Query(_sum("forebay_queue_depth"), "{{tier}} waiting"),
                Query(_sum("forebay_inflight"), "{{tier}} inside"),
            ),
        ),
        Panel(
            "Wait",
            "Time in the queue of a tier.",
            "s",
            above(1, "whatever the throughput is, people wait."),
            quantiles(pick(f"{WAIT}_bucket")),
        ),
        Panel(
            "Wait by tier and priority, p95",
            "Time in the queue.",
            "s",
            above(1, "whatever the throughput is, people wait."),
            (Query(quantile(0.95, pick(f"{WAIT}_bucket"), "tier, priority"), "{{tier}} {{priority}}"),),
        ),
        Panel(
            "Refused",
            "By tier and reason: queue_full, queue_timeout and deadline are a lack of room, tenant_* a limit of a key.",
            "reqps",
            above(0.1, "requests are lost."),
            (Query(total(pick(SHED), "tier, reason"), "{{tier}} {{reason}}"),),
        ),
        Panel(
            "Little's law",
            "Requests inside a tier as seen, and as arrivals times time: where they part, a number is wrong.",
            "short",
            above(192, "the shipped bound of one gateway."),
            (
                Query(_sum("forebay_inflight"), "{{tier}} seen"),
                Query(
                    f"{total(DURATION, 'tier')} - {total(pick(f'{WAIT}_sum'), 'tier')}",
                    "{{tier}} expected",
                ),
            ),
        ),
        Panel(
            "Prompt lengths",
            "Tokens per prompt as the engines count them.",
            "short",
            above(8192, "prefills of this length stop everybody's tokens where they are not chunked."),
            quantiles(pick(LENGTHS)),
        ),
        Panel(
            "Prompt lengths by tier, p95",
            "Tokens per prompt.",
            "short",
            above(8192, "prefills of this length stop everybody's tokens where they are not chunked."),
            (Query(quantile(0.95, pick(LENGTHS), "tier"), "{{tier}}"),),
        ),
    ),
)
_TENANTS = Row(
    "Tenants",
    (
        Panel(
            "Requests by tenant",
            "The ten with the most.",
            "reqps",
            below(0.001, "nobody asks."),
            (Query(f"topk(10, {total(pick('forebay_tenant_requests_total'), 'tenant')})", "{{tenant}}"),),
            "stack",
        ),
        Panel(
            "Share of tokens by tenant",
            "The ten with the most.",
            "percentunit",
            above(0.5, "one tenant has more than all others together."),
            (
                Query(
                    shares(
                        f"topk(10, {total(pick('forebay_tenant_tokens_total'), 'tenant')})",
                        total(pick("forebay_tenant_tokens_total")),
                    ),
                    "{{tenant}}",
                ),
            ),
            "stack",
            most=1,
        ),
        Panel(
            "Tokens per request by tenant",
            "The ten with the most: prompts and answers together, hits counted as requests.",
            "short",
            above(8192, "long prompts of one tenant make everybody wait."),
            (
                Query(
                    f"topk(10, {total(pick('forebay_tenant_tokens_total'), 'tenant')}"
                    f" / on (tenant) {total(pick('forebay_tenant_requests_total'), 'tenant')} >= 0)",
                    "{{tenant}}",
                ),
            ),
        ),
        Panel(
            "Refused by tenant",
            "The ten with the most.",
            "reqps",
            above(0.1, "somebody's requests are lost."),
            (Query(f"topk(10, {total(pick('forebay_tenant_shed_total'), 'tenant')})", "{{tenant}}"),),
        ),
        Panel(
            "Tokens",
            "By tier and kind. cached: of the input, what the engine had in its prefix cache.",
            "short",
            below(0.001, "engines do nothing."),
            (Query(total(pick("forebay_tokens_total"), "tier, kind"), "{{tier}} {{kind}}"),),
        ),
        Panel(
            "Passed without limits",
            "Because the limits' store did not answer.",
            "reqps",
            above(0.001, "limits and budgets do not hold."),
            (Query(total(pick("forebay_limits_unchecked_total"), "reason"), "{{reason}}"),),
        ),
    ),
)
BOARD = Board(
    "queues",
    "Forebay / Queues and tenants",
    "Who waits for which tier, who is refused, and who takes how much.",
    (_QUEUES, _TENANTS),
)
