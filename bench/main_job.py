"""The main job, measured through the official client against a running gateway.

    python -m bench.main_job --url http://127.0.0.1:8080

prints one JSON document: a streamed answer from each tier, an exact hit against its miss, paraphrases and one-word
traps of stored questions, and easy and hard prompts under `model="auto"`. Every run asks under its own system prompt,
so that it starts from empty partitions.
"""

import argparse
import json
import time
import uuid
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from openai import OpenAI

from bench.questions import EASY_AND_HARD, PARAPHRASES, TRAPS


@dataclass(frozen=True)
class Answer:
    """One answer: text, what the gateway decided, seconds until complete, tokens."""

    text: str
    cache: str
    tier: str
    finish_reason: str | None
    seconds: float
    completion_tokens: int | None


class MainJob:
    """Asks a gateway as a user would. `system` separates this run's cache partitions from others."""

    def __init__(self, url: str, api_key: str = "unused") -> None:
        self._client = OpenAI(base_url=f"{url.rstrip('/')}/v1", api_key=api_key, max_retries=0, timeout=180)
        self._system = f"You answer briefly. (run {uuid.uuid4().hex[:8]})"

    def ask(self, prompt: str, model: str = "auto", **extra: Any) -> Answer:
        """The answer without streaming."""
        started = time.perf_counter()
        raw = self._client.chat.completions.with_raw_response.create(
            model=model, messages=self._messages(prompt), temperature=0, **extra
        )
        completion = raw.parse()
        seconds = time.perf_counter() - started
        choice, usage = completion.choices[0], completion.usage
        return Answer(
            choice.message.content or "",
            raw.headers["x-forebay-cache"],
            raw.headers["x-forebay-tier"],
            choice.finish_reason,
            seconds,
            usage.completion_tokens if usage else None,
        )

    def stream(self, prompt: str, model: str) -> Answer:
        """The answer streamed, with usage asked for."""
        started = time.perf_counter()
        raw = self._client.chat.completions.with_raw_response.create(
            model=model,
            messages=self._messages(prompt),
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        text, finish, tokens = "", None, None
        for chunk in raw.parse():
            if chunk.usage:
                tokens = chunk.usage.completion_tokens
            for choice in chunk.choices:
                text += choice.delta.content or ""
                finish = choice.finish_reason or finish
        seconds = time.perf_counter() - started
        return Answer(text, raw.headers["x-forebay-cache"], raw.headers["x-forebay-tier"], finish, seconds, tokens)

    def _messages(self, prompt: str) -> list[Any]:
        return [{"role": "system", "content": self._system}, {"role": "user", "content": prompt}]


def exact_hit(job: MainJob, prompts: list[str]) -> dict[str, Any]:
    """Each prompt asked twice; the ratio of the median times, and how many second answers were exact hits."""
    first = [job.ask(prompt) for prompt in prompts]
    again = [job.ask(prompt) for prompt in prompts]
    return {
        "asked": len(prompts),
        "complete": sum(answer.finish_reason == "stop" for answer in first),
        "hit_exact": sum(answer.cache == "hit-exact" for answer in again),
        "same_text": sum(a.text == b.text for a, b in zip(first, again, strict=True)),
        "times_faster": median(a.seconds for a in first) / median(a.seconds for a in again),
    }


def semantic(job: MainJob, pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """The first of each pair stored, the second asked: how many were semantic hits, and which."""
    stored = [job.ask(a) for a, _ in pairs]
    asked = [job.ask(b) for _, b in pairs]
    hits = [b for (_, b), answer in zip(pairs, asked, strict=True) if answer.cache == "hit-semantic"]
    return {
        "asked": len(pairs),
        "complete": sum(answer.finish_reason == "stop" for answer in stored),
        "hit_semantic": len(hits),
        "hits": hits,
    }


def routing(job: MainJob, pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """Easy and hard prompts under `auto`: how many went to the small and to the frontier tier."""
    wanted = [(prompt, tier) for pair in pairs for prompt, tier in zip(pair, ("small", "frontier"), strict=True)]
    wrong = [prompt for prompt, tier in wanted if job.ask(prompt, max_tokens=1).tier != tier]
    return {"asked": len(wanted), "right": len(wanted) - len(wrong), "wrong": wrong}


def main() -> None:
    """Run everything and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    url = parser.parse_args().url
    job = MainJob(url)
    streamed = {tier: asdict(job.stream("Why is the sky blue?", tier)) for tier in ("small", "frontier")}
    report = {
        "stream": streamed,
        "exact": exact_hit(MainJob(url), [a for a, _ in PARAPHRASES[:10]]),
        "paraphrases": semantic(MainJob(url), PARAPHRASES),
        "traps": semantic(MainJob(url), TRAPS),
        "routing": routing(MainJob(url), EASY_AND_HARD),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
