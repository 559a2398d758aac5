"""Routing on a running stack: what the gateway counted against what its client saw.

    python -m bench.router_live --url http://127.0.0.1:8080 [--config F] [--log F] [--requests 200] [--cascade] [--json]

Sends mixed prompts in five languages with `model: auto`, half of them streamed, past the cache, and compares: tiers and
reasons in the debug headers with `forebay_router_decisions_total` and `forebay_requests_total`; tokens in the answers
with `forebay_tokens_total`; with `--config` (for the prices) the savings with `forebay_saved_cost_total`; with `--log`
every request's line. `--cascade` wants a stack with the cascade on: a share of 5 to 60 % escalated, and a lower mean
log-probability for those than for the kept ones. Nobody else may use the gateway meanwhile. Exit code 1: a difference.
"""

import argparse
import asyncio
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson

from core.config import Config, load
from router.seed import read_seed

_SAMPLE = re.compile(r"^(forebay_\w+?)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
LEAST, MOST = 0.05, 0.60
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass(frozen=True)
class Seen:
    """One answer as its client saw it. Times in seconds, `first_s` to the first content of a stream."""

    request_id: str
    status: int
    tier: str
    reason: str
    confidence: float | None
    input: int
    output: int
    first_s: float | None
    whole_s: float


@dataclass(frozen=True)
class Check:
    """One comparison."""

    what: str
    client: Any
    gateway: Any
    agrees: bool


def prompts(count: int) -> list[str]:
    """Easy and hard asks in five languages, one half of each, in a fixed order."""
    chosen = random.Random(0)
    asks = read_seed()
    easy, hard = ([ask.prompt for ask in asks if ask.hard is kind] for kind in (False, True))
    found = chosen.sample(easy, count - count // 2) + chosen.sample(hard, count // 2)
    chosen.shuffle(found)
    return found


async def send(client: httpx.AsyncClient, number: int, prompt: str, run: str, max_tokens: int) -> Seen:
    """One request."""
    request_id = f"live-{run}-{number}"
    body: dict[str, Any] = {
        "model": "auto",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    if number % 2:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    headers = {"x-request-id": request_id, "x-forebay-debug": "1", "x-forebay-cache": "off"}
    started, first, usage = time.perf_counter(), None, None
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        if number % 2 and answer.status_code == 200:
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = orjson.loads(line[6:])
                usage = chunk.get("usage") or usage
                if first is None and any(choice["delta"].get("content") for choice in chunk["choices"]):
                    first = time.perf_counter() - started
        else:
            value = orjson.loads(await answer.aread())
            usage = value.get("usage") if answer.status_code == 200 else None
    confidence = answer.headers.get("x-forebay-confidence")
    return Seen(
        request_id,
        answer.status_code,
        answer.headers.get("x-forebay-tier", ""),
        answer.headers.get("x-forebay-route-reason", ""),
        None if confidence is None else float(confidence),
        usage["prompt_tokens"] if usage else 0,
        usage["completion_tokens"] if usage else 0,
        first,
        time.perf_counter() - started,
    )


async def measure(args: argparse.Namespace) -> tuple[list[Seen], Samples]:
    """All answers, and how much every sample of /metrics grew meanwhile."""
    run = f"{int(time.time()):x}"
    places = asyncio.Semaphore(args.concurrency)
    headers = {"authorization": f"Bearer {args.key}"} if args.key else {}
    async with httpx.AsyncClient(
        base_url=args.url.rstrip("/").removesuffix("/v1"), timeout=600, headers=headers
    ) as client:

        async def one(number: int, prompt: str) -> Seen:
            async with places:
                return await send(client, number, prompt, run, args.max_tokens)

        before = await _settled(client, None)
        answers = await asyncio.gather(*(one(n, prompt) for n, prompt in enumerate(prompts(args.requests))))
        after = await _settled(client, total(before, "forebay_requests_total") + len(answers))
    grown = {key: value - before.get(key, 0.0) for key, value in after.items()}
    return list(answers), grown


async def _settled(client: httpx.AsyncClient, requests: float | None) -> Samples:
    """The samples, once so many requests have been counted: that happens after the last byte has gone out."""
    for _ in range(50):
        text = (await client.get("/metrics")).text
        found = {
            (name, frozenset(_LABEL.findall(labels))): float(value) for name, labels, value in _SAMPLE.findall(text)
        }
        if requests is None or total(found, "forebay_requests_total") >= requests:
            break
        await asyncio.sleep(0.1)
    return found


def total(samples: Samples, name: str, **labels: str) -> float:
    """The sum of a metric's samples with these labels."""
    wanted = set(labels.items())
    return sum(value for (own, have), value in samples.items() if own == name and wanted <= have)


def checks(answers: Sequence[Seen], grown: Samples, config: Config | None, log: Path | None) -> list[Check]:
    """Everything that must agree."""
    good = [answer for answer in answers if answer.status == 200]
    found = [Check("answers with status 200", len(good), len(answers), len(good) == len(answers))]
    counted = Counter((answer.tier, answer.reason) for answer in answers if answer.tier)
    for (tier, reason), count in sorted(counted.items()):
        found.append(
            _equal(f"{tier}, {reason}", count, total(grown, "forebay_router_decisions_total", tier=tier, reason=reason))
        )
    found.append(_equal("decisions", len(answers), total(grown, "forebay_router_decisions_total")))
    for tier in ("small", "frontier"):
        own = [answer for answer in good if answer.tier == tier]
        found.append(
            _equal(f"requests of {tier}", len(own), total(grown, "forebay_requests_total", tier=tier, status="200"))
        )
        tokens = total(grown, "forebay_tokens_total", tier=tier, kind="output")
        said = sum(answer.output for answer in own)
        # Answers that were given up cost the small tier tokens that no client sees.
        given_up = tier == "small" and any(answer.reason == "escalated" for answer in answers)
        found.append(Check(f"output tokens of {tier}", said, tokens, tokens >= said if given_up else tokens == said))
    if config is not None:
        found.append(_savings(good, grown, config))
    if log is not None:
        found += _logged(answers, log)
    return found


def _equal(what: str, client: float, gateway: float) -> Check:
    return Check(what, client, gateway, client == gateway)


def _savings(good: Sequence[Seen], grown: Samples, config: Config) -> Check:
    """What the small tier's answers cost less, net of those that were given up: their tokens are in no answer.

    A loss is taken from the savings after it, so up to all of it may be open at the end.
    """
    small, frontier = (dict(config.tiers.items())[name].price for name in ("small", "frontier"))
    own = [answer for answer in good if answer.tier == "small"]
    saved = sum(
        max(0.0, (frontier.input - small.input) * answer.input + (frontier.output - small.output) * answer.output)
        for answer in own
        if answer.reason not in ("override", "fallback")
    )
    given_up = [
        total(grown, "forebay_tokens_total", tier="small", kind=kind) - sum(getattr(answer, kind) for answer in own)
        for kind in ("input", "output")
    ]
    lost = small.input * given_up[0] + small.output * given_up[1]
    counted = total(grown, "forebay_saved_cost_total", source="router")
    most, least, slack = saved / 1e6, (saved - lost) / 1e6, 1e-6 * saved / 1e6 + 1e-12
    return Check("saved cost", round(least, 9), round(counted, 9), least - slack <= counted <= most + slack)


def _logged(answers: Sequence[Seen], log: Path) -> list[Check]:
    lines = {}
    for line in log.read_bytes().splitlines():
        if line.startswith(b"{") and b'"request_id"' in line:
            row = orjson.loads(line)
            lines[row["request_id"]] = row
    mine = [lines.get(answer.request_id, {}) for answer in answers]
    same = sum(
        (row.get("tier"), row.get("route_reason"), row.get("status")) == (answer.tier, answer.reason, answer.status)
        for answer, row in zip(answers, mine, strict=True)
    )
    tokens = sum(row.get("output_tokens") or 0 for row in mine)
    said = sum(answer.output for answer in answers)
    return [
        Check("log lines with tier, reason and status", len(answers), same, same == len(answers)),
        _equal("output tokens in the log", said, tokens),
    ]


def cascade(answers: Sequence[Seen], grown: Samples) -> tuple[dict[str, Any], list[Check]]:
    """What the cascade did: shares, confidences, and what it cost in time."""
    judged = [answer for answer in answers if answer.confidence is not None]
    escalated = [answer for answer in judged if answer.reason == "escalated"]
    kept = [answer for answer in judged if answer.reason != "escalated"]
    share = len(escalated) / len(judged) if judged else 0.0
    means = [
        statistics.fmean(answer.confidence or 0.0 for answer in some) if some else None for some in (escalated, kept)
    ]
    held = total(grown, "forebay_cascade_held_seconds_sum") / max(total(grown, "forebay_cascade_held_seconds_count"), 1)
    result = {
        "judged": len(judged),
        "escalated_share": round(share, 4),
        "mean_logprob_escalated": means[0],
        "mean_logprob_kept": means[1],
        "held_mean_s": round(held, 4),
        "first_token_kept_s": _median(kept),
        "first_token_escalated_s": _median(escalated),
    }
    lower = means[0] is not None and means[1] is not None and means[0] < means[1]
    return result, [
        Check(f"share escalated, {LEAST} to {MOST}", round(share, 4), None, LEAST <= share <= MOST),
        Check("mean log-probability, escalated below kept", means[0], means[1], lower),
    ]


def _median(answers: Sequence[Seen]) -> float | None:
    values = [answer.first_s for answer in answers if answer.first_s is not None]
    return round(statistics.median(values), 4) if values else None


def main() -> int:
    """Prints the comparison, or one JSON document."""
    parser = argparse.ArgumentParser(prog="python -m bench.router_live", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--key", help="client key, where the gateway has keys")
    parser.add_argument("--config", type=Path, metavar="F", help="the gateway's configuration, for the prices")
    parser.add_argument("--log", type=Path, metavar="F", help="the gateway's log")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--cascade", action="store_true", help="the stack has the cascade on")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    answers, grown = asyncio.run(measure(args))
    found = checks(answers, grown, None if args.config is None else load(args.config), args.log)
    shares = {tier: round(count / len(answers), 4) for tier, count in Counter(one.tier for one in answers).items()}
    result: dict[str, Any] = {"requests": len(answers), "shares": shares}
    if args.cascade:
        result["cascade"], more = cascade(answers, grown)
        found += more
    result["checks"] = [{"what": c.what, "client": c.client, "gateway": c.gateway, "agrees": c.agrees} for c in found]
    if args.json:
        print(orjson.dumps(result).decode())
    else:
        print(f"{len(answers)} requests, shares {shares}")
        if args.cascade:
            print("\n".join(f"{name:<28}{value}" for name, value in result["cascade"].items()))
        for check in found:
            print(f"{'agrees ' if check.agrees else 'DIFFERS'}  {check.what:<48} {check.client}  {check.gateway}")
    return 0 if all(check.agrees for check in found) else 1


if __name__ == "__main__":
    sys.exit(main())
