"""The real embedding model keeps the promises of `core.embedder.Encoder`."""

import asyncio
import threading

import numpy as np
import pytest

from core.embedder import BatchingEmbedder, SentenceTransformerEncoder

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


@pytest.fixture
def encoder(minilm: SentenceTransformerEncoder) -> SentenceTransformerEncoder:
    return minilm


def test_vectors_are_unit_length_and_of_the_promised_shape(encoder: SentenceTransformerEncoder) -> None:
    for embedding in encoder.encode(TEXTS):
        assert (embedding.vector.shape, embedding.vector.dtype) == ((encoder.dim,), np.float32)
        assert np.linalg.norm(embedding.vector) == pytest.approx(1, abs=1e-5)


def test_a_paraphrase_is_closer_than_a_stranger(encoder: SentenceTransformerEncoder) -> None:
    question, paraphrase, stranger = (embedding.vector for embedding in encoder.encode(TEXTS[:3]))
    assert question @ paraphrase > 0.8
    assert question @ stranger < 0.3


def test_a_vector_does_not_depend_on_its_batch(encoder: SentenceTransformerEncoder) -> None:
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
def test_a_text_past_the_window_says_so(encoder: SentenceTransformerEncoder, text: str, truncated: bool) -> None:
    assert encoder.encode([text])[0].truncated is truncated


def test_texts_that_differ_in_head_or_tail_only_have_different_vectors(encoder: SentenceTransformerEncoder) -> None:
    filler = "and so on " * 400
    texts = [f"Paris {filler} end", f"London {filler} end", f"Paris {filler} beginning"]
    first, other_head, other_tail = (embedding.vector for embedding in encoder.encode(texts))
    assert first @ other_head < 0.9999
    assert first @ other_tail < 0.9999


async def test_r26_a_200_000_character_text_is_bounded(encoder: SentenceTransformerEncoder) -> None:
    seen: list[int] = []

    class Watching(SentenceTransformerEncoder):
        def __init__(self) -> None:
            self._model, self.name, self.dim, self._limit = encoder._model, encoder.name, encoder.dim, encoder._limit

        def _fit(self, text: str) -> tuple[str, bool]:
            fitted = super()._fit(text)
            seen.append(len(fitted[0]))
            return fitted

    async with BatchingEmbedder(Watching()) as embedder:
        assert threading.active_count() < 100
        found = await asyncio.wait_for(embedder.embed("{[한 x1" * 28_572, 60), 60)
    assert found is not None
    assert found.truncated
    # What reaches the model is within its window, a few characters per token.
    assert seen[0] < 4000
