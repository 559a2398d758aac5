"""A cheap approximation of an embedding: the mean of static token vectors that were distilled from the same model.

One vector per token of the vocabulary: the model's own for the token alone, weighted by how rare the token is (Tulkens
and van Dongen, Model2Vec, 2024; weights after Arora et al., 2017), mapped so that sums over texts point where their
embeddings do. Made by `bench.first_look`.
"""

import importlib.resources
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from core.embedder import MINILM, Vector, packaged_minilm

FILE = "glance.npz"


class Glance(Protocol):
    """Looks at a text in microseconds, to tell whether a full embedding can be worth its time.

    `dim` is the length of its vectors. `vector(text)`: float32, shape (dim,), norm 1, or 0 where nothing can be read.
    `least(threshold)`: the cosine that nearly all pairs of texts reach here whose embeddings reach `threshold` and
    which one answer serves; None where that was not measured. Pure, quick, called on the event loop.
    """

    dim: int

    def vector(self, text: str) -> Vector: ...

    def least(self, threshold: float) -> float | None: ...


class TokenVectors:
    """Token vectors in eight bits, with the tokenizer of the model they were distilled from. Raises OSError."""

    def __init__(self, tokenizer: Path, table: bytes) -> None:
        # Heavy: see the docstring of core.embedder.
        from tokenizers import Tokenizer  # noqa: PLC0415

        self._tokenizer: Any = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        with np.load(io.BytesIO(table)) as found:
            self._codes: NDArray[np.int8] = found["codes"]
            self._scales: NDArray[np.float32] = found["scales"].astype(np.float32)
            self._least: list[tuple[float, float]] = [(float(at), float(low)) for at, low in found["least"]]
        self.dim = int(self._codes.shape[1])

    def vector(self, text: str) -> Vector:
        """The unit vector of a text; zero where it has no known token."""
        ids: Sequence[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        total: Vector = self._scales[ids] @ self._codes[ids].astype(np.float32)
        norm = float(np.sqrt(total @ total))
        return total / np.float32(norm) if norm > 0 else total

    def least(self, threshold: float) -> float | None:
        """The measured cosine for the highest measured threshold that is not above this one."""
        return max((low for at, low in self._least if at <= threshold + 1e-9), default=None)


def glance_for(embedder: str) -> Glance | None:
    """The glance that was distilled from an embedder; None where there is none or its tokenizer is not installed."""
    folder = packaged_minilm() if embedder == MINILM else None
    if folder is None:
        return None
    return TokenVectors(folder / "tokenizer.json", importlib.resources.files("core").joinpath(FILE).read_bytes())
