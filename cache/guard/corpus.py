"""What the guard is trained on: labelled pairs from files, pairs the project makes, and neighbours that differ."""

import gzip
import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from cache.guard.lexicon import Lexicon
from cache.guard.making import MadePair, made_pairs, substituted
from cache.guard.words import WordTable
from core.embedder import Vector

# Labelled sets whose licence allows training (classes A and B), and what one of their pairs weighs.
SOURCES = {
    "fow_pairs": 3.0,
    "gated_banking": 3.0,
    "gated_finance": 3.0,
    "vllmsr_cache_cases": 2.0,
    "gptcache_mock": 1.0,
    "cannot_negation": 1.0,
    "paws_en": 0.3,
}
MADE, SUBSTITUTED, NEIGHBOURS = "made", "substituted", "neighbours"
WEIGHTS = SOURCES | {MADE: 0.5, SUBSTITUTED: 0.5, NEIGHBOURS: 1.0}
# Texts that one word is replaced in, from files and from made questions.
SUBSTITUTE_FILES, SUBSTITUTE_MADE = 3200, 1800
# Neighbours of a text with other labels are other questions, unless they are nearer than any trap would be.
NEIGHBOUR_RANGE = (0.55, 0.9)
NEIGHBOUR_POOLS = ("fow_pairs", "gated_banking", "gptcache_mock", "paws_en", MADE)
NEIGHBOUR_COUNT = 4


@dataclass(frozen=True)
class TrainingPair:
    """Two texts and whether one answer serves both. Pairs of one `group` share texts: they are held out together."""

    a: str
    b: str
    same: bool
    source: str
    group: str

    @property
    def held_out(self) -> bool:
        """Whether the pair is kept for measuring: a quarter of the groups."""
        return int(hashlib.sha256(self.group.encode()).hexdigest()[:8], 16) % 4 == 0


def read_pairs(path: Path) -> list[tuple[str, str, bool]]:
    """Text pairs of a JSON-lines file, perhaps gzipped."""
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
    rows = [orjson.loads(line) for line in lines if line.strip()]
    return [(row["a"], row["b"], bool(row["same"])) for row in rows]


def components(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Text to the name of its connected component: texts that are linked by pairs stay together."""
    parent: dict[str, str] = {}

    def root(text: str) -> str:
        while parent.setdefault(text, text) != text:
            parent[text] = parent[parent[text]]
            text = parent[text]
        return text

    for a, b in pairs:
        low, high = sorted((root(a), root(b)))
        parent[high] = low
    return {text: root(text) for text in list(parent)}


def labelled(data: Path) -> list[TrainingPair]:
    """The pairs of all source files in `data`. Raises FileNotFoundError where one is missing."""
    pairs = []
    for source in SOURCES:
        rows = read_pairs(data / f"{source}.jsonl.gz")
        groups = components((a, b) for a, b, _ in rows)
        pairs += [TrainingPair(a, b, same, source, groups[a]) for a, b, same in rows]
    return pairs


def own(pairs: Sequence[TrainingPair], lexicon: Lexicon, words: WordTable, seed: int) -> list[TrainingPair]:
    """Pairs the project makes: from its own questions, and by replacing one word in any text of a class A or B set."""
    made = [_training(pair, MADE) for pair in made_pairs(lexicon, seed)]
    rng = random.Random(seed)  # noqa: S311  # reproducible training data, no secret
    chosen: list[tuple[str, str]] = []
    for among, count in ((pairs, SUBSTITUTE_FILES), ([pair for pair in made if pair.same], SUBSTITUTE_MADE)):
        texts = sorted({(pair.a, pair.group) for pair in among})
        chosen += rng.sample(texts, min(count, len(texts)))
    return [*made, *(_training(pair, SUBSTITUTED) for pair in substituted(chosen, words, lexicon, seed))]


def _training(pair: MadePair, source: str) -> TrainingPair:
    return TrainingPair(pair.a, pair.b, pair.same, source, pair.group)


def neighbours(pairs: Sequence[TrainingPair], vectors: Mapping[str, Vector]) -> Iterator[TrainingPair]:
    """The nearest texts of other groups in the same source: near in meaning, and another question."""
    low, high = NEIGHBOUR_RANGE
    for source in NEIGHBOUR_POOLS:
        groups = {text: pair.group for pair in pairs if pair.source == source for text in (pair.a, pair.b)}
        texts = sorted(groups)
        if not texts:
            continue
        matrix = np.stack([vectors[text] for text in texts])
        for row, text in enumerate(texts):
            similarity = matrix @ matrix[row]
            order = [at for at in np.argsort(-similarity)[:40] if low <= similarity[at] < high]
            others = [texts[at] for at in order if groups[texts[at]] != groups[text]]
            for other in others[:NEIGHBOUR_COUNT]:
                yield TrainingPair(text, other, False, NEIGHBOURS, groups[text])


def all_pairs(
    data: Path, lexicon: Lexicon, words: WordTable, embed: Callable[[Sequence[str]], Mapping[str, Vector]], seed: int
) -> tuple[list[TrainingPair], Mapping[str, Vector]]:
    """Everything to train on and to hold out, and a unit vector for each text."""
    pairs = labelled(data)
    pairs += own(pairs, lexicon, words, seed)
    vectors = embed(sorted({text for pair in pairs for text in (pair.a, pair.b)}))
    return [*pairs, *neighbours(pairs, vectors)], vectors
