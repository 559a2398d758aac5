"""Makes the files of the first look, and measures what it keeps and what it spares.

    FOREBAY_DATA=DIR python -m bench.first_look [--make FOLDER] [--vectors DIR] [--dim 128]

Token vectors are the packaged MiniLM's own for each token alone, weighted by rarity; their sum over a text is mapped,
by ridge regression over texts whose licence allows training, to the text's embedding, on its main axes, in eight bits.
The least similarity for a threshold, where there is no guard, is what 99 % of the labelled pairs reach whose cosine is
above the threshold and which the guard serves; what is expected of the guard is fitted by `bench.foresight`. Only sets
whose licence allows training take part. `--make` writes FOLDER/core/glance.npz and FOLDER/cache/guard/outlook.json.
Measured on Quora question pairs, which are in neither, by cache size: the share of asked questions that are sent to the
full encoder, of all and of those with a neighbour to serve.
"""

import argparse
import asyncio
import importlib.resources
import io
import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from bench.cache_texts import Stored, embedded, question_mix
from bench.cache_trust import StoredVectors
from bench.foresight import examples, fit, pools
from cache.evaluate import read_pairs
from cache.first_look import FirstLook
from cache.guard.corpus import SOURCES
from cache.guard.outlook import FILE as OUTLOOK
from cache.guard.outlook import foresight_for
from cache.guard.verifier import Guard, guard_for
from cache.guard.verifier import packaged_model as packaged_guard
from cache.verdict import Notes, Side, Verifier
from core.config.records import Semantic
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
ASKED = 6000
Matrix = NDArray[np.float32]


def token_vectors(folder: Path) -> NDArray[np.float64]:
    """The model's vector of each token alone, weighted by rarity, shape (tokens, dim); 0 for reserved tokens."""
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
    chance = 1 / np.arange(2, tokens + 2)
    weights: NDArray[np.float64] = RARITY / (RARITY + chance / chance.sum())
    weights[:FIRST] = 0
    weighted: NDArray[np.float64] = vectors * weights[:, None]
    return weighted


def fitted(folder: Path, vectors: NDArray[np.float64], texts: Sequence[Stored], dim: int) -> dict[str, Any]:
    """Codes and scales of the tokens, shapes (tokens, dim) and (tokens,), so that sums point where embeddings do.

    A ridge regression takes the direction of a text's sum to its embedding; what it gives is kept on its main axes.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415  # as in core.glance

    tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    ids = [tokenizer.encode(one.text, add_special_tokens=False).ids for one in texts]
    known = [row for row, found in enumerate(ids) if np.any(vectors[found])]
    sums = np.stack([vectors[ids[row]].sum(axis=0) for row in known])
    sums /= np.linalg.norm(sums, axis=1, keepdims=True)
    goals = np.stack([texts[row].embedding.vector for row in known])
    ridge = np.eye(sums.shape[1])
    mapping = np.linalg.solve(sums.T @ sums + ridge, sums.T @ goals + ridge)
    reached = sums @ mapping
    reached /= np.linalg.norm(reached, axis=1, keepdims=True)
    # The right singular vectors, by way of the smaller matrix.
    axes = np.linalg.eigh(reached.T @ reached)[1][:, ::-1][:, :dim]
    vectors = vectors @ mapping @ axes
    scales = np.abs(vectors).max(axis=1) / 127
    codes = np.round(vectors / np.where(scales > 0, scales, 1)[:, None])
    return {"codes": codes.astype(np.int8), "scales": scales.astype(np.float32), "least": np.zeros((0, 2))}


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


def make(folder: Path, data: Path, encoder: Encoder, dim: int) -> tuple[bytes, bytes]:
    """The token vectors with the least similarity for each threshold, and what is foreseen of the guard."""
    tokenizer, guard = folder / "tokenizer.json", Guard(packaged_guard())
    tokens, corpus = token_vectors(folder), pools(data)
    texts = embedded(encoder, list(corpus.sources))
    parts = fitted(folder, tokens, texts, dim)
    glance = TokenVectors(tokenizer, table(parts))
    pairs = served(data, encoder, guard)
    near = (matrix(glance, (a for _, a, _ in pairs)) * matrix(glance, (b for _, _, b in pairs))).sum(axis=1)
    cosines = np.array([cosine for cosine, _, _ in pairs])
    least = [(at, float(np.quantile(near[cosines >= at], LOST, method="lower"))) for at in THRESHOLDS]
    for at, low in least:
        print(f"τ {at:.2f}: {int((cosines >= at).sum())} pairs, least static similarity {low:.3f}")
    found = []
    for half in (0, 1):
        # The vectors must not have seen the texts that they are judged by.
        others = [one for one in texts if corpus.halves[one.text] != half]
        strange = TokenVectors(tokenizer, table(fitted(folder, tokens, others, dim)))
        found += examples(corpus, half, texts, strange, guard)
    outlook = orjson.dumps(fit(found, Semantic().threshold, THRESHOLDS)) + b"\n"
    return table(parts | {"least": np.array(least)}), outlook


async def measured(glance: TokenVectors, encoder: Encoder, threshold: float, count: int) -> Table:
    """What the first look does to Quora questions that are asked of caches of several sizes."""
    mix = question_mix(encoder, SIZES[-1], count)
    verifier, least = guard_for(MINILM), glance.least(threshold)
    foresight = foresight_for(verifier, threshold, judge=False)
    asked = [one.vector for one in encoder.encode(list(mix.asked))]
    cosines = np.stack(asked) @ np.stack([one.embedding.vector for one in mix.stored]).T
    columns = np.random.default_rng(0).permutation(len(mix.stored))
    found = Table(title=f"{mix.name}, τ = {threshold}")
    for name in ("stored", "asked", "near ≥ τ", "hits", "of them kept", "sent to the encoder", "look, µs of CPU"):
        found.add_column(name, justify="right")
    for size in SIZES:
        part = columns[:size]
        look = FirstLook(glance, -1.0 if least is None else least, foresight)
        for column in part:
            look.add(str(column), "p", mix.stored[column].text, Notes())
        await look.settled()
        began = time.process_time()
        passed = np.array([await look.promising("p", text) for text in mix.asked])
        micros = (time.process_time() - began) / len(asked) * 1e6
        await look.aclose()
        near = cosines[:, part].max(axis=1) >= threshold
        hits = near & np.array(
            [
                one and _hit(verifier, text, vector, [mix.stored[column] for column in _nearest(row, part)], threshold)
                for one, text, vector, row in zip(near, mix.asked, asked, cosines, strict=True)
            ]
        )
        kept = f"{int((passed & hits).sum())}"
        counts = [str(size), str(len(asked)), str(int(near.sum())), str(int(hits.sum())), kept]
        found.add_row(*counts, f"{passed.mean():.3f}", f"{micros:.0f}")
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
    parser.add_argument("--make", type=Path, help="write the files under this folder")
    parser.add_argument("--asked", type=int, default=ASKED)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--vectors", type=Path, help="folder that keeps the embeddings between runs")
    parser.add_argument("--threshold", type=float, default=0.80)
    given = parser.parse_args()
    folder = packaged_minilm()
    if folder is None or "FOREBAY_DATA" not in os.environ:
        parser.error("the packaged MiniLM must be installed, and FOREBAY_DATA name the folder of labelled pairs")
    encoder = encoder_for()
    kept: Encoder = StoredVectors(encoder, given.vectors) if given.vectors else encoder
    if given.make:
        data = Path(os.environ["FOREBAY_DATA"])
        content, outlook = make(folder, data, kept, given.dim)
        (given.make / "core" / FILE).write_bytes(content)
        (given.make / "cache" / "guard" / OUTLOOK).write_bytes(outlook)
    glance = TokenVectors(folder / "tokenizer.json", importlib.resources.files("core").joinpath(FILE).read_bytes())
    Console(width=130).print(asyncio.run(measured(glance, kept, given.threshold, given.asked)))


if __name__ == "__main__":
    main()
