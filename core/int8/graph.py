"""BERT as an ONNX graph with 8-bit matrix products.

Weights are rounded per output column, activations per run (onnxruntime's DynamicQuantizeMatMul). A transformer has a
few input channels that are many times larger than all others; they would set the step of the rounding for all, so their
share of the product is computed in float32 beside it (Dettmers et al., LLM.int8(), 2022). Weights are unsigned:
the signed kernels for processors without VNNI add pairs of products in 16 bits, which overflows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

# Texts of one run have the same length. With 8 bits they should be one: rounding looks at all values of a run.
Array = NDArray[Any]
Weights = Mapping[str, NDArray[np.float32]]
# Layer and input of a matrix product ("0.qkv", "0.inner", "0.outer") to the channels that stay in float32.
Outliers = Mapping[str, Sequence[int]]
INPUT, OUTPUT = "ids", "mean"
FUSED = "com.microsoft"
ZERO = 128
EPSILON = 1e-12


class Graph:
    """Nodes and constants in the making. Every value's name is given by who makes it."""

    def __init__(self, outliers: Outliers | None) -> None:
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._outliers = outliers

    def constant(self, name: str, value: Array) -> str:
        """A constant tensor."""
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, kind: str, inputs: Sequence[str], output: str, *, domain: str = "", **settings: Any) -> str:
        """One operation with one output."""
        self._nodes.append(helper.make_node(kind, list(inputs), [output], domain=domain, **settings))
        return output

    def split(self, value: str, outputs: Sequence[str]) -> Sequence[str]:
        """A value of shape (texts, n, k) in equal parts along its last axis."""
        self._nodes.append(helper.make_node("Split", [value], list(outputs), axis=2, num_outputs=len(outputs)))
        return outputs

    def product(self, value: str, weight: NDArray[np.float32], output: str) -> str:
        """`value` (texts, n, k) times `weight` (k, m): in float32 without outliers, else in eight bits around them."""
        if self._outliers is None:
            return self.node("MatMul", [value, self.constant(f"{output}/weight", weight)], output)
        channels = np.array(self._outliers.get(output, ()), dtype=np.int64)
        if not len(channels):
            return self._rounded(value, weight, output)
        kept, rest = np.ones(len(weight), dtype=np.float32), weight.copy()
        kept[channels], rest[channels] = 0, 0
        small = self.node("Mul", [value, self.constant(f"{output}/kept", kept)], f"{output}/small")
        picked = [value, self.constant(f"{output}/channels", channels)]
        large = self.node("Gather", picked, f"{output}/large", axis=2)
        exact = self.node(
            "MatMul", [large, self.constant(f"{output}/exact_weight", weight[channels])], f"{output}/exact"
        )
        return self.node("Add", [self._rounded(small, rest, f"{output}/rounded"), exact], output)

    def _rounded(self, value: str, weight: NDArray[np.float32], output: str) -> str:
        scale = np.maximum(np.abs(weight).max(axis=0), 1e-12).astype(np.float32) / np.float32(127)
        codes = (np.round(weight / scale) + ZERO).astype(np.uint8)
        constants = [
            self.constant(f"{output}/codes", codes),
            self.constant(f"{output}/scale", scale),
            self.constant(f"{output}/zero", np.full(len(scale), ZERO, dtype=np.uint8)),
        ]
        return self.node("DynamicQuantizeMatMul", [value, *constants], output, domain=FUSED)

    def model(self, extra: Sequence[str] = ()) -> ModelProto:
        """The graph from INPUT, int64 (texts, n), to OUTPUT, float32 (texts, k), and to the `extra` values."""
        outputs = [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, [None, None])]
        outputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in extra]
        inputs = [helper.make_tensor_value_info(INPUT, TensorProto.INT64, [None, None])]
        graph = helper.make_graph(self._nodes, "bert", inputs, outputs, self._constants)
        versions = [helper.make_opsetid("", 18), helper.make_opsetid(FUSED, 1)]
        return helper.make_model(graph, opset_imports=versions, ir_version=9)


def bert(weights: Weights, heads: int, outliers: Outliers | None, extra: Sequence[str] = ()) -> ModelProto:
    """The mean of the last hidden states of each text, as a model.

    `weights` by their names in a BERT checkpoint; `heads` of the attention; `outliers` None computes all in float32.
    `extra`: inner values that are given out too.
    """
    graph = Graph(outliers)
    value = _embeddings(graph, weights)
    layers = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer."))
    for layer in range(layers):
        value = _layer(graph, weights, layer, heads, value)
    graph.node("ReduceMean", [value, graph.constant("text", np.array([1]))], OUTPUT, keepdims=0)
    return graph.model(extra)


def _embeddings(graph: Graph, weights: Weights) -> str:
    prefix = "embeddings."
    words = weights[f"{prefix}word_embeddings.weight"].astype(np.float16)
    places = weights[f"{prefix}position_embeddings.weight"] + weights[f"{prefix}token_type_embeddings.weight"][0]
    rows = graph.node("Gather", [graph.constant("words", words), INPUT], "rows16")
    rows = graph.node("Cast", [rows], "rows", to=TensorProto.FLOAT)
    length = graph.node("Shape", [INPUT], "length", start=1, end=2)
    start, axis = graph.constant("start", np.array([0])), graph.constant("axis", np.array([0]))
    place = graph.node("Slice", [graph.constant("all_places", places), start, length, axis], "places")
    total = graph.node("Add", [rows, place], "embedded")
    norm = [graph.constant(f"norm/{part}", weights[f"{prefix}LayerNorm.{part}"]) for part in ("weight", "bias")]
    return graph.node("LayerNormalization", [total, *norm], "hidden", axis=-1, epsilon=EPSILON)


def _layer(graph: Graph, weights: Weights, layer: int, heads: int, value: str) -> str:
    prefix, name = f"encoder.layer.{layer}.", f"{layer}."

    def weight(path: str) -> NDArray[np.float32]:
        return weights[f"{prefix}{path}.weight"].T

    def normed(product: str, skip: str, path: str, output: str) -> str:
        paths = (f"{path}.LayerNorm.weight", f"{path}.LayerNorm.bias", f"{path}.dense.bias")
        parts = [graph.constant(f"{output}/{one}", weights[prefix + one]) for one in paths]
        inputs = [product, skip, *parts]
        return graph.node("SkipLayerNormalization", inputs, output, domain=FUSED, epsilon=EPSILON)

    three = [f"attention.self.{part}" for part in ("query", "key", "value")]
    joined = np.concatenate([weight(path) for path in three], axis=1)
    bias = np.concatenate([weights[f"{prefix}{path}.bias"] for path in three])
    parts = graph.split(graph.product(value, joined, f"{name}qkv"), [f"{name}{part}" for part in "qkv"])
    inputs = [*parts, graph.constant(f"{name}qkv/bias", bias)]
    mixed = graph.node("MultiHeadAttention", inputs, f"{name}mixed", domain=FUSED, num_heads=heads)
    out = graph.product(mixed, weight("attention.output.dense"), f"{name}out")
    attended = normed(out, value, "attention.output", f"{name}attended")
    inner = graph.product(attended, weight("intermediate.dense"), f"{name}inner")
    inner_bias = graph.constant(f"{name}inner/bias", weights[f"{prefix}intermediate.dense.bias"])
    active = graph.node("BiasGelu", [inner, inner_bias], f"{name}active", domain=FUSED)
    outer = graph.product(active, weight("output.dense"), f"{name}outer")
    return normed(outer, attended, "output", f"{name}hidden")
