"""A classifier file is trusted only as it was written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from core.errors import ConfigError
from router import artefact as artefact_module
from router.artefact import CUTS, Artefact, mark, read, write
from router.classifier import Classifier
from router.features import COUNT
from router.mixture import Mixture

DIM = 8


def mixture(width: int) -> Mixture:
    generator = np.random.default_rng(width)

    def some(*shape: int) -> Any:
        return generator.normal(size=shape).astype(np.float32)

    return Mixture(("exam", "chat"), some(2, width), some(2), some(2, width), some(2))


def sample() -> Artefact:
    return Artefact(
        embedder="tiny",
        mean=np.zeros(COUNT, dtype=np.float32),
        scale=np.ones(COUNT, dtype=np.float32),
        full=mixture(DIM + COUNT),
        plain=mixture(COUNT),
        prototypes=np.eye(DIM, dtype=np.float32)[:3],
        familiar_at=0.5,
        deciles=np.linspace(0.1, 0.9, CUTS, dtype=np.float32),
        trained_on=np.sort(np.array([mark("Prove it."), 7], dtype=np.uint32)),
        recipe={"data": ["made up"]},
    )


def unit(*values: float) -> Any:
    vector = np.zeros(DIM, dtype=np.float32)
    vector[: len(values)] = values
    return vector / np.linalg.norm(vector)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "classifier.json"
    write(sample(), path)
    found, expected = Classifier(read(path)), Classifier(sample())
    assert found.embedder == "tiny"
    assert found.recipe == {"data": ["made up"]}
    assert np.array_equal(found.deciles, sample().deciles)
    assert found.seen(" prove IT.")
    assert not found.seen("Prove that.")
    for vector in (None, unit(1), unit(0, 0, 0, 1)):
        assert found.score("Prove it.", vector) == expected.score("Prove it.", vector)


@pytest.fixture
def changed(tmp_path: Path) -> Callable[..., Path]:
    """Write the sample with changes; `signed` gives them a valid checksum, as a careless tool would."""

    def make(change: Callable[[dict[str, Any]], object], *, signed: bool) -> Path:
        path = tmp_path / "classifier.json"
        write(sample(), path)
        document = orjson.loads(path.read_bytes())
        change(document)
        if signed:
            document["sha256"] = artefact_module._checksum(document)
        path.write_bytes(orjson.dumps(document))
        return path

    return make


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(familiar_at=0.0),
        lambda d: d["recipe"].update(data=["other"]),
        lambda d: d.update(embedder="other"),
        lambda d: d["full"]["experts"].update(base64=d["full"]["gate"]["base64"]),
        lambda d: d.pop("sha256"),
        lambda d: d.update(extra=1),
    ],
)
def test_any_change_after_training_is_noticed(changed: Callable[..., Path], change: Any) -> None:
    with pytest.raises(ConfigError, match="checksum") as caught:
        Classifier.load(changed(change, signed=False))
    assert caught.value.problems[0].path == "router.classifier"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema=1), "schema 1; this version reads 2"),
        (lambda d: d.update(format="pickle"), "not a classifier file"),
        (lambda d: d.update(features=["length"]), "other features"),
        (lambda d: d.update(features_version="0"), "other features"),
        (lambda d: d.pop("plain"), "not a usable classifier"),
        (lambda d: d["mean"].update(shape=[3]), "not a usable classifier"),
        (lambda d: d["scale"].update(d["mean"]), "no scale"),
        (lambda d: d["plain"].update(kinds=["one"]), "has shape"),
        (lambda d: d["full"].update(d["plain"]), "has shape"),
        (lambda d: d["prototypes"].update(dtype="|O"), "neither float16 nor float32"),
        (lambda d: d["prototypes"].update(base64="?"), "not a usable classifier"),
        (lambda d: d.update(embedder=""), "no name"),
        (lambda d: d.update(trained_on="???"), "not a usable classifier"),
        (lambda d: d.update(deciles=d["mean"]), "has shape"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_words(changed: Callable[..., Path], change: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Classifier.load(changed(change, signed=True))


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    bad = sample()
    bad.full.experts[0, 0] = np.nan
    write(bad, tmp_path / "bad.json")
    with pytest.raises(ConfigError, match="not finite"):
        read(tmp_path / "bad.json")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\x80\x04\x95", b'{"format": 1}'])
def test_what_is_no_classifier_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not a classifier file"):
        read(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json cannot be read"):
        read(tmp_path / "none.json")


def test_an_ask_near_the_training_data_is_familiar() -> None:
    classifier = Classifier(sample())
    assert classifier.score("Prove it.", unit(1, 0.1)).familiar
    assert not classifier.score("Prove it.", unit(0, 0, 0, 1)).familiar
    assert not classifier.score("Prove it.", None).familiar


def test_far_from_the_training_data_both_scores_count_half() -> None:
    near = Classifier(sample())
    always = Classifier(Artefact(**{**vars(sample()), "familiar_at": -1.0}))
    far = unit(0, 0, 0, 1)

    def odds(complexity: float) -> float:
        return float(np.log(complexity / (1 - complexity)))

    full, plain = always.score("Prove it.", far).complexity, near.score("Prove it.", None).complexity
    assert odds(near.score("Prove it.", far).complexity) == pytest.approx((odds(full) + odds(plain)) / 2, abs=1e-4)


def test_the_vector_of_a_script_that_the_embedder_cannot_read_is_not_used() -> None:
    classifier = Classifier(sample())
    text = "Что это такое?"
    assert classifier.score(text, unit(1)) == classifier.score(text, None)


def test_a_vector_of_another_embedder_is_an_error() -> None:
    with pytest.raises(ValueError, match="reads 8 values"):
        Classifier(sample()).score("Prove it.", np.ones(4, dtype=np.float32))
