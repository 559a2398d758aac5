"""The guard itself: hard rules that may only refuse, then the learned score."""

import importlib.resources
import logging
from functools import lru_cache, partial
from pathlib import Path

from cache.guard.lexicon import lexicon
from cache.guard.model import Floats, GuardFileError, PairModel, load_model, parse_model
from cache.guard.model import deciding as deciding_feature
from cache.guard.packing import pack, unpack
from cache.guard.pairing import FEATURES, Pair
from cache.guard.reading import Reader, Reading
from cache.guard.words import word_table
from cache.verdict import Feature, Notes, Side, Verdict, Verifier

logger = logging.getLogger(__name__)
ARTEFACT = "guard.json"
# Readings kept: an asked text meets several candidates, and popular stored ones are met often.
READINGS = 2048
# Pairs kept: what the first look has compared is compared again when the embedding is there.
PAIRS = 256
# A score this near the cut is about as often wrong as right: here a second opinion pays.
UNSURE = 0.15


class Guard:
    """Serves a stored answer where no rule forbids it and the model's score reaches its cut.

    Texts that differ in case, spacing and final punctuation only are the same. `cut` overrides the model's.
    """

    def __init__(self, model: PairModel, cut: float | None = None) -> None:
        self._model, self.embedder = model, model.embedder
        self.cut = model.cut if cut is None else cut
        self._lexicon, self._words = lexicon(), word_table()
        reader = Reader(self._lexicon, self._words)
        self._read = lru_cache(maxsize=READINGS)(reader.read)
        self._pairs: dict[tuple[str, str], Pair | None] = {}

    def verify(self, asked: Side, stored: Side) -> Verdict:
        """Whether the stored answer may be served, and what decided: a rule or a feature by name, or `identical`."""
        pair = self.compared(asked.text, stored.text, stored.notes)
        if pair is None:
            return Verdict(served=True, said="identical")
        if (rule := pair.refusal()) is not None:
            return Verdict(served=False, said=rule)
        features = pair.features(float(asked.vector @ stored.vector))
        score = self._model.score(features)
        served = score >= self.cut
        return Verdict(
            served, partial(self._deciding, features, served), round(score, 4), unsure=abs(score - self.cut) <= UNSURE
        )

    def _deciding(self, features: Floats, served: bool) -> str:
        return deciding_feature(self._model.worth(features), served)

    def note(self, text: str) -> bytes:
        """The reading of a text, packed."""
        return pack(self._read(text))

    def features(self, asked: Side, stored: Side) -> list[Feature]:
        """What the model sees in the pair; nothing where the texts are the same or a rule refuses them."""
        pair = self.compared(asked.text, stored.text, stored.notes)
        if pair is None or pair.refusal() is not None:
            return []
        values = pair.features(float(asked.vector @ stored.vector))
        worth = self._model.worth(values)
        found = zip(FEATURES, values.tolist(), worth.tolist(), strict=True)
        return sorted((Feature(*each) for each in found), key=lambda feature: -abs(feature.worth))

    def score(self, pair: Pair, similarity: float) -> float:
        """What the model says of a pair that no rule refuses, 0 to 1."""
        return self._model.score(pair.features(similarity))

    def compared(self, asked: str, stored: str, notes: Notes | None = None) -> Pair | None:
        """What the guard sees in two texts; None where they are the same. `notes` on the stored one are completed."""
        key = asked, stored
        if key in self._pairs:
            return self._pairs[key]
        a, b = self._read(asked), self._reread(stored, notes)
        pair = None if a.identity == b.identity else Pair(a, b, self._lexicon, self._words)
        self._pairs[key] = pair
        if len(self._pairs) > PAIRS:
            del self._pairs[next(iter(self._pairs))]
        return pair

    def _reread(self, text: str, notes: Notes | None) -> Reading:
        if notes is None:
            return self._read(text)
        if notes.packed is None:
            notes.packed = self.note(text)
        return unpack(notes.packed)


class IdenticalOnly:
    """Stands in where no guard knows the embedder: serves texts that are the same but for case and spacing."""

    def __init__(self) -> None:
        self._reader = Reader(lexicon(), word_table())

    def note(self, text: str) -> None:
        """Nothing: two texts are read in no time."""

    def verify(self, asked: Side, stored: Side) -> Verdict:
        """Whether the two texts are the same."""
        same = self._reader.read(asked.text).identity == self._reader.read(stored.text).identity
        return Verdict(same, "identical" if same else "untrained")

    def features(self, asked: Side, stored: Side) -> list[Feature]:
        """Nothing is measured."""
        del asked, stored
        return []


def packaged_model() -> PairModel:
    """The shipped model. Raises GuardFileError."""
    data = importlib.resources.files("cache.guard").joinpath(ARTEFACT).read_bytes()
    return parse_model(data, ARTEFACT)


def guard_for(embedder: str, path: Path | None = None) -> Verifier:
    """The guard for vectors of `embedder`: from `path`, or the shipped one.

    An embedder that the guard was not trained with gets IdenticalOnly, and a warning in the log. Raises GuardFileError
    where a file at `path` cannot be used.
    """
    model = packaged_model() if path is None else load_model(path)
    if model.embedder == embedder:
        return Guard(model)
    if path is not None:
        raise GuardFileError(f"{path}: made for the embedder {model.embedder}, not {embedder}")
    logger.warning("no guard for the embedder %s: the semantic layer serves identical texts only", embedder)
    return IdenticalOnly()
