"""What the review asks a Prometheus for."""

import time
from collections.abc import Callable
from typing import Any

import httpx

from core.errors import ForebayError
from forebay.review.samples import FORMAT

TIMEOUT = 60.0
# Points of the grid, and the least seconds between two.
POINTS, LEAST_STEP = 1000, 1.0

GATEWAY = (
    "forebay_requests_total",
    "forebay_request_duration_seconds_(sum|count)",
    "forebay_time_to_first_token_seconds_(bucket|sum)",
    "forebay_time_per_output_token_seconds_(bucket|sum)",
    "forebay_cache_lookups_total",
    "forebay_cache_similarity_(bucket|sum)",
    "forebay_cache_(writes_skipped|shadow)_total",
    "forebay_cache_threshold",
    "forebay_router_(threshold|drift)",
    "forebay_router_complexity_(bucket|sum)",
    "forebay_router_(decisions|misrouted)_total",
    "forebay_saved_(tokens|cost)_total",
    "forebay_queue_wait_seconds_(bucket|sum|count)",
    "forebay_(inflight|inflight_limit|queue_depth|replicas_up|token_price)",
    "forebay_shed_total",
    "forebay_tokens_total",
    "forebay_prompt_tokens_(bucket|sum)",
    "forebay_tenant_(requests|tokens)_total",
    "forebay_dependency_breaker_state",
)
ENGINES = (
    "num_requests_(running|waiting)",
    "kv_cache_usage_perc",
    "num_preemptions_total",
    "request_success_total",
    "generation_tokens_total",
    "inter_token_latency_seconds_(sum|count)",
    "spec_decode_num_(draft|accepted)_tokens_total",
    "prefix_cache_(queries|hits)_total",
    "request_prompt_tokens_(bucket|sum)",
    "cache_config_info",
)


def export(url: str, since: float, namespace: str | None, note: Callable[[str], None]) -> dict[str, Any]:
    """The raw answers for twice `since` seconds up to this moment. Raises ForebayError where the server does not."""
    step = max(LEAST_STEP, round(since / POINTS))
    end = time.time()
    start = end - 2 * since
    names = [*GATEWAY, *(f"(ray_)?vllm[:_]{name}" for name in ENGINES)]
    answers = []
    with httpx.Client(base_url=url.rstrip("/"), timeout=TIMEOUT, trust_env=False) as client:
        for place, name in enumerate(names):
            note(f"asking {url}: {place + 1} of {len(names)}")
            where = "" if namespace is None else f',namespace="{namespace}"'
            answers.append(_range(client, f'{{__name__=~"{name}"{where}}}', start, end, step))
    note("")
    return {"format": FORMAT, "start": start, "end": end, "step": step, "answers": answers}


def _range(client: httpx.Client, query: str, start: float, end: float, step: float) -> dict[str, Any]:
    asked = {"query": query, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
    try:
        answer = client.post("/api/v1/query_range", data=asked)
        document: dict[str, Any] = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise ForebayError(f"{client.base_url}: {type(error).__name__}: {error}") from None
    if answer.status_code != 200 or document.get("status") != "success":
        raise ForebayError(f"{client.base_url} refuses {query}: {document.get('error', answer.status_code)}")
    return document
