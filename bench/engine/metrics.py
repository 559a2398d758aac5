"""The scripted engine's /metrics, under vLLM's names: what it can know of itself, and what follows from its script."""

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# Drafted tokens per verification, where a share of them is accepted.
DRAFTED = 4
# Tokens of the KV cache that is taken to be there, and prompts whose prefix is remembered.
CACHE_TOKENS, PROMPTS = 65_536, 1000

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
_TOKENS = tuple(float(scale * step) for scale in (1, 10, 100, 1000, 10000) for step in (1, 2, 5))
HISTOGRAMS: Mapping[str, tuple[float, ...]] = {
    "time_to_first_token_seconds": _SECONDS,
    "inter_token_latency_seconds": _SECONDS,
    "e2e_request_latency_seconds": _SECONDS,
    "request_queue_time_seconds": _SECONDS,
    "request_prefill_time_seconds": _SECONDS,
    "request_decode_time_seconds": _SECONDS,
    "request_prompt_tokens": _TOKENS,
    "request_generation_tokens": _TOKENS,
    "iteration_tokens_total": _TOKENS,
}


class Spread:
    """Values in buckets; a bound belongs to its bucket."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        """Add one."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str) -> Iterable[str]:
        """In the text exposition."""
        yield f"# TYPE {name} histogram"
        seen = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            seen += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {seen}'
        yield f"{name}_sum{{{labels}}} {self.total}"
        yield f"{name}_count{{{labels}}} {seen}"


@dataclass
class Counts:
    """What is counted over the engine's life. `acceptance`: share of drafted tokens it accepts; None drafts none."""

    acceptance: float | None = None
    received: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """Requests that got a status, by route, method and status."""
    finished: Counter[str] = field(default_factory=Counter)
    """Inference requests that ended, by finish reason; abort is a client that left."""
    prompt_tokens: int = 0
    known_tokens: int = 0
    """Of the prompts, those of a prompt that was read before: what a prefix cache would have."""
    generation_tokens: int = 0
    held_tokens: int = 0
    """Prompts and answers of the requests that run."""
    spreads: dict[str, Spread] = field(default_factory=lambda: {n: Spread(b) for n, b in HISTOGRAMS.items()})
    _prompts: "OrderedDict[bytes, None]" = field(default_factory=OrderedDict)

    def observe(self, name: str, value: float) -> None:
        """One value of a histogram."""
        self.spreads[name].observe(value)

    def read(self, prompt: bytes, tokens: int) -> None:
        """A prompt of so many tokens."""
        self.prompt_tokens += tokens
        self.observe("request_prompt_tokens", tokens)
        if prompt in self._prompts:
            self.known_tokens += tokens
        self._prompts[prompt] = None
        self._prompts.move_to_end(prompt)
        if len(self._prompts) > PROMPTS:
            self._prompts.popitem(last=False)

    def timed(self, queued: float, first: float, whole: float, tokens: int) -> None:
        """A request that got its answer: seconds in line, to the first token and in all, from its arrival."""
        self.observe("request_queue_time_seconds", queued)
        self.observe("time_to_first_token_seconds", first)
        self.observe("request_prefill_time_seconds", first - queued)
        self.observe("e2e_request_latency_seconds", whole)
        self.observe("request_decode_time_seconds", whole - first)
        self.observe("request_generation_tokens", tokens)
        if tokens > 1:
            self.observe("inter_token_latency_seconds", (whole - first) / (tokens - 1))


def render(counts: Counts, model: str, running: int, waiting: int) -> bytes:
    """The text exposition."""
    labels = f'engine="0",model_name="{model}"'
    gauges = {
        "num_requests_running": running,
        "num_requests_waiting": waiting,
        "kv_cache_usage_perc": min(1.0, counts.held_tokens / CACHE_TOKENS),
    }
    totals: dict[str, float] = {
        "num_preemptions_total": 0,
        "prompt_tokens_total": counts.prompt_tokens,
        "generation_tokens_total": counts.generation_tokens,
        "prefix_cache_queries_total": counts.prompt_tokens,
        "prefix_cache_hits_total": counts.known_tokens,
    }
    if counts.acceptance is not None:
        drafts = counts.generation_tokens / (1 + DRAFTED * counts.acceptance)
        totals["spec_decode_num_drafts_total"] = drafts
        totals["spec_decode_num_draft_tokens_total"] = drafts * DRAFTED
        totals["spec_decode_num_accepted_tokens_total"] = drafts * DRAFTED * counts.acceptance
    lines = []
    for kind, values in (("gauge", gauges), ("counter", totals)):
        for name, value in values.items():
            lines += [f"# TYPE vllm:{name} {kind}", f"vllm:{name}{{{labels}}} {value}"]
    lines.append("# TYPE vllm:prompt_tokens_by_source_total counter")
    sources = {"local_compute": counts.prompt_tokens - counts.known_tokens, "local_cache_hit": counts.known_tokens}
    lines += [f'vllm:prompt_tokens_by_source_total{{{labels},source="{one}"}} {n}' for one, n in sources.items()]
    lines.append("# TYPE vllm:request_success_total counter")
    reasons = {"stop", "length", "abort", "error", *counts.finished}
    for reason in sorted(reasons):
        ended = f'engine="0",finished_reason="{reason}",model_name="{model}"'
        lines.append(f"vllm:request_success_total{{{ended}}} {counts.finished[reason]}")
    for name, spread in counts.spreads.items():
        lines += spread.lines(f"vllm:{name}", labels)
    lines.append("# TYPE http_requests_total counter")
    lines += [
        f'http_requests_total{{handler="{route}",method="{method}",status="{status // 100}xx"}} {count}'
        for (route, method, status), count in sorted(counts.received.items())
    ]
    return ("\n".join(lines) + "\n").encode()
