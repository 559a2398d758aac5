"""Prefill and decode apart: where prompts are computed, the hand-over, the load of both groups."""

from helm.dashboards.record import (
    Board,
    Panel,
    Pick,
    Query,
    Row,
    above,
    below,
    engine,
    pick,
    quantiles,
    share,
    shares,
    total,
)

PREFILL = "ray_forebay_prefill_total"
RUNNING = "ray_serve_replica_processing_queries"
BY_SOURCE = engine("prompt_tokens_by_source_total")

_WHERE = Row(
    "Where prompts are computed",
    (
        Panel(
            "Prompts by mode",
            "remote: prefilled apart. local: where they are decoded, by rule. fallback: there, because of a fault.",
            "reqps",
            below(0.001, "nothing is handed over."),
            (Query(total(pick(PREFILL), "mode"), "{{mode}}"),),
            "stack",
        ),
        Panel(
            "Fallback",
            "Share of prompts that should have been prefilled apart and were not.",
            "percentunit",
            above(0.05, "the prefill group is too small, or the way to it is broken."),
            (Query(share(total(pick(PREFILL, 'mode=~"fallback|error"')), total(pick(PREFILL))), "fallback"),),
            most=1,
        ),
        Panel(
            "Why not remote",
            "short and cached are cheaper where they are; deadline, handoff, breaker and no_replica are faults.",
            "reqps",
            above(1, "see which reason; a fault wants looking at."),
            (Query(total(pick(PREFILL, 'mode!="remote"'), "reason"), "{{reason}}"),),
        ),
        Panel(
            "Prompt tokens by source",
            "local_compute: computed here. external_kv_transfer: taken over. local_cache_hit: known.",
            "short",
            below(0.001, "engines read no prompts."),
            (Query(total(BY_SOURCE, "source"), "{{source}}"),),
            "stack",
        ),
    ),
)
_OVER = Row(
    "Hand-over",
    (
        Panel(
            "Hand-over",
            "The prefill side's answer to the decode side's first content.",
            "s",
            above(0.5, "the network, or decode engines without room."),
            quantiles(pick("ray_forebay_kv_handoff_seconds_bucket")),
        ),
        Panel(
            "Orphaned blocks",
            "KV blocks that prefill replicas keep for nobody until their lease ends.",
            "short",
            above(1000, "memory that prefill replicas lack: clients leave, or hand-overs fail."),
            (Query(f"sum({pick('ray_forebay_kv_orphaned_blocks')})", "blocks"),),
        ),
    ),
)
_LOAD = Row(
    "Load per group",
    (
        Panel(
            "Requests per group",
            "Running requests of each deployment of Ray Serve: prefill and decode groups are deployments of their own.",
            "short",
            above(256, "vLLM's usual bound of one replica."),
            (Query(f"sum by (deployment) ({pick(RUNNING)})", "{{deployment}}"),),
        ),
        Panel(
            "Share of the load per group",
            "A group with far more than its share of replicas is the bottleneck.",
            "percentunit",
            above(0.9, "one group has nearly everything: change the ratio of replicas."),
            (Query(shares(f"sum by (deployment) ({pick(RUNNING)})", f"sum({pick(RUNNING)})"), "{{deployment}}"),),
            "stack",
            most=1,
        ),
        Panel(
            "KV cache per replica",
            "Share of the blocks in use. Prefill replicas hold them until they are fetched, decode ones to the end.",
            "percentunit",
            above(0.9, "the group is too small."),
            (Query(f"max by (ReplicaId) ({engine('kv_cache_usage_perc')})", "{{ReplicaId}}"),),
            most=1,
        ),
    ),
)
BOARD = Board(
    "prefill",
    "Forebay / Prefill and decode",
    "Tiers whose prompts are computed by a group of replicas of their own.",
    (_WHERE, _OVER, _LOAD),
    (
        Pick("namespace", '{__name__=~"(ray_)?vllm[:_]num_requests_running"}', "namespace"),
        Pick("model", '{__name__=~"(ray_)?vllm[:_]num_requests_running"}', "model_name"),
    ),
)
