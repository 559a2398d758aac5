"""Makes the token vectors of the first look, and measures what it keeps and what it spares.

    FOREBAY_DATA=DIR python -m bench.first_look [--make core/glance.npz] [--vectors DIR] [--dim 192]

Token vectors are the packaged MiniLM's own for each token alone, on their main axes, weighted by rarity, in eight bits.
The least similarity for a threshold is what 99 % of the labelled pairs reach whose cosine is above the threshold and
which the guard serves; only sets whose licence allows training take part. Measured on Quora question pairs, by cache
size: the share of asked questions that are sent to the full encoder, of all and of those with a neighbour to serve.
"""

import argparse
import importlib.resources
import io
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from bench.cache_texts import question_mix
from bench.cache_trust import StoredVectors
from cache.evaluate import read_pairs
from cache.guard.corpus import SOURCES
from cache.guard.verifier import guard_for
from cache.verdict import Side, Verifier
from core.embedder import MINILM, Encoder, Vector, packaged_minilm
from core.encoders import encoder_for
from core.glance import FILE, TokenVectors
from core.int8.encoder import packaged_model

# Pairs of the same words in another order would make the task look easier than it is.
LABELLED = sorted(set(SOURCES) - {"paws_en"})
THRESHOLDS = (0.75, 0.80, 0.85, 0.90, 0.95)
LOST = 0.01
# Of the tokens, those before this one are reserved; [CLS] and [SEP] stand around a text.
FIRST, START, END = 999, 101, 102
# Constant of the weights a / (a + p) for a token of probability p, which follows Zipf's law in the vocabulary's order.
RARITY = 1e-4
SIZES = (100, 1000, 9000)
ASKED = 1600
Matrix = NDArray[np.float32]


def distilled(folder: Path, dim: int) -> dict[str, Any]:
    """Codes and scales of the token vectors, shapes (tokens, dim) and (tokens,)."""
    import onnxruntime  # noqa: PLC0415  # as in core.int8.encoder

    session: Any = onnxruntime.InferenceSession(packaged_model(folder, exact=True), providers=["CPUExecutionProvider"])
    tokens = json.loads((folder / "config.json").read_bytes())["vocab_size"]
    rows = []
    for at in range(0, tokens, 256):
        part = np.arange(at, min(at + 256, tokens))
        ids = np.stack([np.full(len(part), START), part, np.full(len(part), END)], axis=1)
        rows.append(session.run(None, {"ids": ids.astype(np.int64)})[0])
    vectors = np.concatenate(rows).astype(np.float64)
    vectors -= vectors[FIRST:].mean(axis=0)
    axes = np.linalg.svd(vectors[FIRST:], full_matrices=False)[2][:dim]
    chance = 1 / np.arange(2, tokens + 2)
    vectors = vectors @ axes.T * (RARITY / (RARITY + chance / chance.sum()))[:, None]
    vectors[:FIRST] = 0
    scales = np.abs(vectors).max(axis=1) / 127
    codes = np.round(vectors / np.where(scales > 0, scales, 1)[:, None])
    return {"codes": codes.astype(np.int8), "scales": scales.astype(np.float32)}


def served(data: Path, encoder: Encoder, verifier: Verifier) -> list[tuple[float, str, str]]:
    """Cosine and texts of the labelled pairs with one answer that the guard serves."""
    found = []
    for name in LABELLED:
        pairs = [pair for pair in read_pairs(data / "cache" / f"{name}.jsonl.gz") if pair.same]
        texts = [(pair.a, pair.b) for pair in pairs if isinstance(pair.a, str) and isinstance(pair.b, str)]
        flat = encoder.encode([text for pair in texts for text in pair])
        for (a, b), one, other in zip(texts, flat[::2], flat[1::2], strict=True):
            cosine = float(one.vector @ other.vector)
            if cosine >= THRESHOLDS[0] and verifier.verify(Side(b, other.vector), Side(a, one.vector)).served:
                found.append((cosine, a, b))
    return found


def matrix(glance: TokenVectors, texts: Iterable[str]) -> Matrix:
    """Static vectors of texts."""
    return np.stack([glance.vector(text) for text in texts])


def table(parts: dict[str, Any]) -> bytes:
    """The file."""
    out = io.BytesIO()
    np.savez_compressed(out, **parts)
    return out.getvalue()


def make(folder: Path, data: Path, encoder: Encoder, dim: int) -> bytes:
    """Distil, and measure the least similarity for each threshold."""
    parts = distilled(folder, dim) | {"least": np.zeros((0, 2))}
    glance = TokenVectors(folder / "tokenizer.json", table(parts))
    pairs = served(data, encoder, guard_for(MINILM))
    near = (matrix(glance, (a for _, a, _ in pairs)) * matrix(glance, (b for _, _, b in pairs))).sum(axis=1)
    cosines = np.array([cosine for cosine, _, _ in pairs])
    least = [(at, float(np.quantile(near[cosines >= at], LOST, method="lower"))) for at in THRESHOLDS]
    for at, low in least:
        print(f"τ {at:.2f}: {int((cosines >= at).sum())} pairs, least static similarity {low:.3f}")
    return table(parts | {"least": np.array(least)})


def measured(glance: TokenVectors, encoder: Encoder, threshold: float) -> Table:
    """What the first look does to Quora questions that are asked of caches of several sizes."""
    mix = question_mix(encoder, SIZES[-1], ASKED)
    verifier, least = guard_for(MINILM), glance.least(threshold)
    asked = [one.vector for one in encoder.encode(list(mix.asked))]
    cosines = np.stack(asked) @ np.stack([one.embedding.vector for one in mix.stored]).T
    static = matrix(glance, mix.asked) @ matrix(glance, (one.text for one in mix.stored)).T
    columns = np.random.default_rng(0).permutation(len(mix.stored))
    found = Table(title=f"{mix.name}, τ = {threshold}, least static similarity {least:.3f}")
    for name in ("stored", "asked", "near ≥ τ", "of them kept", "hits", "of them kept", "sent to the encoder"):
        found.add_column(name, justify="right")
    for size in SIZES:
        part = columns[:size]
        passed = static[:, part].max(axis=1) >= (least or -1)
        near = cosines[:, part].max(axis=1) >= threshold
        hits = near & np.array(
            [
                one and _hit(verifier, text, vector, [mix.stored[column] for column in _nearest(row, part)], threshold)
                for one, text, vector, row in zip(near, mix.asked, asked, cosines, strict=True)
            ]
        )
        kept = [f"{passed[group].mean():.3f}" if group.any() else "-" for group in (near, hits)]
        counts = [str(size), str(len(asked)), str(int(near.sum())), kept[0], str(int(hits.sum())), kept[1]]
        found.add_row(*counts, f"{passed.mean():.3f}")
    return found


def _nearest(row: Vector, part: NDArray[np.int64]) -> list[int]:
    return [int(part[at]) for at in np.argsort(-row[part])[:3]]


def _hit(verifier: Verifier, text: str, vector: Vector, stored: list[Any], threshold: float) -> bool:
    return any(
        float(vector @ one.embedding.vector) >= threshold
        and verifier.verify(Side(text, vector), Side(one.text, one.embedding.vector)).served
        for one in stored
    )


def main() -> None:
    """Make the file on request, and print what it does."""
    parser = argparse.ArgumentParser(prog="python -m bench.first_look", description=__doc__)
    parser.add_argument("--make", type=Path, help="write the file")
    parser.add_argument("--dim", type=int, default=192)
    parser.add_argument("--vectors", type=Path, help="folder that keeps the embeddings between runs")
    parser.add_argument("--threshold", type=float, default=0.80)
    given = parser.parse_args()
    folder = packaged_minilm()
    if folder is None or "FOREBAY_DATA" not in os.environ:
        parser.error("the packaged MiniLM must be installed, and FOREBAY_DATA name the folder of labelled pairs")
    encoder = encoder_for()
    kept: Encoder = StoredVectors(encoder, given.vectors) if given.vectors else encoder
    if given.make:
        given.make.write_bytes(make(folder, Path(os.environ["FOREBAY_DATA"]), kept, given.dim))
    data = given.make.read_bytes() if given.make else importlib.resources.files("core").joinpath(FILE).read_bytes()
    Console(width=130).print(measured(TokenVectors(folder / "tokenizer.json", data), kept, given.threshold))


if __name__ == "__main__":
    main()
