"""The channels of the packaged MiniLM that stay in float32, measured on the project's own questions.

    python -m bench.embedder_outliers > core/int8/outliers.json

For each matrix product, the input channels that reach the largest values; how many is a trade of time against accuracy.
"""

import hashlib
import json
from typing import Any

import numpy as np
import onnxruntime

from bench.cache_texts import project_texts
from core.embedder import packaged_minilm
from core.int8.encoder import packaged_model

CHANNELS = 8
TEXTS = 200
# The input of each product that has outliers; that of the attention's output has none.
INPUTS = {"qkv": "hidden", "inner": "attended", "outer": "active"}


def main() -> None:
    """Print the file."""
    folder = packaged_minilm()
    if folder is None:
        raise SystemExit("the packaged MiniLM is not installed")
    from tokenizers import Tokenizer  # noqa: PLC0415  # as in core.int8.encoder

    layers = json.loads((folder / "config.json").read_bytes())["num_hidden_layers"]
    values = {
        f"{layer}.{product}": "hidden" if product == "qkv" and layer == 0 else f"{layer - (product == 'qkv')}.{value}"
        for layer in range(layers)
        for product, value in INPUTS.items()
    }
    model = packaged_model(folder, exact=True, extra=sorted(set(values.values())))
    session: Any = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    peaks: dict[str, Any] = dict.fromkeys(values, 0.0)
    names = [output.name for output in session.get_outputs()]
    for text in project_texts()[:TEXTS]:
        found = dict(
            zip(names, session.run(None, {"ids": np.array([tokenizer.encode(text).ids], dtype=np.int64)}), strict=True)
        )
        for product, value in values.items():
            peaks[product] = np.maximum(peaks[product], np.abs(found[value][0]).max(axis=0))
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    outliers = {product: sorted(np.argsort(-peak)[:CHANNELS].tolist()) for product, peak in peaks.items()}
    print(json.dumps({"sha256": digest, "outliers": outliers}))


if __name__ == "__main__":
    main()
