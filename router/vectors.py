"""Embeddings of many texts for training and measuring: short ones first, kept on disk between runs on request."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from core.embedder import Encoder
from core.errors import ConfigError, Problem

Progress = Callable[[int, int], None]
Vectors = NDArray[np.float32]
_BATCH = 64


def embed(texts: Sequence[str], encoder: Encoder, kept: Path | None, progress: Progress) -> Vectors:
    """The vectors of texts, shape (len(texts), dim). `kept`: an .npz file that is read first and added to at the end.

    `progress(done, total)` is called after each batch of texts that had to be embedded.
    """
    known = _read(kept, encoder.name) if kept is not None else {}
    missing = sorted({text for text in texts if _key(text) not in known}, key=len)
    for start in range(0, len(missing), _BATCH):
        batch = missing[start : start + _BATCH]
        for text, embedding in zip(batch, encoder.encode(batch), strict=True):
            known[_key(text)] = embedding.vector
        progress(min(start + _BATCH, len(missing)), len(missing))
    if kept is not None and missing:
        np.savez(kept, embedder=encoder.name, keys=np.array(list(known)), vectors=np.array(list(known.values())))
    return np.array([known[_key(text)] for text in texts], dtype=np.float32).reshape(len(texts), encoder.dim)


def _key(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _read(path: Path, embedder: str) -> dict[str, Vectors]:
    if not path.exists():
        return {}
    try:
        with np.load(path) as found:
            if str(found["embedder"]) != embedder:
                raise ConfigError(
                    [Problem("vectors", f"{path} holds vectors of another embedder: {found['embedder']}")]
                )
            return dict(zip(found["keys"].tolist(), found["vectors"], strict=True))
    except (OSError, KeyError, ValueError, BadZipFile) as error:
        raise ConfigError([Problem("vectors", f"{path} is not a file of vectors: {error}")]) from None
