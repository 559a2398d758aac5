"""Fits what the first look expects of the guard: a regression over pairs that static vectors hold for near.

Every pair labels itself: what the embedding and the guard say of it is what has to be foreseen. So any texts will do
whose licence allows training; pairs are a text and its nearest others by static vectors, and the labelled pairs.
"""

import gzip
import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import JsonValue

from bench.cache_texts import Stored
from cache.evaluate import read_pairs
from cache.guard.corpus import SOURCES
from cache.guard.lexicon import lexicon
from cache.guard.making import made_pairs
from cache.guard.model import checksum
from cache.guard.outlook import SCHEMA, terms
from cache.guard.pairing import FEATURES
from cache.guard.verifier import Guard
from core.embedder import MINILM
from core.glance import TokenVectors

SEED = 7
# At most so many pairs of a labelled set and of the project's own, and texts of a set of prompts.
PAIRS, MADE, PROMPTS = 600, 4000, 3000
PROMPT_SETS = ("routellm_mmlu", "routellm_gsm8k")
# Of a prompt its first line, in characters.
FIRST_LINE = 300
# Others that a text is paired with, and how near they must be by static vectors.
BESIDE, NEAR = 6, 0.5
# Shares of the pairs to be served that may be lost to the least sum and to the least likeness. Of what people ask, in
# freer wordings than these, two or three times as many are lost.
LOST_SUM, LOST_LIKENESS = 0.012, 0.001
STRENGTH = 0.03
# The project's own pairs are many and alike; a feature that hardly varies is left as it is.
MADE_WEIGHT, LEAST_SCALE = 0.3, 1e-3


@dataclass(frozen=True)
class Example:
    """A pair that no rule refuses: the guard's features with the static likeness, the cosine, what the guard says."""

    source: str
    features: NDArray[np.float64]
    cosine: float
    served: bool


@dataclass(frozen=True)
class Corpus:
    """`sources`: texts with the set they come from. `pairs`: the labelled pairs among them. `halves`: 0 or 1 for each
    text; texts that are paired, however far apart, are in one half.
    """

    sources: Mapping[str, str]
    pairs: Sequence[tuple[str, str]]
    halves: Mapping[str, int]


def pools(data: Path) -> Corpus:
    """Texts whose licence allows training, from the folder of labelled sets."""
    dice = random.Random(SEED)
    texts: dict[str, str] = {}
    labelled: list[tuple[str, str]] = []
    for name in sorted(SOURCES):
        read = read_pairs(data / "cache" / f"{name}.jsonl.gz")
        pairs = [(pair.a, pair.b) for pair in read if isinstance(pair.a, str) and isinstance(pair.b, str)]
        dice.shuffle(pairs)
        labelled += pairs[:PAIRS]
        texts |= {text: name for pair in pairs[:PAIRS] for text in pair}
    made = [(pair.a, pair.b) for pair in made_pairs(lexicon(), SEED)]
    dice.shuffle(made)
    labelled += made[:MADE]
    texts |= {text: "made" for pair in made[:MADE] for text in pair}
    for name in PROMPT_SETS:
        lines = gzip.decompress((data / "router" / f"{name}.jsonl.gz").read_bytes()).splitlines()
        prompts = sorted({orjson.loads(line)["prompt"].split("\n")[0][:FIRST_LINE] for line in lines})
        dice.shuffle(prompts)
        texts |= {text: name for text in prompts[:PROMPTS] if text.strip()}
    return Corpus(texts, labelled, _halves(texts, labelled))


def _halves(texts: Mapping[str, str], pairs: Sequence[tuple[str, str]]) -> dict[str, int]:
    head = {text: text for text in texts}

    def first(text: str) -> str:
        while head[text] != text:
            head[text] = head[head[text]]
            text = head[text]
        return text

    for a, b in pairs:
        head[first(a)] = first(b)
    return {text: hashlib.sha256(first(text).encode()).digest()[0] % 2 for text in texts}


def examples(corpus: Corpus, half: int, stored: Sequence[Stored], glance: TokenVectors, guard: Guard) -> list[Example]:
    """All pairs of one half that are worth a look. `stored`: every text with its embedding."""
    here = [one for one in stored if corpus.halves[one.text] == half]
    rows = {one.text: row for row, one in enumerate(here)}
    static = np.stack([glance.vector(one.text) for one in here])
    pairs = {(rows[a], rows[b]) for a, b in corpus.pairs if a in rows and b in rows}
    for row, vector in enumerate(static):
        likeness = static @ vector
        likeness[row] = -1
        pairs |= {(row, int(at)) for at in np.argpartition(-likeness, BESIDE)[:BESIDE] if likeness[at] > NEAR}
    found = []
    for left, right in sorted({(min(pair), max(pair)) for pair in pairs}):
        one, other = here[left], here[right]
        pair = guard.compared(one.text, other.text)
        if pair is None or pair.refusal() is not None:
            continue
        cosine = float(one.embedding.vector @ other.embedding.vector)
        served = guard.score(pair, cosine) >= guard.cut
        features = pair.features(float(static[left] @ static[right]))
        found.append(Example(corpus.sources[one.text], features, cosine, served))
    return found


def fit(found: Sequence[Example], threshold: float, thresholds: Sequence[float]) -> dict[str, JsonValue]:
    """The outlook file. `threshold`: what a pair has to reach in training; the least sums are measured for all."""
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415  # seconds to import, for making the file only

    features = np.stack([one.features for one in found])
    cosines, served = np.array([one.cosine for one in found]), np.array([one.served for one in found])
    mean, scale = features.mean(axis=0), features.std(axis=0)
    scale[scale < LEAST_SCALE] = 1.0
    hit = served & (cosines >= threshold)
    mean, scale = np.round(mean, 4), np.round(scale, 4)
    inputs = terms(features, mean, scale)
    shares = np.array([MADE_WEIGHT if one.source == "made" else 1.0 for one in found])
    weights = np.round(LogisticRegression(C=STRENGTH, max_iter=5000).fit(inputs, hit, sample_weight=shares).coef_[0], 5)
    sums, likeness = inputs @ weights, features[:, FEATURES.index("similarity")]
    least: list[JsonValue] = []
    for at in thresholds:
        there = served & (cosines >= at)
        total = float(np.quantile(sums[there], LOST_SUM, method="lower"))
        low = float(np.quantile(likeness[there], LOST_LIKENESS, method="lower"))
        least.append([at, round(total, 4), round(low, 4)])
    kept = hit & (sums >= np.quantile(sums[hit], LOST_SUM, method="lower"))
    print(f"{len(found)} pairs, {int(hit.sum())} of them served; kept, by source: {_shares(found, hit, kept)}")
    document: dict[str, JsonValue] = {
        "schema": SCHEMA,
        "embedder": MINILM,
        "features": list(FEATURES),
        "mean": mean.tolist(),
        "scale": scale.tolist(),
        "weights": weights.tolist(),
        "least": least,
        "recipe": {"command": "python -m bench.first_look --make", "pairs": len(found), "served": int(hit.sum())},
    }
    document["checksum"] = checksum(document)
    return document


def _shares(found: Sequence[Example], hit: NDArray[np.bool_], kept: NDArray[np.bool_]) -> Mapping[str, str]:
    counts, left = Counter[str](), Counter[str]()
    for one, is_hit, is_kept in zip(found, hit, kept, strict=True):
        counts[one.source] += bool(is_hit)
        left[one.source] += bool(is_kept)
    return {source: f"{left[source]}/{count}" for source, count in sorted(counts.items()) if count}
