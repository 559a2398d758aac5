"""The classifier file: JSON with a schema version and a checksum, holding numbers only.

It is data, never code: loading one runs nothing that is in it. Arrays are base64 of little-endian float32.
"""

import base64
import binascii
import hashlib
import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from core.errors import ConfigError, Problem
from router.features import NAMES, VERSION

FORMAT = "forebay-router-classifier"
SCHEMA = 1
Array = NDArray[np.float32]
Recipe = dict[str, Any]


@dataclass(frozen=True)
class Network:
    """Dense layers with tanh between them: `layers[i]` is (weights of shape (in, out), bias of shape (out,)).

    The last layer has one output, the logit of complexity.
    """

    layers: tuple[tuple[Array, Array], ...]

    def logit(self, inputs: Array) -> float:
        """The logit for one input of shape (in,)."""
        value = inputs
        for weights, bias in self.layers[:-1]:
            value = np.tanh(value @ weights + bias)
        weights, bias = self.layers[-1]
        return float((value @ weights + bias)[0])


@dataclass(frozen=True)
class Artefact:
    """What training leaves behind.

    `full` reads the vector followed by the standardized features, `plain` the standardized features alone.
    `prototypes`: unit vectors, shape (n, dim), that stand for the training data; an ask whose best cosine to them is
    below `familiar_at` lies outside it. `recipe`: data, split, settings and measured quality, for people.
    """

    embedder: str
    mean: Array
    scale: Array
    full: Network
    plain: Network
    prototypes: Array
    familiar_at: float
    recipe: Recipe

    @property
    def dim(self) -> int:
        """Length of the embedder's vector."""
        return int(self.prototypes.shape[1])


def write(artefact: Artefact, path: Path) -> None:
    """The artefact as a file; OSError where it cannot be written."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "schema": SCHEMA,
        "embedder": artefact.embedder,
        "features": list(NAMES),
        "features_version": VERSION,
        "recipe": artefact.recipe,
        "familiar_at": artefact.familiar_at,
        "mean": _packed(artefact.mean),
        "scale": _packed(artefact.scale),
        "full": _layers(artefact.full),
        "plain": _layers(artefact.plain),
        "prototypes": _packed(artefact.prototypes),
    }
    document["sha256"] = _checksum(document)
    path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def read(path: Path) -> Artefact:
    """The artefact in a file. Raises ConfigError that says what is wrong with the file."""
    try:
        document = orjson.loads(path.read_bytes())
    except OSError as error:
        raise _fault(path, f"cannot be read: {error.strerror or error}") from None
    except orjson.JSONDecodeError:
        raise _fault(path, "is not a classifier file: not valid JSON") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _fault(path, f"is not a classifier file: its format is not {FORMAT!r}")
    if document.get("schema") != SCHEMA:
        raise _fault(path, f"has schema {document.get('schema')!r}; this version reads {SCHEMA}: train it again")
    if document.get("sha256") != _checksum(document):
        raise _fault(path, "does not match its checksum: it was changed or damaged after training")
    if (document.get("features"), document.get("features_version")) != (list(NAMES), VERSION):
        raise _fault(path, "was trained on other features than this version computes: train it again")
    try:
        artefact = Artefact(
            embedder=_text(document["embedder"]),
            mean=_unpacked(document["mean"], (len(NAMES),)),
            scale=_unpacked(document["scale"], (len(NAMES),)),
            full=_network(document["full"]),
            plain=_network(document["plain"]),
            prototypes=_unpacked(document["prototypes"]),
            familiar_at=float(document["familiar_at"]),
            recipe=dict(document["recipe"]),
        )
        _check_shapes(artefact)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise _fault(path, f"is not a usable classifier: {error}") from None
    return artefact


def _fault(path: Path, message: str) -> ConfigError:
    return ConfigError([Problem("router.classifier", f"{path} {message}")])


def _checksum(document: dict[str, Any]) -> str:
    rest = {key: value for key, value in document.items() if key != "sha256"}
    return hashlib.sha256(orjson.dumps(rest, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _packed(array: Array) -> dict[str, Any]:
    little = np.ascontiguousarray(array, dtype="<f4")
    return {"shape": list(little.shape), "float32": base64.b64encode(little.tobytes()).decode()}


def _unpacked(value: dict[str, Any], shape: tuple[int, ...] | None = None) -> Array:
    found = tuple(int(n) for n in value["shape"])
    array = np.frombuffer(base64.b64decode(value["float32"], validate=True), dtype="<f4").astype(np.float32)
    if array.size != math.prod(found) or (shape is not None and found != shape):
        raise ValueError(f"an array has shape {found} where {shape or array.shape} is needed")
    if not np.isfinite(array).all():
        raise ValueError("an array holds values that are not finite")
    return array.reshape(found)


def _layers(network: Network) -> list[dict[str, Any]]:
    return [{"weights": _packed(weights), "bias": _packed(bias)} for weights, bias in network.layers]


def _network(value: list[dict[str, Any]]) -> Network:
    return Network(tuple((_unpacked(layer["weights"]), _unpacked(layer["bias"])) for layer in value))


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("the embedder has no name")
    return value


def _check_shapes(artefact: Artefact) -> None:
    if artefact.prototypes.ndim != 2 or not (artefact.scale > 0).all():
        raise ValueError("prototypes or feature scales are malformed")
    for network, width in ((artefact.full, artefact.dim + len(NAMES)), (artefact.plain, len(NAMES))):
        widths = [width, *(bias.size for _, bias in network.layers)]
        shapes = [weights.shape for weights, _ in network.layers]
        if not shapes or shapes != list(pairwise(widths)) or widths[-1] != 1:
            raise ValueError("the layers of a network do not fit each other")
