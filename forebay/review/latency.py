"""First tokens and further tokens: how late, later than before, and what to check, in order.

TTFT: prompt lengths, share of hits, attention backend, long prompts that take the prefill for themselves. TPOT:
effective batch, residency in the KV cache, quantization, the memory-bound regime.
"""

from collections.abc import Mapping
from typing import Any

from forebay.review.finding import TIERS, Answer, Case, Document, Finding, rounded, share
from forebay.review.samples import Histogram, Samples

# Two stretches are compared where each has so many values; "up" is this factor and this many seconds at the same time.
VALUES, FACTOR = 100, 1.5
UP_TTFT_S, UP_TPOT_S = 0.1, 0.005
# A few long prompts: at most this share of requests (more where one tenant sends them). Long: so many times the
# median, and at least so many tokens; together at least this share of all prompt tokens. So extreme that nothing else
# need show, or less extreme while people wait.
PROMPTS, FEW, FEW_OF_TENANT = 30, 0.34, 0.5
EXTREME = (16.0, 1000.0, 0.75)
MODERATE = (8.0, 500.0, 0.5)
WAIT_S, LATE_FACTOR, LATE_S = 0.5, 4.0, 0.3
TENANT_SHARE, TENANT_FACTOR = 0.5, 4.0


def ask_latency(case: Case, models: Mapping[str, Document]) -> Answer:
    """Figures of both, their checks, and findings."""
    answer = Answer({})
    long = _long_prompts(case)
    first = _compared(case, "forebay_time_to_first_token_seconds", UP_TTFT_S)
    first["checks"] = [_lengths(case), _hits(case), _backend(case), long]
    token = _compared(case, "forebay_time_per_output_token_seconds", UP_TPOT_S)
    token["checks"] = _token_checks(case, models)
    answer.figures = {"ttft": first, "tpot": token}
    if long["verdict"] == "suspect":
        answer.findings.append(_monopoliser(long))
    for name, what in (("ttft", "Time to the first token"), ("tpot", "Time per output token")):
        found = answer.figures[name]
        if found["up"]:
            suspects = [check["check"] for check in found["checks"] if check["verdict"] == "suspect"]
            answer.findings.append(
                Finding(
                    f"{name}_up",
                    "problem",
                    f"{what} (p95) went up from {found['before']['p95']:.3f} s to {found['p95']:.3f} s",
                    {"p95": found["p95"], "before": found["before"]["p95"], "suspects": suspects},
                    f"In order: {', '.join(check['check'] for check in found['checks'])}.",
                    "long_prompts_monopolise" if name == "ttft" and long["verdict"] == "suspect" else None,
                )
            )
    return answer


def _compared(case: Case, name: str, least: float) -> Document:
    def asked(**labels: str) -> bool:
        return not labels.get("cache", "").startswith("hit")

    now = case.now.histogram(name, asked)
    figures: Document = {"count": rounded(now.count, 1), **_percentiles(now), "before": None, "up": False}
    if case.before is not None:
        before = case.before.histogram(name, asked)
        if min(now.count, before.count) >= VALUES:
            figures["before"] = _percentiles(before)
            old, new = figures["before"]["p95"], figures["p95"]
            figures["up"] = new >= FACTOR * old and new - old >= least
    return figures


def _percentiles(histogram: Histogram) -> Document:
    return {f"p{round(100 * q)}": rounded(histogram.quantile(q)) for q in (0.5, 0.95, 0.99)}


def lengths(samples: Samples) -> Histogram:
    """Prompt lengths in tokens: as the gateway was told, else as the engines count them."""
    own = samples.histogram("forebay_prompt_tokens")
    return own if own.count > 0 else samples.histogram("vllm:request_prompt_tokens")


def _lengths(case: Case) -> Document:
    now = lengths(case.now)
    before = None if case.before is None else lengths(case.before)
    check: Document = {
        "check": "prompt lengths",
        "p50": rounded(now.quantile(0.5), 1),
        "p95": rounded(now.quantile(0.95), 1),
    }
    check |= {"mean": rounded(now.mean, 1), "mean_before": rounded(None if before is None else before.mean, 1)}
    longer = now.mean is not None and check["mean_before"] and now.mean >= FACTOR * check["mean_before"]
    return check | {"verdict": "suspect" if longer else "fine"}


def _hits(case: Case) -> Document:
    now, before = _hit_share(case.now), None if case.before is None else _hit_share(case.before)
    fewer = now is not None and before is not None and before - now >= 0.1
    return {
        "check": "share of hits",
        "now": rounded(now),
        "before": rounded(before),
        "verdict": "suspect" if fewer else "fine",
    }


def _hit_share(samples: Samples) -> float | None:
    counts = samples.increase("forebay_requests_total", ("cache",))
    hits = sum(count for (cache,), count in counts.items() if cache.startswith("hit"))
    return share(hits, hits + counts.get(("miss",), 0.0))


def _backend(case: Case) -> Document:
    """What the engines say they run, else what the configuration asks for."""
    said = {
        value
        for one in case.now.series.get("vllm:cache_config_info", ())
        for name, value in one.labels.items()
        if name in ("effective_attention_backend", "attention_backend") and value not in ("", "None")
    }
    asked: set[Any] = set()
    if case.config is not None:
        asked = {t.engine.get("attention_backend") for _, t in case.config.tiers.items()} - {None}
    known = sorted(map(str, said or asked))
    return {
        "check": "attention backend",
        "seen": known or None,
        "verdict": "fine" if known else "unknown: the engine's log names it at its start",
    }


def _long_prompts(case: Case) -> Document:
    """A few prompts that are most of the tokens, while others wait."""
    all_lengths = lengths(case.now)
    median = all_lengths.quantile(0.5)
    check: Document = {"check": "long prompts monopolising", "median": rounded(median, 1), "verdict": "fine"}
    if median is None or all_lengths.count < PROMPTS:
        return check | {"verdict": "unknown: too few prompts"}
    found = [_beyond(all_lengths, max(factor * median, tokens)) for factor, tokens, _ in (MODERATE, EXTREME)]
    tenant = _tenant(case.now)
    few = FEW if tenant is None else FEW_OF_TENANT
    wait = case.now.histogram("forebay_queue_wait_seconds").quantile(0.95) or 0.0
    first = case.now.histogram("forebay_time_to_first_token_seconds", lambda **one: one.get("tier") in TIERS)
    p50, p95 = first.quantile(0.5) or 0.0, first.quantile(0.95) or 0.0
    felt = wait >= WAIT_S or (p95 >= LATE_S and p95 >= LATE_FACTOR * p50)
    moderate = found[0][0] <= few and found[0][1] >= MODERATE[2] and felt
    extreme = found[1][0] <= few and found[1][1] >= EXTREME[2]
    requests, tokens = found[1] if extreme else found[0]
    check |= {
        "share_of_requests": rounded(requests),
        "share_of_prompt_tokens": rounded(tokens),
        "p99": rounded(all_lengths.quantile(0.99), 1),
        "queue_wait_p95": rounded(wait),
        "ttft_p50": rounded(p50),
        "ttft_p95": rounded(p95),
        "tenant": tenant,
    }
    return check | {"verdict": "suspect" if moderate or extreme else "fine"}


def _beyond(histogram: Histogram, length: float) -> tuple[float, float]:
    """Shares of requests and of tokens in prompts longer than `length`.

    A bucket's tokens are taken as its geometric middle, and the highest buckets get what the sum leaves.
    """
    count = tokens = seen = 0.0
    low = 0.0
    for high, number in zip(histogram.bounds, histogram.counts, strict=True):
        middle = (max(low, 1.0) * high) ** 0.5 if high != float("inf") else max(low, 1.0) * 1.5
        if low >= length or low < length < middle:
            count += number
            tokens += number * middle
        else:
            seen += number * middle
        low = high
    if histogram.total > seen:
        tokens = histogram.total - seen if count else 0.0
    whole = tokens + seen
    return count / histogram.count, tokens / whole if whole else 0.0


def _tenant(samples: Samples) -> Document | None:
    """The tenant with most of the tokens, where its requests are far longer than the others'."""
    tokens = samples.increase("forebay_tenant_tokens_total", ("tenant",))
    requests = samples.increase("forebay_tenant_requests_total", ("tenant",))
    whole = sum(tokens.values())
    if not whole:
        return None
    name, most = max(tokens.items(), key=lambda item: item[1])
    others = share(whole - most, sum(requests.values()) - requests.get(name, 0.0))
    own = share(most, requests.get(name, 0.0))
    if own is None or most / whole < TENANT_SHARE or (others or 0.0) * TENANT_FACTOR > own:
        return None
    return {
        "name": name[0],
        "share_of_tokens": rounded(most / whole),
        "share_of_requests": rounded(requests.get(name, 0.0) / sum(requests.values())),
        "tokens_per_request": rounded(own, 1),
        "of_others": rounded(others, 1),
    }


def _monopoliser(check: Document) -> Finding:
    tenant = check["tenant"]
    who = "" if tenant is None else f", most of them of tenant {tenant['name']}"
    return Finding(
        "long_prompts_monopolise",
        "problem",
        f"{check['share_of_requests']:.0%} of the requests bring {check['share_of_prompt_tokens']:.0%} of the prompt "
        f"tokens{who}",
        {name: value for name, value in check.items() if name not in ("check", "verdict")},
        "Chunked prefill with a lower max_num_batched_tokens, tokens_per_minute or a lower weight for the tenant, a "
        "priority of its own, or prefill apart from decode.",
    )


def _token_checks(case: Case, models: Mapping[str, Document]) -> list[Document]:
    engines = list(models.values())
    quantized = None
    if case.config is not None:
        quantized = {name: tier.engine.get("quantization") for name, tier in case.config.tiers.items()}
    full = any(
        (one["kv_usage_peak"] or 0.0) >= 0.9 or (one["preemptions_per_request"] or 0.0) > 0.05 for one in engines
    )
    bound = any(one["regime"] == "compute-bound" for one in engines)
    return [
        {
            "check": "effective batch",
            "mean": {name: one["batch_mean"] for name, one in models.items()},
            "verdict": "suspect" if bound else "fine" if engines else "unknown: no engine metrics",
        },
        {
            "check": "residency in the KV cache",
            "peak": {name: one["kv_usage_peak"] for name, one in models.items()},
            "verdict": "suspect" if full else "fine" if engines else "unknown: no engine metrics",
        },
        {
            "check": "quantization",
            "configured": quantized,
            "verdict": "unknown: give --config" if quantized is None else "fine",
        },
        {
            "check": "memory-bound regime",
            "regime": {name: one["regime"] for name, one in models.items()},
            "verdict": "fine" if engines else "unknown: no engine metrics",
        },
    ]
