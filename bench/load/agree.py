"""The same prompts to two endpoints: how often the answers are the same, and how alike they are where they are not."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from math import sqrt
from typing import Any

import httpx
import numpy as np
from pydantic import JsonValue

from bench.load.target import PATHS, Target
from core.errors import ForebayError

# Resamples of the bootstrap, and its seed: the same answers give the same interval.
RESAMPLES, SEED = 2000, 1
Z = 1.959963984540054


@dataclass(frozen=True)
class Endpoint:
    """One side: where, and which model."""

    target: Target
    model: str


@dataclass(frozen=True)
class Pair:
    """The answers to one prompt; `again` is A's second one, None where it was not asked."""

    a: str
    b: str
    again: str | None


def alike(a: str, b: str) -> float:
    """From 0 to 1: the share of words, in order, that two answers have in common."""
    return SequenceMatcher(None, a.split(), b.split(), autojunk=False).ratio()


def same_until(a: str, b: str) -> int:
    """Words before the answers part."""
    left, right = a.split(), b.split()
    return next(
        (place for place, (x, y) in enumerate(zip(left, right, strict=False)) if x != y), min(len(left), len(right))
    )


def wilson(hits: int, count: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson); `count` at least 1."""
    share = hits / count
    middle = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    half = Z / (1 + Z**2 / count) * sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def verdict(pairs: Sequence[Pair], vectors: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The document: at least one pair. `vectors`: unit vectors of the answers, where they were embedded."""
    found = _figures([(one.a, one.b) for one in pairs], vectors)
    again = [(one.a, one.again) for one in pairs if one.again is not None]
    own = _figures(again, vectors) if again else None
    document: dict[str, Any] = {"prompts": len(pairs), **found, "self": own}
    document["differs_beyond_itself"] = None if own is None else found["exact_ci95"][1] < own["exact_ci95"][0]
    return document


def _figures(pairs: Sequence[tuple[str, str]], vectors: Mapping[str, Any] | None) -> dict[str, Any]:
    same = sum(a == b for a, b in pairs)
    words = np.array([alike(a, b) for a, b in pairs])
    found: dict[str, Any] = {
        "exact": same / len(pairs),
        "exact_ci95": list(wilson(same, len(pairs))),
        "similarity": float(words.mean()),
        "similarity_ci95": _bootstrap(words),
        "parts_after_words": float(np.median([same_until(a, b) for a, b in pairs if a != b]))
        if same < len(pairs)
        else None,
        "words": [float(np.mean([len(side.split()) for side in sides])) for sides in zip(*pairs, strict=True)],
    }
    if vectors is not None:
        cosines = np.array([float(vectors[a] @ vectors[b]) for a, b in pairs])
        found |= {"cosine": float(cosines.mean()), "cosine_ci95": _bootstrap(cosines)}
    return found


def _bootstrap(values: Any) -> list[float]:
    rng = np.random.default_rng(SEED)
    means = rng.choice(values, (RESAMPLES, len(values))).mean(axis=1)
    low, high = np.percentile(means, (2.5, 97.5))
    return [float(low), float(high)]


async def asked(
    a: Endpoint,
    b: Endpoint,
    prompts: Sequence[Sequence[Mapping[str, JsonValue]]],
    *,
    extra: Mapping[str, JsonValue],
    concurrency: int,
    baseline: bool,
    timeout_s: float,
) -> list[Pair]:
    """Every prompt to both, in an order drawn for each; with `baseline` twice to A.

    Raises ForebayError for an answer that is none.
    """
    gate = asyncio.Semaphore(concurrency)
    shuffle = random.Random(SEED)  # an order, not a secret
    clients = [
        httpx.AsyncClient(headers=dict(side.target.headers), timeout=timeout_s, verify=side.target.verify)
        for side in (a, b)
    ]

    async def one(messages: Sequence[Mapping[str, JsonValue]], order: list[int]) -> Pair:
        async with gate:
            texts: dict[int, str] = {}
            for side in order:
                endpoint, client = ((a, clients[0]), (b, clients[1]))[side % 2]
                texts[side] = await _answer(client, endpoint, messages, extra)
            return Pair(texts[0], texts[1], texts.get(2))

    try:
        # Side 2 is A once more.
        sides = [0, 1, 2] if baseline else [0, 1]
        orders = [shuffle.sample(sides, len(sides)) for _ in prompts]
        return list(await asyncio.gather(*(one(text, order) for text, order in zip(prompts, orders, strict=True))))
    finally:
        for client in clients:
            await client.aclose()


async def _answer(
    client: httpx.AsyncClient,
    side: Endpoint,
    messages: Sequence[Mapping[str, JsonValue]],
    extra: Mapping[str, JsonValue],
) -> str:
    body: dict[str, JsonValue] = {"model": side.model, "temperature": 0, "seed": 1, **extra}
    if side.target.kind == "chat":
        body["messages"] = [dict(one) for one in messages]
    else:
        body["prompt"] = "\n".join(str(one["content"]) for one in messages)
    url = side.target.base + PATHS[side.target.kind]
    try:
        reply = await client.post(url, json=body)
        choice: Any = reply.json()["choices"][0] if reply.status_code == 200 else None
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise ForebayError(f"{url}: {type(error).__name__}: {error}") from None
    if choice is None:
        raise ForebayError(f"{url} answers {reply.status_code}: {reply.text[:200]}")
    return str((choice.get("message") or {}).get("content") or choice.get("text") or "")
