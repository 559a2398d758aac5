"""The shape of the classifier: one linear expert per kind of traffic, weighed by how much an ask looks like that kind.

What makes an ask hard differs between kinds (length says much in a word problem, nothing in small talk), so each kind
of training data has its own weights, and a gate tells the kinds apart.
"""

from dataclasses import dataclass
from functools import cached_property
from math import exp

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Numbers = NDArray[np.float64]

# A unit vector's components are small; this puts them on a par with the features under one ridge penalty.
_VECTOR_SCALE = np.float32(3.0)
# Keeps one extreme count from deciding alone.
_CUT = 1.2


@dataclass(frozen=True)
class Mixture:
    """`kinds`: names, k of them. `gate` and `experts`: shape (k, inputs); their biases: shape (k,)."""

    kinds: tuple[str, ...]
    gate: Array
    gate_bias: Array
    experts: Array
    expert_bias: Array

    def shares(self, inputs: Array) -> Array:
        """How much each ask looks like each kind: shape (n, k) for inputs of shape (n, inputs), each row sums to 1."""
        logits = inputs @ self.gate.T + self.gate_bias
        raised = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares: Array = raised / raised.sum(axis=1, keepdims=True)
        return shares

    def logits(self, inputs: Array) -> Array:
        """The log odds of complexity: shape (n,) for inputs of shape (n, inputs)."""
        said: Array = (self.shares(inputs) * (inputs @ self.experts.T + self.expert_bias)).sum(axis=1)
        return said

    def logit(self, inputs: Array) -> float:
        """The log odds of one ask's complexity, for inputs of shape (inputs,)."""
        # Row by row: for so few rows a matrix product costs more in waking threads than in multiplying.
        found: list[float] = np.vecdot(self._rows, inputs).tolist()
        kinds = len(self.kinds)
        gate = [value + bias for value, bias in zip(found[:kinds], self._biases[:kinds], strict=True)]
        said = [value + bias for value, bias in zip(found[kinds:], self._biases[kinds:], strict=True)]
        highest = max(gate)
        raised = [exp(value - highest) for value in gate]
        return sum(share * own for share, own in zip(raised, said, strict=True)) / sum(raised)

    @cached_property
    def _rows(self) -> Array:
        return np.concatenate([self.gate, self.experts])

    @cached_property
    def _biases(self) -> list[float]:
        return [*map(float, self.gate_bias), *map(float, self.expert_bias)]


def scaled(features: Numbers, mean: Array | Numbers, scale: Array | Numbers) -> Array:
    """Features as a mixture reads them, shape (..., features); what lies far outside the training data is cut off."""
    found = features - mean
    found /= scale
    np.minimum(found, _CUT, out=found)
    np.maximum(found, -_CUT, out=found)
    return found.astype(np.float32)


def joined(vectors: Array, features: Array) -> Array:
    """Vectors, shape (..., dim), and scaled features as the inputs of a mixture, shape (..., dim + features)."""
    return np.concatenate([vectors * _VECTOR_SCALE, features], axis=-1)
