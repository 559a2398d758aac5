"""Hit rate and false-hit rate of the semantic layer on labelled pairs, and the threshold that keeps a bound.

Each pair is alone in an empty cache: `a` is stored, `b` is asked, semantic layer only, through the same code as a
request. Nothing here depends on the order of the pairs.
"""

import asyncio
import gzip
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import orjson
from pydantic import JsonValue

from cache.controls import Controls
from cache.question import Question, namespace, question
from cache.response_cache import ResponseCache
from cache.verdict import Verifier
from core.clock import SystemClock
from core.config.records import Cache
from core.embedder import Embedding, Encoder
from core.errors import ForebayError
from core.request import InferenceRequest

Asked = str | Sequence[Mapping[str, JsonValue]]
# Texts embedded in one call of the encoder.
BATCH = 256
# One-sided confidence of the bound on a rate.
CONFIDENCE = 0.95
ANSWER: Mapping[str, JsonValue] = {
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "stored"}, "finish_reason": "stop"}],
}


class PairsError(ForebayError):
    """A file of labelled pairs cannot be read; the message names the line."""


@dataclass(frozen=True)
class LabelledPair:
    """What was stored and what is asked, as texts or message lists, and whether one answer serves both."""

    a: Asked
    b: Asked
    same: bool


@dataclass(frozen=True)
class Outcome:
    """One pair: its label, the similarity (None where the semantic layer takes no part), and the guard's verdict.

    `served`: what the guard says wherever the similarity would be high enough. `doubt`: the two texts, stored and
    asked, where the guard is so unsure that a judge would be asked.
    """

    same: bool
    similarity: float | None
    served: bool
    doubt: tuple[str, str] | None = None

    def hit(self, threshold: float) -> bool:
        """Whether the pair hits under `threshold`."""
        return self.similarity is not None and self.similarity >= threshold and self.served


@dataclass(frozen=True)
class Evaluation:
    """Rates over the pairs; an empty denominator is None. `guarded`: pairs at or above τ that the guard refused."""

    pairs: int
    hits: int
    false_hits: int
    hit_rate: float | None
    false_hit_rate: float | None
    precision: float | None
    threshold: float
    guarded: int


@dataclass(frozen=True)
class Point:
    """One threshold on the curve. `upper`: upper 95 % bound of the false-hit rate."""

    threshold: float
    hit_rate: float | None
    false_hit_rate: float
    upper: float


@dataclass(frozen=True)
class Calibration:
    """The lowest threshold whose upper bound keeps the limit; None where none does.

    `sufficient`: whether the data could show the limit at all; `needed`: pairs with `same` 0 that would, had none hit.
    """

    threshold: float | None
    false_hit_rate: float | None
    upper: float | None
    hit_rate: float | None
    curve: tuple[Point, ...]
    sufficient: bool
    needed: int


def read_pairs(path: Path) -> list[LabelledPair]:
    """The pairs of a JSON-lines file, gzipped or not. Raises PairsError."""
    try:
        data = path.read_bytes()
        lines = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).splitlines()
    except (OSError, EOFError, gzip.BadGzipFile) as error:
        raise PairsError(f"{path}: {error}") from error
    return [_pair(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]


def _pair(line: bytes, place: str) -> LabelledPair:
    try:
        row = orjson.loads(line)
        pair = LabelledPair(row["a"], row["b"], {0: False, 1: True}[row["same"]])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise PairsError(f'{place}: a pair is {{"a", "b", "same": 0 or 1}}: {_named(error)}') from error
    for side in (pair.a, pair.b):
        if not (isinstance(side, str) or (isinstance(side, list) and side and all(_is_message(one) for one in side))):
            raise PairsError(f"{place}: a and b are texts or non-empty lists of messages")
    return pair


def _named(error: Exception) -> str:
    return f"{error} is missing or not legal" if isinstance(error, KeyError) else str(error)


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("role"), str)


def judge(
    pairs: Sequence[LabelledPair],
    encoder: Encoder,
    verifier: Verifier | None,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> list[Outcome]:
    """One outcome per pair, in order. Blocking: embeds every text once. `progress` gets the texts done so far."""
    questions = [(_question(pair.a, encoder), _question(pair.b, encoder)) for pair in pairs]
    texts = {asked.text for both in questions for asked in both if asked.text is not None}
    vectors = _embedded(sorted(texts, key=lambda text: (len(text), text)), encoder, progress)
    return asyncio.run(_judged(pairs, questions, vectors, verifier))


def _question(asked: Asked, encoder: Encoder) -> Question:
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else list(asked)
    request = InferenceRequest("chat", {"model": "auto", "messages": cast("JsonValue", messages)})
    return question(
        request, tenant="*", target="auto", namespace=namespace(encoder.name, encoder.revision, encoder.dim)
    )


def _embedded(texts: Sequence[str], encoder: Encoder, progress: Callable[[int], None]) -> dict[str, Embedding]:
    vectors: dict[str, Embedding] = {}
    for at in range(0, len(texts), BATCH):
        part = texts[at : at + BATCH]
        vectors |= zip(part, encoder.encode(part), strict=True)
        progress(len(vectors))
    return vectors


async def _judged(
    pairs: Sequence[LabelledPair],
    questions: Sequence[tuple[Question, Question]],
    vectors: Mapping[str, Embedding],
    verifier: Verifier | None,
) -> list[Outcome]:
    settings = _settings(threshold=0.0, guard=verifier is not None)
    outcomes = []
    async with ResponseCache(settings, clock=SystemClock(), verifier=verifier) as cache:
        for pair, (stored, asked) in zip(pairs, questions, strict=True):
            embeddings = [vectors[side.text] if side.text is not None else None for side in (stored, asked)]
            await cache.store(stored, ANSWER, embeddings[0], tier="small", controls=Controls())
            found = await cache.semantic(asked, embeddings[1], Controls(), deadline=60.0)
            similarity = found.similarity if found.result in ("hit", "guarded") else None
            doubt = None if found.doubt is None else (found.doubt.text, asked.text or "")
            outcomes.append(Outcome(pair.same, similarity, found.result == "hit", doubt))
            await cache.purge()
    return outcomes


def _settings(threshold: float, *, guard: bool) -> Cache:
    settings = Cache()
    # Whether a judge is configured decides only whether doubts are told.
    semantic = settings.semantic.model_copy(update={"threshold": threshold, "guard": guard, "judge": "small"})
    return settings.model_copy(update={"semantic": semantic})


def second_opinions(
    outcomes: Sequence[Outcome], threshold: float, ask: Callable[[str, str], bool | None]
) -> tuple[list[Outcome], int, int]:
    """The outcomes after a judge has decided the doubts at or above `threshold`; how many it was asked, and failed.

    `ask` gets the stored and the asked text and gives an opinion, None for none: that refuses, as in the gateway.
    """
    decided, asked, failed = [], 0, 0
    for outcome in outcomes:
        if outcome.doubt is None or outcome.similarity is None or outcome.similarity < threshold:
            decided.append(outcome)
            continue
        opinion = ask(*outcome.doubt)
        asked += 1
        failed += opinion is None
        decided.append(replace(outcome, served=opinion is True))
    return decided, asked, failed


def evaluate(outcomes: Sequence[Outcome], threshold: float) -> Evaluation:
    """The rates under `threshold`."""
    hits = sum(outcome.hit(threshold) and outcome.same for outcome in outcomes)
    false_hits = sum(outcome.hit(threshold) and not outcome.same for outcome in outcomes)
    same = sum(outcome.same for outcome in outcomes)
    near = [outcome for outcome in outcomes if outcome.similarity is not None and outcome.similarity >= threshold]
    return Evaluation(
        pairs=len(outcomes),
        hits=hits + false_hits,
        false_hits=false_hits,
        hit_rate=_rate(hits, same),
        false_hit_rate=_rate(false_hits, len(outcomes) - same),
        precision=_rate(hits, hits + false_hits),
        threshold=threshold,
        guarded=sum(not outcome.served for outcome in near),
    )


def calibrate(outcomes: Sequence[Outcome], max_false_hit_rate: float) -> Calibration:
    """The lowest threshold at which the upper bound of the false-hit rate keeps `max_false_hit_rate`."""
    different = sum(not outcome.same for outcome in outcomes)
    needed = _needed(max_false_hit_rate)
    curve = [_point(outcomes, threshold) for threshold in _thresholds(outcomes)] if different else []
    # A lower threshold hits whatever a higher one hits, so the bound only grows on the way down.
    best = next((point for point in curve if point.upper <= max_false_hit_rate), None)
    return Calibration(
        threshold=best.threshold if best else None,
        false_hit_rate=best.false_hit_rate if best else None,
        upper=best.upper if best else None,
        hit_rate=best.hit_rate if best else None,
        curve=tuple(curve),
        sufficient=different >= needed,
        needed=needed,
    )


def _thresholds(outcomes: Sequence[Outcome]) -> list[float]:
    low = min((outcome.similarity for outcome in outcomes if outcome.similarity is not None), default=1.0)
    first = max(0, math.floor(low * 200))
    return [step / 200 for step in range(first, 201)]


def _point(outcomes: Sequence[Outcome], threshold: float) -> Point:
    found = evaluate(outcomes, threshold)
    different = sum(not outcome.same for outcome in outcomes)
    upper = upper_bound(found.false_hits, different)
    return Point(threshold, found.hit_rate, found.false_hits / different, upper)


def upper_bound(events: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """One-sided upper confidence bound of a rate, exact (Clopper and Pearson, Biometrika 26, 1934): the rate at which
    `events` or fewer of `trials` have probability 1 - confidence, as a quantile of a beta distribution.
    """
    from scipy.special import betaincinv  # noqa: PLC0415  # half a second to import, for measuring only

    return 1.0 if events >= trials else float(betaincinv(events + 1, trials - events, confidence))


def _needed(rate: float) -> int:
    """Trials without any event that show a rate below `rate`: (1 - rate)^n = 1 - confidence."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log1p(-rate)) if 0 < rate < 1 else 1


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None
