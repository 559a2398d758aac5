"""Which encoder computes the vectors of a configured model."""

import importlib.util
import logging

from core.embedder import MINILM, Encoder, SentenceTransformerEncoder, packaged_minilm

logger = logging.getLogger("forebay.embedder")
# What the 8-bit path is made of; without one of them torch computes the same model.
NEEDED = ("onnx", "onnxruntime", "safetensors", "tokenizers")


def encoder_for(model: str = MINILM, source: str | None = None, threads: int = 1) -> Encoder:
    """The encoder of `embedder.model` and `embedder.source`. Blocking: a second, with torch many.

    MiniLM from its package runs in eight bits on onnxruntime; where that cannot be, and for every other model or
    source, sentence-transformers on torch. Raises what a model library raises where nothing can be loaded.
    """
    folder = packaged_minilm() if source is None and model == MINILM else None
    if folder is None:
        return SentenceTransformerEncoder(model, source, threads)
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        logger.warning("the embedder runs on torch: %s is not installed", ", ".join(missing))
        return SentenceTransformerEncoder(model, source, threads)
    from core.int8.encoder import Int8Encoder  # noqa: PLC0415  # its libraries may be missing

    try:
        return Int8Encoder(folder, threads)
    except Exception as error:  # noqa: BLE001  # a boundary: a native library raises anything, and torch does the same
        logger.warning("the embedder runs on torch: %s: %s", type(error).__name__, error)
        return SentenceTransformerEncoder(model, source, threads)
