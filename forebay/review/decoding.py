"""Is decode compute-bound, or does it wait for memory?

A step that waits for memory reads the weights once, whatever the batch: its time hardly grows with the batch. A
compute-bound step takes twice as long for twice the batch. So the slope of log(time per token) over log(batch) tells
the two apart without knowing the device; the device's ridge (FLOP/s over bandwidth) says at which batch it would turn.
"""

import numpy as np

from capacity.devices import ridge_batch
from forebay.review.finding import Answer, Case, Document, Finding, rounded, share
from forebay.review.samples import Numbers

FLAT, STEEP = 0.3, 0.7
KV_FULL, PREEMPTED, ACCEPTED = 0.9, 0.05, 0.3
# Points with a batch and a token time that a slope needs, and how far the batch must have varied.
POINTS, SPAN = 8, 2.0
DRAFTS = 100


def ask_engines(case: Case) -> Answer:
    """Per model: batch, KV cache, slope, regime."""
    answer = Answer({"models": {}})
    for model in case.now.values("vllm:num_requests_running", "model_name"):
        answer.figures["models"][model] = _model(case, model, answer.findings)
    if not answer.figures["models"]:
        answer.figures["why_unknown"] = "Prometheus has no vLLM metrics (vllm:* or ray_vllm_*): scrape the engines"
    return answer


def _model(case: Case, model: str, findings: list[Finding]) -> Document:
    now = case.now

    def mine(**labels: str) -> bool:
        return labels.get("model_name") == model

    engines = max(1, len([one for one in now.series["vllm:num_requests_running"] if mine(**one.labels)]))
    batch = now.gauge("vllm:num_requests_running", mine) / engines
    busy = batch[batch > 0]
    usage = now.gauge("vllm:kv_cache_usage_perc", mine) / engines
    finished = now.sum("vllm:request_success_total", mine)
    preempted = share(now.sum("vllm:num_preemptions_total", mine), finished)
    seconds, tokens = (now.rate(f"vllm:inter_token_latency_seconds_{part}", mine) for part in ("sum", "count"))
    slope = _slope(batch, seconds, tokens)
    kv_peak = float(np.nanmax(usage)) if np.isfinite(usage).any() else None
    mean = float(busy.mean()) if len(busy) else None
    ridge = None if case.device is None else ridge_batch(case.device)
    regime, why = _regime(slope, mean, ridge, kv_peak, preempted)
    figures: Document = {
        "regime": regime,
        "why": why,
        "batch_mean": rounded(mean, 2),
        "batch_peak": rounded(float(busy.max()), 2) if len(busy) else None,
        "waiting_mean": rounded(float(np.nanmean(now.gauge("vllm:num_requests_waiting", mine))), 2),
        "kv_usage_mean": rounded(float(np.nanmean(usage))) if np.isfinite(usage).any() else None,
        "kv_usage_peak": rounded(kv_peak),
        "preemptions_per_request": rounded(preempted),
        "seconds_per_token": rounded(share(float(seconds.sum()), float(tokens.sum())), 5),
        "slope": rounded(slope, 3),
        "ridge_batch": rounded(ridge, 1),
        "prefix_hits": rounded(
            share(now.sum("vllm:prefix_cache_hits_total", mine), now.sum("vllm:prefix_cache_queries_total", mine))
        ),
    }
    _kv(findings, model, kv_peak, preempted)
    drafted = now.sum("vllm:spec_decode_num_draft_tokens_total", mine)
    if drafted >= DRAFTS:
        accepted = now.sum("vllm:spec_decode_num_accepted_tokens_total", mine) / drafted
        figures["drafts_accepted"] = rounded(accepted)
        if accepted < ACCEPTED:
            findings.append(
                Finding(
                    "speculation_does_not_pay",
                    "problem",
                    f"{model} accepts {accepted:.0%} of its drafted tokens",
                    {"drafted": rounded(drafted, 1), "accepted": rounded(accepted)},
                    "Draft fewer tokens or turn speculation off: below its cost a draft slows every step.",
                )
            )
    return figures


def _slope(batch: Numbers, seconds: Numbers, tokens: Numbers) -> float | None:
    """Of log(seconds per token) over log(batch), each point with the weight of its tokens."""
    there = (batch > 0) & (tokens > 0) & (seconds > 0)
    if there.sum() < POINTS or batch[there].max() < SPAN * batch[there].min():
        return None
    x, y = np.log(batch[there]), np.log(seconds[there] / tokens[there])
    weights = tokens[there] / tokens[there].sum()
    x, y = x - (weights * x).sum(), y - (weights * y).sum()
    spread = float((weights * x * x).sum())
    return float((weights * x * y).sum()) / spread if spread > 1e-6 else None


def _regime(
    slope: float | None, batch: float | None, ridge: float | None, kv_peak: float | None, preempted: float | None
) -> tuple[str, str]:
    if (kv_peak or 0.0) >= KV_FULL or (preempted or 0.0) > PREEMPTED:
        return "kv-bound", "the KV cache is full before anything else is: the batch cannot grow"
    if batch is None:
        return "idle", "nothing was running at any look"
    if slope is not None and slope >= STEEP:
        return "compute-bound", f"time per token grows with the batch (slope {slope:.2f}): more tokens need more GPUs"
    if slope is not None and slope <= FLAT:
        return (
            "memory-bound",
            f"time per token hardly grows with the batch (slope {slope:.2f}): larger batches are free",
        )
    if ridge is not None:
        if batch < ridge / 2:
            return "memory-bound", f"a batch of {batch:.1f} is far below the device's ridge of {ridge:.0f}"
        return "compute-bound" if batch >= ridge else "mixed", f"a batch of {batch:.1f}, the ridge is {ridge:.0f}"
    if slope is not None:
        return "mixed", f"slope {slope:.2f} of time per token over batch"
    return "unknown", "the batch hardly varied; name the device with --gpu"


def _kv(findings: list[Finding], model: str, peak: float | None, preempted: float | None) -> None:
    if (preempted or 0.0) > PREEMPTED:
        findings.append(
            Finding(
                "kv_cache_too_small",
                "problem",
                f"{model} throws sequences out of its batch: {preempted:.2f} preemptions per finished request",
                {"kv_usage_peak": rounded(peak), "preemptions_per_request": rounded(preempted)},
                "Lower max_num_seqs or queue.max_inflight, give the KV cache more memory, or add a replica.",
            )
        )
    elif (peak or 0.0) >= KV_FULL:
        findings.append(
            Finding(
                "kv_cache_full",
                "note",
                f"the KV cache of {model} was {peak:.0%} full at its peak",
                {"kv_usage_peak": rounded(peak)},
                "There is no room for a larger batch or longer prompts: forebay plan kv says what fits.",
            )
        )
