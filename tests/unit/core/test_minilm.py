"""The real embedding model keeps the promises of `core.embedder.Encoder`."""

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from core.embedder import MINILM, BatchingEmbedder, Encoder, SentenceTransformerEncoder, fit, packaged_minilm
from core.encoders import encoder_for
from core.int8.encoder import Int8Encoder, UnknownWeightsError

pytestmark = pytest.mark.embedder

TEXTS = [
    "How do I reset my password?",
    "I forgot my password, how can I change it?",
    "What is the capital of France?",
    "short",
    "",
    "Wie setze ich mein Passwort zurück?",
    "word " * 600,
]


@pytest.fixture(params=["int8", "torch"])
def encoder(request: pytest.FixtureRequest) -> Encoder:
    found: Encoder = request.getfixturevalue("minilm" if request.param == "int8" else "torch_minilm")
    assert found.backend == request.param
    return found


def test_vectors_are_unit_length_and_of_the_promised_shape(encoder: Encoder) -> None:
    for embedding in encoder.encode(TEXTS):
        assert (embedding.vector.shape, embedding.vector.dtype) == ((encoder.dim,), np.float32)
        assert np.linalg.norm(embedding.vector) == pytest.approx(1, abs=1e-5)


def test_a_paraphrase_is_closer_than_a_stranger(encoder: Encoder) -> None:
    question, paraphrase, stranger = (embedding.vector for embedding in encoder.encode(TEXTS[:3]))
    assert question @ paraphrase > 0.8
    assert question @ stranger < 0.3


def test_a_vector_does_not_depend_on_its_batch(encoder: Encoder) -> None:
    alone = [encoder.encode([text])[0].vector for text in TEXTS]
    for together in (encoder.encode(TEXTS), encoder.encode(TEXTS[::-1])[::-1]):
        assert max(np.abs(a - b.vector).max() for a, b in zip(alone, together, strict=True)) < 1e-5


@pytest.mark.parametrize(
    ("text", "truncated"),
    [
        ("word " * 254, False),
        ("word " * 255, True),
        ("a" * 254, False),
        ("a." * 200, True),
        ("né à " * 60, False),
        ("한국어는 재미있는 언어입니다. " * 14, True),
        ("漢字" * 127, False),
        ("漢字" * 128, True),
    ],
    ids=["words that fit", "one word more", "one long word", "dense", "accents", "hangul", "han", "one han more"],
)
def test_a_text_past_the_window_says_so(encoder: Encoder, text: str, truncated: bool) -> None:
    assert encoder.encode([text])[0].truncated is truncated


def test_texts_that_differ_in_head_or_tail_only_have_different_vectors(encoder: Encoder) -> None:
    filler = "and so on " * 400
    texts = [f"Paris {filler} end", f"London {filler} end", f"Paris {filler} beginning"]
    first, other_head, other_tail = (embedding.vector for embedding in encoder.encode(texts))
    assert first @ other_head < 0.9999
    assert first @ other_tail < 0.9999


def test_eight_bits_are_worth_the_same_as_torch(minilm: Encoder, torch_minilm: SentenceTransformerEncoder) -> None:
    texts = [*TEXTS[:4], *TEXTS[5:], "né à Paris", "def f(x): return x + 1", "漢字" * 60]
    pairs = zip(minilm.encode(texts), torch_minilm.encode(texts), strict=True)
    assert min(float(ours.vector @ theirs.vector) for ours, theirs in pairs) > 0.998
    assert minilm.name == torch_minilm.name


def test_another_model_or_source_runs_on_torch() -> None:
    folder = packaged_minilm()
    assert folder is not None
    assert encoder_for(MINILM, str(folder)).backend == "torch"


def test_other_weights_under_the_packaged_name_are_not_trusted(tmp_path: Path) -> None:
    folder = packaged_minilm()
    assert folder is not None
    for path in folder.iterdir():
        if path.is_file() and path.name != "model.safetensors":
            shutil.copy(path, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(UnknownWeightsError):
        Int8Encoder(tmp_path)


def test_without_onnxruntime_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.encoders.NEEDED", ("a_library_that_is_not_installed",))
    assert encoder_for().backend == "torch"


async def test_r26_a_200_000_character_text_is_bounded(encoder: Encoder) -> None:
    async with BatchingEmbedder(encoder) as embedder:
        assert threading.active_count() < 100
        found = await asyncio.wait_for(embedder.embed("{[한 x1" * 28_572, 60), 60)
    assert found is not None
    assert found.truncated


def test_r26_what_reaches_the_model_is_within_its_window() -> None:
    text, cut = fit("{[한 x1" * 28_572, 254, lambda text: [(at, at + 1) for at in range(len(text))])
    assert cut
    # A few characters per token.
    assert len(text) < 4000


def test_loading_it_reports_nothing_to_anybody(tmp_path: Path) -> None:
    """onnxruntime keeps a device id and a database of events to send in the home folder, unless it is told not to."""
    script = "from core.encoders import encoder_for; assert encoder_for().encode(['x']); print('loaded')"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "ORT_"))}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "loaded\n", done.stderr
    assert [path for path in tmp_path.rglob("*") if "onnxruntime" in path.name or path.name == "deviceid"] == []
