"""Small real stand-ins: vectors at a chosen angle, questions and answers."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from cache.controls import Controls
from cache.question import Question, namespace, question
from cache.verdict import Feature, Side, Verdict
from core.config.records import Cache
from core.embedder import Embedding, Vector
from core.request import InferenceRequest

DIM = 8
ON = Controls()


class Agreeing:
    """A verifier that agrees to every pair, or to none; `asked` counts how often it was consulted."""

    def __init__(self, served: bool = True) -> None:
        self.served = served
        self.asked = 0

    def note(self, text: str) -> None:
        pass

    def verify(self, asked: Side, stored: Side) -> Verdict:
        self.asked += 1
        return Verdict(self.served, "agreeing", 1.0 if self.served else 0.0)

    def features(self, asked: Side, stored: Side) -> list[Feature]:
        return []


def direction(name: str, dim: int = DIM) -> Vector:
    """A unit vector that depends on `name` only."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    vector = np.random.default_rng(seed).normal(size=dim).astype(np.float32)
    return vector / np.linalg.norm(vector)


def beside(vector: Vector, similarity: float) -> Vector:
    """A unit vector whose cosine to `vector` is `similarity`."""
    other = direction("a vector to lean towards", len(vector))
    across = other - (other @ vector) * vector
    across /= np.linalg.norm(across)
    leaning = similarity * vector + np.sqrt(max(0.0, 1 - similarity**2)) * across
    return (leaning / np.linalg.norm(leaning)).astype(np.float32)


def embedding(vector: Vector, truncated: bool = False) -> Embedding:
    return Embedding(vector, truncated)


def ask(
    text: str = "How do I reset my password?", *, tenant: str = "acme", target: str = "auto", **body: Any
) -> Question:
    messages = body.pop("messages", [{"role": "user", "content": text}])
    request = InferenceRequest("chat", {"model": "auto", "messages": messages} | body)
    return question(request, tenant=tenant, target=target, namespace=namespace("hand", "1", DIM))


def completion(content: str | None = "Click on forgot password.", **message: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content} | message,
                "logprobs": None,
                "finish_reason": "tool_calls" if "tool_calls" in message else "stop",
            }
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14},
    }


def settings(semantic: Mapping[str, Any] | None = None, exact: Mapping[str, Any] | None = None, **top: Any) -> Cache:
    """Cache settings with some fields changed; already in bytes and seconds."""
    base = Cache()
    parts = {
        "semantic": base.semantic.model_copy(update=dict(semantic or {})),
        "exact": base.exact.model_copy(update=dict(exact or {})),
    }
    return base.model_copy(update=parts | top)
