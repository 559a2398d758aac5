"""Training learns what is there, says when nothing is, and never sees what it is measured on."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from core.embedder import Embedding
from router.classifier import Classifier
from router.evaluate import measure
from router.fit import Kind, fit
from router.labels import Labelled
from router.seed import balanced_weights, read_seed
from router.train import Source, Trained, out_of_fold, train
from router.vectors import embed

DIM = 16
TOPICS = ("tides", "bread", "chess", "trains", "birds", "paint", "glass", "rivers", "clocks", "salt")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Small matrices on a busy machine: several threads would wait for each other most of the time."""
    with threadpool_limits(1):
        yield


class WordHashEncoder:
    """A stand-in for a sentence embedding: the mean of one fixed random direction per word."""

    name = "word-hash"
    dim = DIM

    def __init__(self) -> None:
        self.encoded = 0

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        self.encoded += len(texts)
        return [Embedding(self._vector(text), False) for text in texts]

    def _vector(self, text: str) -> np.ndarray:
        total = np.zeros(DIM)
        for word in text.lower().split() or [""]:
            seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big")
            total += np.random.default_rng(seed).normal(size=DIM)
        return (total / np.linalg.norm(total)).astype(np.float32)


def quiet(*_: object) -> None:
    pass


def labelled(count: int, *, signal: bool, reverse: bool = False, seed: int = 0) -> list[Labelled]:
    """Asks of equal form; with a signal, those that speak of proving are the ones the weak model fails on."""
    generator = np.random.default_rng(seed)
    rows = []
    for n in range(count):
        hard = bool(generator.random() < 0.4)
        topic = TOPICS[n % len(TOPICS)]
        text = f"{'Prove' if hard else 'Tell'} me about {topic} number {n}"
        fails = hard if signal else bool(generator.random() < 0.4)
        weak, strong = (0.0, 1.0) if fails else (1.0, 1.0)
        rows.append(Labelled(text, strong if reverse else weak, weak if reverse else strong, topic))
    return rows


def trained(rows: list[Labelled], *, by_group: bool = False) -> Trained:
    encoder = WordHashEncoder()
    asks = read_seed()[::16]
    vectors = embed([row.prompt for row in rows], encoder, None, quiet)
    seed_vectors = embed([ask.prompt for ask in asks], encoder, None, quiet)
    source = Source("made-up", rows, vectors)
    return train([source], (asks, seed_vectors), embedder=encoder.name, by_group=by_group, note=quiet)


@pytest.fixture(scope="module")
def learned() -> Trained:
    return trained(labelled(300, signal=True))


def test_a_signal_is_learned_and_measured_on_unseen_rows(learned: Trained) -> None:
    found = learned.measured["made-up"]
    assert learned.refusals == ()
    assert found.apgr is not None
    assert found.apgr > 0.75
    assert found.auc is not None
    assert found.auc > 0.9


def test_what_was_learned_is_in_the_classifier(learned: Trained) -> None:
    assert learned.artefact is not None
    classifier = Classifier(learned.artefact)
    [hard, easy] = WordHashEncoder().encode(["Prove me about salt number 7", "Tell me about salt number 7"])
    above = classifier.score("Prove me about salt number 7", hard.vector).complexity
    below = classifier.score("Tell me about salt number 7", easy.vector).complexity
    assert above > 0.5 > below


def test_the_recipe_says_what_the_classifier_was_made_of(learned: Trained) -> None:
    assert learned.artefact is not None
    recipe = learned.artefact.recipe
    assert recipe["data"][0]["rows"] == 300
    assert recipe["data"][0]["unseen_rows"]["apgr"] > 0.75
    assert recipe["random_state"] == 0


def test_fitting_twice_gives_the_same_mixture() -> None:
    generator = np.random.default_rng(5)
    inputs = generator.normal(size=(80, 12)).astype(np.float32)
    gains = (inputs[:, 3] > 0).astype(float)
    kinds = [
        Kind(name, inputs + shift, 1 - gains, np.ones(80), np.ones(80), np.full(80, ""), worth=0.5, by_length=True)
        for name, shift in (("a", 0), ("b", 2))
    ]
    first, second = (fit(kinds, 4, np.random.default_rng(0)) for _ in range(2))
    assert np.array_equal(first.experts, second.experts)
    assert np.array_equal(first.gate, second.gate)
    assert (first.shares(kinds[1].inputs)[:, 1] > 0.5).mean() > 0.95


def test_labels_of_noise_are_refused() -> None:
    found = trained(labelled(300, signal=False))
    assert found.artefact is None
    assert len(found.refusals) == 1
    assert "not better than random" in found.refusals[0]


def test_a_strong_model_that_is_not_stronger_is_refused() -> None:
    found = trained(labelled(60, signal=True, reverse=True))
    assert found.artefact is None
    assert "nothing to route for" in found.refusals[0]


def test_left_out_groups_are_not_seen() -> None:
    # The label is the group itself: it can be learned from the group's own rows only.
    generator = np.random.default_rng(3)
    rows = []
    for n in range(300):
        topic = TOPICS[n % len(TOPICS)]
        hard = n % len(TOPICS) < 4
        flip = bool(generator.random() < 0.05)
        rows.append(Labelled(f"Tell me about {topic} number {n}", 0.0 if hard != flip else 1.0, 1.0, topic))
    seen = trained(rows).measured["made-up"].apgr
    unseen = trained(rows, by_group=True).measured["made-up"].apgr
    assert seen is not None
    assert unseen is not None
    assert seen > 0.6
    assert unseen < seen - 0.1


def test_seed_asks_are_many_and_their_weights_level_length() -> None:
    asks = read_seed()
    weights = balanced_weights(asks)
    hard = np.array([ask.hard for ask in asks])
    assert hard.sum() > 500
    assert (~hard).sum() > 500
    assert {"en", "de", "fr", "es", "zh"} <= {ask.language for ask in asks}
    assert weights[hard].sum() == pytest.approx(weights[~hard].sum())
    lengths = np.log([len(ask.prompt) for ask in asks])
    apart = lengths[hard].mean() - lengths[~hard].mean()
    weighted = np.average(lengths[hard], weights=weights[hard]) - np.average(lengths[~hard], weights=weights[~hard])
    assert abs(weighted) < abs(apart) / 2


def test_out_of_fold_scores_are_those_that_training_measures(learned: Trained) -> None:
    rows, encoder, asks = labelled(300, signal=True), WordHashEncoder(), read_seed()[::16]
    vectors, seed = (
        [*embed(texts, encoder, None, quiet)] for texts in ([r.prompt for r in rows], [a.prompt for a in asks])
    )
    source = Source("made-up", rows, np.array(vectors))
    scores = out_of_fold([source], (asks, np.array(seed)), by_group=False, note=quiet)["made-up"]
    found = measure(rows, scores, np.array([len(row.prompt) for row in rows], dtype=float))
    assert found.apgr == learned.measured["made-up"].apgr


def test_the_artefact_knows_the_rows_and_deciles_of_its_training(learned: Trained) -> None:
    assert learned.artefact is not None
    classifier = Classifier(learned.artefact)
    assert all(classifier.seen(row.prompt.upper()) for row in labelled(300, signal=True))
    assert not classifier.seen("Something else altogether")
    assert (np.diff(classifier.deciles) >= 0).all()
    assert 0 <= classifier.deciles[0] < classifier.deciles[-1] <= 1


def test_kept_vectors_are_not_computed_again(tmp_path: Path) -> None:
    kept = tmp_path / "vectors.npz"
    first, second = WordHashEncoder(), WordHashEncoder()
    texts = ["a longer text", "b", "a longer text"]
    before = embed(texts, first, kept, quiet)
    after = embed([*texts, "c"], second, kept, quiet)
    assert (first.encoded, second.encoded) == (2, 1)
    assert np.array_equal(before, after[:3])
