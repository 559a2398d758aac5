"""The scripted engine's /metrics, under vLLM's names."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Counts:
    """What is counted over the engine's life."""

    received: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """Requests that got a status, by route, method and status."""
    finished: Counter[str] = field(default_factory=Counter)
    """Inference requests that ended, by finish reason; abort is a client that left."""
    prompt_tokens: int = 0
    generation_tokens: int = 0


def render(counts: Counts, model: str, running: int, waiting: int) -> bytes:
    """The text exposition."""
    at = f'{{engine="0",model_name="{model}"}}'
    lines = [
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{at} {running}",
        "# TYPE vllm:num_requests_waiting gauge",
        f"vllm:num_requests_waiting{at} {waiting}",
        "# TYPE vllm:kv_cache_usage_perc gauge",
        f"vllm:kv_cache_usage_perc{at} {min(1.0, running / 256)}",
        "# TYPE vllm:num_preemptions_total counter",
        f"vllm:num_preemptions_total{at} 0",
        "# TYPE vllm:prompt_tokens_total counter",
        f"vllm:prompt_tokens_total{at} {counts.prompt_tokens}",
        "# TYPE vllm:generation_tokens_total counter",
        f"vllm:generation_tokens_total{at} {counts.generation_tokens}",
        "# TYPE vllm:request_success_total counter",
    ]
    reasons = {"stop", "length", "abort", "error", *counts.finished}
    for reason in sorted(reasons):
        labels = f'engine="0",finished_reason="{reason}",model_name="{model}"'
        lines.append(f"vllm:request_success_total{{{labels}}} {counts.finished[reason]}")
    lines.append("# TYPE http_requests_total counter")
    lines += [
        f'http_requests_total{{handler="{route}",method="{method}",status="{status // 100}xx"}} {count}'
        for (route, method, status), count in sorted(counts.received.items())
    ]
    return ("\n".join(lines) + "\n").encode()
