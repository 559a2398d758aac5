"""Engines: vLLM's batches, KV cache, preemptions, prefix cache, speculation and queue, under either of its names."""

from helm.dashboards.record import (
    Board,
    Panel,
    Pick,
    Query,
    Row,
    above,
    below,
    engine,
    mean,
    quantile,
    quantiles,
    share,
    shares_by,
    total,
)

BY = "model_name"
DRAFTED, ACCEPTED = engine("spec_decode_num_draft_tokens_total"), engine("spec_decode_num_accepted_tokens_total")


def _mean(name: str, by: str = "") -> str:
    return mean(engine("{of}"), name, by=by)


_LOAD = Row(
    "Batch and queue",
    (
        Panel(
            "Batch",
            "Sequences in the running batch, mean over the engines of a model.",
            "short",
            above(256, "vLLM's usual bound: more must wait."),
            (Query(f"avg by ({BY}) ({engine('num_requests_running')})", "{{model_name}}"),),
        ),
        Panel(
            "Waiting in the engine",
            "Sequences that wait for room in the batch or the KV cache, summed over the engines of a model.",
            "short",
            above(16, "the engine is behind: lower the tier's max_inflight, so that the gateway's fair queue decides."),
            (Query(f"sum by ({BY}) ({engine('num_requests_waiting')})", "{{model_name}}"),),
        ),
        Panel(
            "Time in the engine's queue",
            "Arrival at the engine until it is scheduled.",
            "s",
            above(1, "a wait that the gateway's fair queue does not see."),
            quantiles(engine("request_queue_time_seconds_bucket")),
        ),
        Panel(
            "Tokens",
            "Prompt and generated tokens per second.",
            "short",
            below(0.001, "the engines do nothing."),
            (
                Query(total(engine("prompt_tokens_total"), BY), "{{model_name}} prompt"),
                Query(total(engine("generation_tokens_total"), BY), "{{model_name}} generated"),
            ),
        ),
        Panel(
            "Tokens per step",
            "Mean tokens of one iteration: prefill chunks and one token per running sequence.",
            "short",
            above(8192, "steps this large make everybody's next token wait: lower max_num_batched_tokens."),
            (Query(_mean("iteration_tokens_total", BY), "{{model_name}}"),),
        ),
        Panel(
            "Finished",
            "By reason. abort: clients left. length: max_tokens, such answers are not cached.",
            "reqps",
            below(0.001, "nothing is finished."),
            (Query(total(engine("request_success_total"), "finished_reason"), "{{finished_reason}}"),),
            "stack",
        ),
    ),
)
_MEMORY = Row(
    "KV cache",
    (
        Panel(
            "KV cache in use",
            "Share of the blocks, the fullest engine of a model.",
            "percentunit",
            above(0.9, "sequences will be preempted."),
            (Query(f"max by ({BY}) ({engine('kv_cache_usage_perc')})", "{{model_name}}"),),
            most=1,
        ),
        Panel(
            "Preemptions",
            "Sequences that were thrown out of the batch, per second: their work is done again.",
            "short",
            above(0.1, "the KV cache is too small for the batch."),
            (Query(total(engine("num_preemptions_total"), BY), "{{model_name}}"),),
        ),
        Panel(
            "Prefix cache",
            "Share of prompt tokens that were in the KV cache already.",
            "percentunit",
            below(0.05, "prompts begin differently: put what is common first."),
            (
                Query(
                    share(total(engine("prefix_cache_hits_total")), total(engine("prefix_cache_queries_total"))), "hits"
                ),
            ),
            most=1,
        ),
    ),
)
_SPEED = Row(
    "Speed",
    (
        Panel(
            "First token of the engine",
            "Arrival at the engine to its first token.",
            "s",
            above(2.5, "the objective is missed in the engine itself."),
            quantiles(engine("time_to_first_token_seconds_bucket")),
        ),
        Panel(
            "Between tokens",
            "ITL: time between two tokens of a sequence.",
            "s",
            above(0.1, "slower than people read."),
            quantiles(engine("inter_token_latency_seconds_bucket")),
        ),
        Panel(
            "Prompt lengths, p95",
            "Tokens per prompt by model.",
            "short",
            above(8192, "prefills of this length stop everybody's tokens where they are not chunked."),
            (Query(quantile(0.95, engine("request_prompt_tokens_bucket"), BY), "{{model_name}}"),),
        ),
        Panel(
            "Prefill and decode",
            "Mean seconds of a request in either phase.",
            "s",
            above(30, "longer than most clients wait."),
            (
                Query(_mean("request_prefill_time_seconds"), "prefill"),
                Query(_mean("request_decode_time_seconds"), "decode"),
            ),
        ),
        Panel(
            "Accepted drafts",
            "Speculative decoding: share of drafted tokens that are accepted.",
            "percentunit",
            below(0.3, "drafts cost more than they gain."),
            (Query(shares_by(BY, total(ACCEPTED, BY), total(DRAFTED, BY)), "{{model_name}}"),),
            most=1,
        ),
        Panel(
            "Tokens per draft",
            "Speculative decoding: tokens that one verification yields, the model's own included.",
            "short",
            below(1.3, "little more than without drafts."),
            (
                Query(
                    f"1 + {total(ACCEPTED, BY)} / on ({BY}) {total(engine('spec_decode_num_drafts_total'), BY)} >= 0",
                    "{{model_name}}",
                ),
            ),
        ),
    ),
)
BOARD = Board(
    "engines",
    "Forebay / Engines",
    "What vLLM says of itself, under its own names or those that Ray gives them.",
    (_LOAD, _MEMORY, _SPEED),
    (
        Pick("namespace", '{__name__=~"(ray_)?vllm[:_]num_requests_running"}', "namespace"),
        Pick("model", '{__name__=~"(ray_)?vllm[:_]num_requests_running"}', "model_name"),
    ),
)
