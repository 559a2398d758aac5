"""From labelled asks to a classifier, and whether it deserves to be one.

Quality is measured on predictions for rows that the predicting mixture never saw: the data is cut into parts, each part
is predicted by a mixture that was fitted on the others, and the parts are pooled. A classifier that does not beat a
cost-matched random router on each of its data files, with its whole 95 % interval, is refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from router.artefact import CUTS, Artefact, mark
from router.classifier import Classifier
from router.evaluate import Measured, Numbers, measure, summary
from router.features import BAG, COUNT, NAMES, extract, length
from router.fit import WORTH, Kind, fit, folds
from router.labels import Labelled
from router.mixture import Array, Mixture, joined, scaled
from router.seed import SeedAsk, balanced_weights
from router.vectors import Vectors

# Chat in English, and in languages that an embedder made for English reads less well: there words must say more.
CHAT, OTHER_CHAT = "chat", "chat in other languages"
_PARTS = 5
_PROTOTYPES = 256
_FEATURE_SCALE = 0.3
_BAG_SCALE = 2.0
# Of asks like the training data, this share is called unfamiliar.
_UNFAMILIAR = 0.05
_RANDOM_APGR = 0.5

Note = Callable[[str], None]


@dataclass(frozen=True)
class Source:
    """One labelled file: its name, rows, and their vectors of shape (len(rows), dim)."""

    name: str
    rows: Sequence[Labelled]
    vectors: Vectors


@dataclass(frozen=True)
class Trained:
    """A classifier with its figures on unseen rows, per data file.

    `refusals` says why there is none: then `artefact` is None.
    """

    artefact: Artefact | None
    measured: dict[str, Measured]
    chat_accuracy: float
    refusals: tuple[str, ...]


@dataclass(frozen=True)
class _Prepared:
    """Data files, then seed asks: texts, vectors, scaled features (`mean` and `scale` did that), and kinds to fit."""

    texts: list[list[str]]
    vectors: list[Vectors]
    mean: Array
    scale: Array
    readable: list[Array]
    kinds: list[Kind]

    @classmethod
    def of(cls, sources: Sequence[Source], seed: tuple[Sequence[SeedAsk], Vectors], note: Note) -> "_Prepared":
        note("computing features")
        texts = [*([row.prompt for row in source.rows] for source in sources), [ask.prompt for ask in seed[0]]]
        features = [np.array([extract(text) for text in some]) for some in texts]
        mean, scale = _scaling(np.concatenate(features))
        readable = [scaled(some, mean, scale) for some in features]
        vectors = [*(source.vectors for source in sources), seed[1]]
        kinds = _kinds(sources, seed[0], [joined(v, f) for v, f in zip(vectors, readable, strict=True)])
        return cls(texts, vectors, mean, scale, readable, kinds)


def inputs_of(texts: Sequence[str], vectors: Vectors) -> Array:
    """What a mixture reads of texts and their vectors, scaled by their own spread: shape (len(texts), inputs)."""
    features = np.array([extract(text) for text in texts])
    return joined(vectors, scaled(features, *_scaling(features)))


def out_of_fold(
    sources: Sequence[Source],
    seed: tuple[Sequence[SeedAsk], Vectors],
    *,
    by_group: bool,
    note: Note,
    random_state: int = 0,
) -> dict[str, Numbers]:
    """Per source the log odds of every row by a mixture that never saw it: what `train` measures, without the rest."""
    ready = _Prepared.of(sources, seed, note)
    generator = np.random.default_rng(random_state)
    unseen = _cross_fit(ready.kinds, ready.vectors[0].shape[1], by_group, generator, note)
    return {source.name: scores for source, scores in zip(sources, unseen, strict=False)}


def train(
    sources: Sequence[Source],
    seed: tuple[Sequence[SeedAsk], Vectors],
    *,
    embedder: str,
    by_group: bool,
    note: Note,
    random_state: int = 0,
) -> Trained:
    """A classifier learned from `sources` and the shipped seed asks (with their vectors).

    `by_group`: measure each group of rows by a mixture that never saw the group. Deterministic for one `random_state`.
    """
    generator = np.random.default_rng(random_state)
    ready = _Prepared.of(sources, seed, note)
    texts, vectors, width = ready.texts, ready.vectors, ready.vectors[0].shape[1]
    unseen = _cross_fit(ready.kinds, width, by_group, generator, note)
    measured = {}
    for source, scores in zip(sources, unseen, strict=False):
        lengths = np.array([length(row.prompt) for row in source.rows])
        measured[source.name] = measure(source.rows, scores, lengths)
    sides = [
        (own >= 0) == (kind.weak < kind.strong) for own, kind in zip(unseen, ready.kinds, strict=True) if kind.apart
    ]
    chat_accuracy = float(np.concatenate(sides).mean())
    refusals = tuple(_refusals(measured))
    if refusals:
        return Trained(None, measured, chat_accuracy, refusals)
    note("fitting on all rows")
    prototypes, familiar_at = _prototypes(vectors, generator)
    artefact = Artefact(
        embedder=embedder,
        mean=ready.mean,
        scale=ready.scale,
        full=fit(ready.kinds, width, generator),
        plain=fit(_kinds(sources, seed[0], ready.readable), 0, generator),
        prototypes=prototypes,
        familiar_at=familiar_at,
        deciles=np.zeros(CUTS, dtype=np.float32),
        trained_on=np.unique(np.array([mark(text) for some in texts for text in some], dtype=np.uint32)),
        recipe=_recipe(sources, seed[0], measured, chat_accuracy, {"by_group": by_group, "random_state": random_state}),
    )
    prompts, rows = [text for some in texts for text in some], np.concatenate(vectors)
    artefact = replace(artefact, deciles=_deciles(Classifier(artefact), prompts, rows))
    return Trained(artefact, measured, chat_accuracy, ())


def _deciles(classifier: Classifier, texts: Sequence[str], vectors: Vectors) -> Array:
    """The complexities that cut the training sample into ten equal parts, as live requests are scored."""
    found = [classifier.score(text, vector).complexity for text, vector in zip(texts, vectors, strict=True)]
    cuts: Array = np.quantile(found, np.arange(1, CUTS + 1) / (CUTS + 1)).astype(np.float32)
    return cuts


def _kinds(sources: Sequence[Source], asks: Sequence[SeedAsk], inputs: Sequence[Array]) -> list[Kind]:
    """The data files as kinds of traffic, chat last: the kinds whose scale the others are fitted to."""
    kinds = []
    for source, own in zip(sources, inputs, strict=False):
        weak = np.array([row.weak for row in source.rows])
        strong = np.array([row.strong for row in source.rows])
        # Qualities may be in any unit; gains are brought to at most one.
        unit = max(float(np.abs(strong - weak).max()), 1e-9)
        kinds.append(
            Kind(
                source.name,
                own,
                weak / unit,
                strong / unit,
                np.ones(len(own)),
                _groups(source),
                worth=WORTH,
                by_length=True,
            )
        )
    english = np.array([ask.language == "en" for ask in asks])
    chats = [(CHAT, english), (OTHER_CHAT, ~english)]
    return [*kinds, *(_chat(name, asks, own, inputs[-1]) for name, own in chats if own.any())]


def _chat(name: str, asks: Sequence[SeedAsk], chosen: NDArray[np.bool_], inputs: Array) -> Kind:
    """The chosen asks as a kind; those that one block made are never on both sides of a fold."""
    own = [ask for ask, taken in zip(asks, chosen, strict=True) if taken]
    return Kind(
        name,
        inputs[chosen],
        np.array([1.0 - ask.hard for ask in own]),
        np.ones(len(own)),
        balanced_weights(own),
        np.array([ask.kind if ask.made else str(number) for number, ask in enumerate(own)]),
        worth=0.5,
        by_length=False,
        apart=True,
    )


def _groups(source: Source) -> NDArray[np.str_]:
    return np.array([row.group for row in source.rows])


def _cross_fit(
    kinds: Sequence[Kind],
    width: int,
    by_group: bool,
    generator: np.random.Generator,
    note: Note,
) -> list[Numbers]:
    """The log odds of every row of every kind, each by a mixture that was fitted without the row's part."""
    parts = []
    for kind in kinds:
        groups = kind.groups if kind.apart or by_group else None
        parts.append(folds(len(kind.weak), _PARTS, generator, groups))
    unseen = [np.zeros(len(kind.weak)) for kind in kinds]
    for part in range(_PARTS):
        note(f"fitting without part {part + 1} of {_PARTS}")
        mixture: Mixture = fit(
            [kind.take(own != part) for kind, own in zip(kinds, parts, strict=True)], width, generator
        )
        for kind, own, scores in zip(kinds, parts, unseen, strict=True):
            scores[own == part] = mixture.logits(kind.inputs[own == part])
    return unseen


def _scaling(features: NDArray[np.float64]) -> tuple[Array, Array]:
    """What is taken away from features, and what they are divided by then; the words are only stretched."""
    named = len(NAMES)
    mean, scale = np.zeros(COUNT), np.full(COUNT, 1 / _BAG_SCALE)
    mean[:named] = features[:, :named].mean(axis=0)
    scale[:named] = (features[:, :named].std(axis=0) + 0.05) / _FEATURE_SCALE
    return mean.astype(np.float32), scale.astype(np.float32)


def _prototypes(vectors: Sequence[Vectors], generator: np.random.Generator) -> tuple[Array, float]:
    """Unit vectors that stand for the training data, and the cosine to the best of them that most new rows reach.

    Each kind has its share of them by the root of its size, so that a small kind is not forgotten.
    """
    roots = np.sqrt([len(own) for own in vectors])
    counts = np.maximum(1, np.floor(_PROTOTYPES * roots / roots.sum())).astype(int)
    state = int(generator.integers(2**31))
    near = []
    for own, count in zip(vectors, counts, strict=True):
        part = folds(len(own), _PARTS, generator)
        centers = _centers(own[part != 0], min(int(count), int((part != 0).sum())), state)
        near.append((own[part == 0] @ centers.T).max(axis=1))
    found = [_centers(own, min(int(count), len(own)), state) for own, count in zip(vectors, counts, strict=True)]
    return np.concatenate(found), float(min(np.quantile(cosines, _UNFAMILIAR) for cosines in near if len(cosines)))


def _centers(vectors: Vectors, count: int, state: int) -> Array:
    from sklearn.cluster import MiniBatchKMeans  # noqa: PLC0415  # heavy, and only training needs it

    model = MiniBatchKMeans(count, random_state=state, n_init=1, batch_size=1024).fit(vectors)
    centers = np.asarray(model.cluster_centers_, dtype=np.float32)
    unit: Array = centers / np.linalg.norm(centers, axis=1, keepdims=True)
    return unit


def _refusals(measured: dict[str, Measured]) -> list[str]:
    reasons = []
    for name, found in measured.items():
        if found.apgr is None or found.apgr_ci is None:
            reasons.append(
                f"{name}: the strong model is not better than the weak one, so there is nothing to route for"
            )
        elif found.apgr_ci[0] <= _RANDOM_APGR:
            low, high = found.apgr_ci
            reasons.append(
                f"{name}: not better than random: APGR {found.apgr:.3f}, 95 % interval {low:.3f} to {high:.3f}"
            )
    return reasons


def _recipe(
    sources: Sequence[Source],
    asks: Sequence[SeedAsk],
    measured: dict[str, Measured],
    chat_accuracy: float,
    settings: dict[str, Any],
) -> dict[str, Any]:
    return {
        "data": [
            {"name": source.name, "rows": len(source.rows), "unseen_rows": summary(measured[source.name])}
            for source in sources
        ],
        "seed_asks": {"easy": sum(not ask.hard for ask in asks), "hard": sum(ask.hard for ask in asks)},
        "chat_accuracy_unseen": round(chat_accuracy, 4),
        "method": f"linear experts with a gate; {_PARTS} parts; {BAG} word places; complexity 1/2 = the frontier "
        f"answer is better with probability {WORTH}",
        **settings,
    }
