"""Stored entries and questions for measuring the cache: real texts and vectors, and many made beside them."""

import gzip
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from cache.guard.lexicon import lexicon
from cache.guard.making import made_pairs
from core.embedder import Embedding, Encoder, Vector

SEED = 7
# Cosine of a made entry to the real text it stands beside.
BESIDE = (0.75, 0.97)
BATCH = 64
ANSWER = {
    "id": "chatcmpl-0",
    "object": "chat.completion",
    "created": 1_700_000_000,
    "model": "scripted",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "word " * 60}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 12, "completion_tokens": 60, "total_tokens": 72},
}


@dataclass(frozen=True)
class Stored:
    """A question in the cache: its text and its vector."""

    text: str
    embedding: Embedding


@dataclass(frozen=True)
class Mix:
    """What lies in the cache and what is asked then; no asked text is stored."""

    name: str
    stored: Sequence[Stored]
    asked: Sequence[str]


def project_texts() -> list[str]:
    """Every question of the project's own templates, in a fixed order that mixes them."""
    pairs = made_pairs(lexicon(), SEED)
    texts = sorted({text for pair in pairs for text in (pair.a, pair.b)})
    random.Random(SEED).shuffle(texts)
    return texts


def embedded(encoder: Encoder, texts: Sequence[str]) -> list[Stored]:
    """Each text with its vector."""
    found: list[Stored] = []
    for at in range(0, len(texts), BATCH):
        part = texts[at : at + BATCH]
        found += [Stored(text, one) for text, one in zip(part, encoder.encode(part), strict=True)]
    return found


def template_mix(encoder: Encoder, entries: int, real: int, asked: int) -> Mix:
    """`entries` stored questions, `real` of them with the vector of the model; the others are made beside those.

    A made entry has a numbered text and a vector at a random angle to a real one, so that the search has as much to
    tell apart, and the guard as much to read, as with real traffic, without hours of embedding.
    """
    texts = project_texts()
    base = embedded(encoder, texts[asked : asked + min(real, entries)])
    numbers = np.random.default_rng(SEED)
    made = [_beside(base[at % len(base)], at, numbers) for at in range(entries - len(base))]
    return Mix("project templates", [*base, *made], texts[:asked])


def _beside(one: Stored, number: int, numbers: np.random.Generator) -> Stored:
    vector = one.embedding.vector
    cosine = numbers.uniform(*BESIDE)
    across = numbers.normal(size=len(vector)).astype(np.float32)
    across -= (across @ vector) * vector
    across /= np.linalg.norm(across)
    leaning: Vector = (cosine * vector + np.sqrt(1 - cosine**2) * across).astype(np.float32)
    return Stored(f"{one.text} (case {number})", Embedding(leaning / np.linalg.norm(leaning), truncated=False))


def question_mix(encoder: Encoder, stored: int, asked: int) -> Mix:
    """Questions that people asked: from FOREBAY_DATA where that is set, else from the project's templates."""
    data = os.environ.get("FOREBAY_DATA")
    if data is None:
        texts, name = project_texts(), "project templates, all real"
    else:
        lines = gzip.decompress((Path(data) / "cache" / "qqp_gptcache.jsonl.gz").read_bytes()).splitlines()
        rows = [orjson.loads(line) for line in lines]
        texts, name = sorted({row[side] for row in rows for side in ("a", "b")}), "Quora question pairs"
        random.Random(SEED).shuffle(texts)
    stored = min(stored, len(texts) - asked)
    return Mix(name, embedded(encoder, texts[asked : asked + stored]), texts[:asked])
