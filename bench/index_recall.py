"""How many of the nearest questions the similarity index finds, and how long a search takes.

    [FOREBAY_DATA=DIR] python -m bench.index_recall [--stored 60000] [--asked 1000] [--vectors DIR]

Stored and asked are Quora questions where FOREBAY_DATA is set, else the project's templates. Counted are the three
nearest questions of an asked one, as far as their cosine reaches τ: those are what the guard is asked about. Beside the
index of embeddings that of the first look, whose candidates are found by static vectors.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from bench.cache_texts import question_mix
from bench.cache_trust import StoredVectors
from cache.first_look import READ_ROWS
from cache.index import SimilarityIndex
from core.config.records import Semantic
from core.embedder import MINILM, Encoder, Vector
from core.encoders import encoder_for
from core.glance import glance_for

NEAREST = 3
Found = tuple[int, float, float]


async def measure(
    stored: Sequence[Vector], asked: Sequence[Vector], wanted: Sequence[Sequence[int]], read: int | None = None
) -> Found:
    """How many rows of `wanted` there are, the share of them that is found, and the median search in µs."""
    index = SimilarityIndex(read)
    for number, vector in enumerate(stored):
        index.add("p", str(number), vector)
        if number % 256 == 0:
            await asyncio.sleep(0)
    await index.settled()
    times, found = [], 0
    for vector, rows in zip(asked, wanted, strict=True):
        began = time.perf_counter()
        near = await index.nearest("p", vector, 2 * NEAREST)
        times.append(time.perf_counter() - began)
        found += len({str(row) for row in rows} & {one.id for one in near[:NEAREST]})
    await index.aclose()
    count = sum(map(len, wanted))
    return count, found / max(1, count), float(np.median(times) * 1e6)


def nearest(stored: NDArray[np.float32], asked: NDArray[np.float32], least: float) -> list[list[int]]:
    """The rows of the nearest stored vectors at or above `least`, for each asked one."""
    found = []
    for vector in asked:
        cosines = stored @ vector
        rows = np.argpartition(-cosines, NEAREST)[:NEAREST]
        found.append([int(row) for row in rows if cosines[row] >= least])
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.index_recall", description=__doc__)
    parser.add_argument("--stored", type=int, default=60_000)
    parser.add_argument("--asked", type=int, default=1000)
    parser.add_argument("--vectors", type=Path, help="folder that keeps the embeddings between runs")
    given = parser.parse_args()
    encoder = encoder_for()
    kept: Encoder = StoredVectors(encoder, given.vectors) if given.vectors else encoder
    mix = question_mix(kept, given.stored, given.asked)
    stored = np.stack([one.embedding.vector for one in mix.stored])
    asked = np.stack([one.vector for one in kept.encode(list(mix.asked))])
    threshold, glance = Semantic().threshold, glance_for(MINILM)
    table = Table(title=f"{mix.name}: {len(stored)} stored, {len(asked)} asked, τ = {threshold}")
    for column in ("index", "wanted", "found", "search, µs"):
        table.add_column(column, justify="left" if column == "index" else "right")
    sides: list[tuple[str, NDArray[np.float32], NDArray[np.float32], float, int | None]] = [
        ("embeddings", stored, asked, threshold, None)
    ]
    if glance is not None and (least := glance.least(threshold)) is not None:
        here = np.stack([glance.vector(one.text) for one in mix.stored])
        there = np.stack([glance.vector(text) for text in mix.asked])
        sides.append(("first look", here, there, least, READ_ROWS))
    for name, held, sought, at, read in sides:
        count, share, micros = asyncio.run(measure(list(held), list(sought), nearest(held, sought, at), read))
        table.add_row(name, str(count), f"{share:.4f}", f"{micros:.0f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
