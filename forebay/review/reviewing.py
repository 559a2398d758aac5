"""The whole review of one stretch of time."""

from dataclasses import replace
from datetime import UTC, datetime

from forebay.review.caching import ask_cache
from forebay.review.decoding import ask_engines
from forebay.review.finding import Case, Document, Finding, rounded
from forebay.review.latency import ask_latency
from forebay.review.planning import plan
from forebay.review.queueing import ask_queues
from forebay.review.routing import ask_router
from forebay.review.samples import Samples

# A stretch before is compared with where so many requests fell into it.
COMPARABLE = 100
# More faults than the objective allows, and not one or two.
FAULT_SHARE, FAULTS = 0.01, 10
# Problems that fill a tier's places: waits and refusals follow from them.
CAUSES = ("long_prompts_monopolise", "router_always_frontier")
EFFECTS = ("_waits", "_refuses", "_over_ceiling")


def halves(samples: Samples) -> tuple[Samples, Samples | None]:
    """The second half of the time, and the first where enough happened in it to compare."""
    middle = len(samples.times) // 2
    now, before = samples.part(middle, len(samples.times)), samples.part(0, middle + 1)
    return now, before if before.sum("forebay_requests_total") >= COMPARABLE else None


def review(case: Case, plan_words: str | None = None) -> Document:
    """The document of docs/review.md."""
    cache, router, engines, queues = ask_cache(case), ask_router(case), ask_engines(case), ask_queues(case)
    latency = ask_latency(case, engines.figures["models"])
    answers = {"cache": cache, "router": router, "engines": engines, "latency": latency, "queues": queues}
    findings = _sorted([found for answer in answers.values() for found in answer.findings] + _failing(case))
    served = case.now.sum("forebay_requests_total", lambda **one: one.get("route", "/v1/").startswith("/v1/"))
    return {
        "window": {
            "start": _written(case.now.times[0]),
            "end": _written(case.now.times[-1]),
            "seconds_seen": rounded(case.seconds, 1),
            "requests": rounded(served, 1),
            "rate_rps": rounded(served / case.seconds),
            "compared": case.before is not None,
            "log_lines": None if case.repeats is None else case.repeats.lines,
        },
        "healthy": not any(found.severity == "problem" for found in findings),
        "findings": [found.document() for found in findings],
        "questions": {"cache": cache.figures, "router": router.figures, "decode": engines.figures},
        "latency": latency.figures,
        "queueing": queues.figures,
        "plan": plan(case, answers, plan_words),
    }


def _failing(case: Case) -> list[Finding]:
    """Faults of ours and of the servers, whatever the cause."""
    counts = case.now.increase("forebay_requests_total", ("status",))
    failed = {status: count for (status,), count in counts.items() if status.startswith("5")}
    number, whole = sum(failed.values()), sum(counts.values())
    if number < FAULTS or number / whole < FAULT_SHARE:
        return []
    title = f"{number / whole:.1%} of the requests ended with 5xx"
    evidence = {status: rounded(count, 1) for status, count in sorted(failed.items())}
    advice = "502: a server broke; 503: no replica, or draining; 504: it timed out. See forebay_upstream_errors_total."
    return [Finding("requests_fail", "problem", title, evidence, advice)]


def _sorted(findings: list[Finding]) -> list[Finding]:
    """Problems before notes, causes before what follows from them."""
    codes = [found.code for found in findings]
    cause = next((code for code in CAUSES if code in codes), None)
    told = [
        replace(found, because=cause) if cause is not None and found.code.endswith(EFFECTS) else found
        for found in findings
    ]
    return sorted(told, key=lambda found: (found.severity != "problem", found.because is not None))


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(float(seconds), UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
