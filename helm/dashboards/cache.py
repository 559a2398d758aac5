"""Cache: hits, similarity, the guard, shadow comparisons, entries, latency."""

from helm.dashboards.record import (
    Board,
    Panel,
    Query,
    Row,
    above,
    bands,
    below,
    mean,
    pick,
    quantile,
    quantiles,
    share,
    shares,
    total,
)

REQUESTS = "forebay_requests_total"
LOOKED_UP = total(pick(REQUESTS, 'cache=~"hit-.*|miss"'))
LOOKUPS = "forebay_cache_lookups_total"
SEMANTIC = 'layer="semantic"'
SHADOW = "forebay_cache_shadow_total"
BANDS = (("0.5", "below 0.50"), ("0.8", "0.50 to 0.80"), ("0.9", "0.80 to 0.90"), ("1.0", "0.90 and above"))


def _of_lookups(result: str) -> str:
    return total(pick(LOOKUPS, SEMANTIC, f'result=~"{result}"'))


_HITS = Row(
    "Hits",
    (
        Panel(
            "Hit rate by layer",
            "Share of the requests that were looked up.",
            "percentunit",
            below(0.01, "the layer does not earn its memory."),
            (
                Query(share(total(pick(REQUESTS, 'cache="hit-exact"')), LOOKED_UP), "exact"),
                Query(share(total(pick(REQUESTS, 'cache="hit-semantic"')), LOOKED_UP), "semantic"),
            ),
            "stack",
            most=1,
        ),
        Panel(
            "Exact lookups",
            "By result. A follower of a request that runs is counted as the miss it was.",
            "reqps",
            below(0.001, "nothing is looked up."),
            (Query(total(pick(LOOKUPS, 'layer="exact"'), "result"), "{{result}}"),),
            "stack",
        ),
        Panel(
            "Semantic lookups",
            "By result. guarded: near enough, but the guard did not agree. timeout: later than the deadline.",
            "reqps",
            below(0.001, "nothing is looked up."),
            (Query(total(pick(LOOKUPS, SEMANTIC), "result"), "{{result}}"),),
            "stack",
        ),
        Panel(
            "Lookups that failed",
            "Share of lookups that ran out of time or failed.",
            "percentunit",
            above(0.01, "store, embedder or index are too slow: these requests are misses for nothing."),
            (Query(share(total(pick(LOOKUPS, 'result=~"timeout|error"')), total(pick(LOOKUPS))), "timeout or error"),),
        ),
        Panel(
            "Tokens saved",
            "Per second, by the layer that answered.",
            "short",
            below(0.001, "nothing is saved."),
            (Query(total(pick("forebay_saved_tokens_total"), "source"), "{{source}}"),),
            "stack",
        ),
        Panel(
            "Answers not kept",
            "By reason. length: max_tokens cut the answer off. store_*: the store did not take it.",
            "reqps",
            above(1, "answers are lost to the cache; see the reason."),
            (Query(total(pick("forebay_cache_writes_skipped_total"), "reason"), "{{reason}}"),),
        ),
    ),
)
_TRUST = Row(
    "Trust",
    (
        Panel(
            "Best similarity of lookups",
            "Share of semantic lookups by the similarity of the nearest stored question.",
            "percentunit",
            above(0.9, "where the lowest band reaches it alone, hardly anything is asked again."),
            bands("forebay_cache_similarity", BANDS, total(pick("forebay_cache_similarity_count"))),
            "stack",
            most=1,
        ),
        Panel(
            "Threshold and similarity",
            "τ beside the middle and the upper tenth of what lookups find: above the latter it serves little.",
            "short",
            above(0.95, "so high a τ serves repetitions only; so high a median means that traffic repeats itself."),
            (
                Query(f"max({pick('forebay_cache_threshold')})", "τ"),
                Query(quantile(0.5, pick("forebay_cache_similarity_bucket")), "p50"),
                Query(quantile(0.9, pick("forebay_cache_similarity_bucket")), "p90"),
            ),
            most=1,
        ),
        Panel(
            "Refused by the guard",
            "Of the lookups that found something at or above τ, the share that the guard refused.",
            "percentunit",
            above(0.9, "nearly all that looks alike is not: τ is low, or questions differ in numbers and names only."),
            (Query(share(_of_lookups("guarded"), _of_lookups("hit|guarded")), "refused"),),
            most=1,
        ),
        Panel(
            "Shadow comparisons",
            "Semantic hits whose fresh answer said the same, or something else, over 6 hours. Needs shadow_rate.",
            "percentunit",
            above(0.3, "of the different ones: more than the noise of two answers to one question."),
            (
                Query(
                    shares(f"sum by (agreement) (increase({pick(SHADOW)}[6h]))", f"sum(increase({pick(SHADOW)}[6h]))"),
                    "{{agreement}}",
                ),
            ),
            most=1,
        ),
        Panel(
            "Comparisons left out",
            "Drawn, and not compared: busy, late, error, incomparable.",
            "reqps",
            above(1, "the share that is compared says little about the rest."),
            (Query(total(pick("forebay_cache_shadow_skipped_total"), "reason"), "{{reason}}"),),
        ),
        Panel(
            "The judge",
            "What the judge said where the guard was in doubt. Needs cache.semantic.judge.",
            "reqps",
            above(10, "more doubts than a tier should be asked about."),
            (Query(total(pick("forebay_cache_judge_total"), "verdict"), "{{verdict}}"),),
        ),
    ),
)
_WORK = Row(
    "Size and speed",
    (
        Panel(
            "Entries",
            "Stored answers that a layer can serve: the largest number that a gateway reports.",
            "short",
            above(100_000, "the shipped bound: the least recently used are dropped."),
            (Query(f"max by (layer) ({pick('forebay_cache_entries')})", "{{layer}}"),),
        ),
        Panel(
            "Duration of hits, p95",
            "Arrival to last byte of what a cache answered.",
            "s",
            above(0.1, "the store or the embedder is slow."),
            (
                Query(
                    quantile(0.95, pick("forebay_request_duration_seconds_bucket", 'cache=~"hit-.*"'), "cache"),
                    "{{cache}}",
                ),
            ),
        ),
        Panel(
            "One pass of the embedder",
            "Seconds of a forward pass.",
            "s",
            above(0.15, "the deadline of a semantic lookup."),
            quantiles(pick("forebay_embed_seconds_bucket")),
        ),
        Panel(
            "Texts per pass",
            "Mean size of the embedder's batches.",
            "short",
            above(16, "the embedder is the bottleneck: texts queue for it."),
            (Query(mean(pick("{of}"), "forebay_embed_batch_size"), "texts"),),
        ),
        Panel(
            "Store and embedder",
            "Breakers: 0 closed, 1 half open, 2 open.",
            "short",
            above(1, "left alone because it fails: requests are misses."),
            (Query(f"max by (dependency) ({pick('forebay_dependency_breaker_state')})", "{{dependency}}"),),
            most=2,
        ),
        Panel(
            "Gateway time by outcome, p95",
            "What the cache costs inside the gateway, waits taken out.",
            "s",
            above(0.05, "lookups cost more than they should."),
            (Query(quantile(0.95, pick("forebay_overhead_seconds_bucket"), "cache"), "{{cache}}"),),
        ),
    ),
)
BOARD = Board(
    "cache",
    "Forebay / Cache",
    "The response cache: what it answers, whether that is right, what it costs.",
    (_HITS, _TRUST, _WORK),
)
