"""The packaged MiniLM on onnxruntime: a third of the time and memory of torch, for vectors that are worth the same.

The graph is made from the packaged weights when a process starts (less than a second), so nothing is kept on disk that
could be stale. Instructions: AVX2 on x86-64; VNNI, AMX or Arm's dot product are used where they are, for more speed.
"""

import hashlib
import importlib.resources
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from core.embedder import MINILM, Embedding, fit, revision_of

OUTLIERS = "outliers.json"


class UnknownWeightsError(Exception):
    """The weights are not those that the outlier channels were measured on."""


class Int8Encoder:
    """all-MiniLM-L6-v2 from the folder of its packaged copy, with 8-bit matrix products.

    `threads` compute one text. Every text is a run of its own, so its vector does not depend on what else is asked.
    Cosine to the vector of torch: 0.9996 on average. Raises UnknownWeightsError, OSError, and what onnxruntime raises.
    """

    backend = "int8"
    shares = False

    def __init__(self, folder: Path, threads: int = 1) -> None:
        # Its default is to report its use to its maker, from the import on; a gateway calls nobody by itself.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        # Heavy: see the docstring of core.embedder.
        import onnxruntime  # noqa: PLC0415
        from tokenizers import Tokenizer  # noqa: PLC0415

        self.name, self.revision = MINILM, revision_of(folder)
        self._limit = int(json.loads((folder / "sentence_bert_config.json").read_bytes())["max_seq_length"])
        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # A thread that spins while it waits takes a core from the event loop.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        model = packaged_model(folder)
        self._session: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.dim = int(self._session.get_modelmeta().custom_metadata_map["dim"])

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        """One unit vector per text, in order. A text past the window is embedded by its head and tail."""
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> Embedding:
        fitted, cut = fit(text, self._limit - 2, self._offsets)
        ids: list[int] = self._tokenizer.encode(fitted).ids
        if len(ids) > self._limit:
            # Cut in the middle of a word, the halves may have a piece more than the whole.
            ids = [*ids[: self._limit - 1], ids[-1]]
        mean = self._session.run(None, {"ids": np.array([ids], dtype=np.int64)})[0][0]
        return Embedding(mean / np.linalg.norm(mean), cut)

    def _offsets(self, text: str) -> Sequence[tuple[int, int]]:
        offsets: Sequence[tuple[int, int]] = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return offsets


def packaged_model(folder: Path, *, exact: bool = False, extra: Sequence[str] = ()) -> bytes:
    """The ONNX model of the weights in a folder. `exact`: in float32; `extra`: inner values given out too.

    Raises UnknownWeightsError, OSError.
    """
    # Heavy: see the docstring of core.embedder.
    from safetensors.numpy import load_file  # noqa: PLC0415

    from core.int8.graph import bert  # noqa: PLC0415

    known = json.loads(importlib.resources.files("core.int8").joinpath(OUTLIERS).read_bytes())
    path = folder / "model.safetensors"
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != known["sha256"]:
        raise UnknownWeightsError(f"{path} is not the model that {OUTLIERS} was made for")
    shape = json.loads((folder / "config.json").read_bytes())
    weights = load_file(path)
    model = bert(weights, shape["num_attention_heads"], None if exact else known["outliers"], extra)
    entry = model.metadata_props.add()
    entry.key, entry.value = "dim", str(shape["hidden_size"])
    serialized: bytes = model.SerializeToString()
    return serialized
