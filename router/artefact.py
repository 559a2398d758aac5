"""The classifier file: JSON with a schema version and a checksum, holding numbers only.

It is data, never code: loading one runs nothing that is in it. Arrays are base64 of little-endian floats.
"""

import base64
import binascii
import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from core.errors import ConfigError, Problem
from router.features import COUNT, NAMES, VERSION
from router.mixture import Array, Mixture

FORMAT = "forebay-router-classifier"
SCHEMA = 2
# Deciles of the training sample's complexities: nine cuts between ten equal parts.
CUTS = 9
Recipe = dict[str, Any]
Marks = NDArray[np.uint32]


@dataclass(frozen=True)
class Artefact:
    """What training leaves behind.

    `full` reads the vector and the features, `plain` the features alone; features are scaled by taking `mean` away and
    dividing by `scale`. `prototypes`: unit vectors, shape (n, dim), that stand for the training data; an ask whose best
    cosine to them is below `familiar_at` lies outside it. `deciles`: shape (CUTS,), ascending: complexities that cut
    the training sample into ten equal parts. `trained_on`: sorted 32-bit marks of its prompts, by which one tells
    rows apart that the classifier has seen. `recipe`: data, split, settings and measured quality, for people.
    """

    embedder: str
    mean: Array
    scale: Array
    full: Mixture
    plain: Mixture
    prototypes: Array
    familiar_at: float
    deciles: Array
    trained_on: Marks
    recipe: Recipe

    @property
    def dim(self) -> int:
        """Length of the embedder's vector."""
        return int(self.prototypes.shape[1])


def mark(prompt: str) -> int:
    """A 32-bit mark of a prompt, the same for any case and surrounding white space."""
    return int.from_bytes(hashlib.sha256(prompt.strip().casefold().encode("utf-8", "replace")).digest()[:4], "little")


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
        "full": _mixture_document(artefact.full),
        "plain": _mixture_document(artefact.plain),
        "prototypes": _packed(artefact.prototypes, "<f2"),
        "deciles": _packed(artefact.deciles),
        "trained_on": base64.b64encode(artefact.trained_on.astype("<u4").tobytes()).decode(),
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
        return _artefact(document)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise _fault(path, f"is not a usable classifier: {error}") from None


def _artefact(document: dict[str, Any]) -> Artefact:
    prototypes = _unpacked(document["prototypes"])
    if prototypes.ndim != 2 or not len(prototypes):
        raise ValueError("its prototypes are malformed")
    artefact = Artefact(
        embedder=_text(document["embedder"]),
        mean=_unpacked(document["mean"], (COUNT,)),
        scale=_unpacked(document["scale"], (COUNT,)),
        full=_mixture(document["full"], prototypes.shape[1] + COUNT),
        plain=_mixture(document["plain"], COUNT),
        prototypes=prototypes,
        familiar_at=float(document["familiar_at"]),
        deciles=_unpacked(document["deciles"], (CUTS,)),
        trained_on=np.frombuffer(base64.b64decode(document["trained_on"], validate=True), dtype="<u4"),
        recipe=dict(document["recipe"]),
    )
    if not (artefact.scale > 0).all():
        raise ValueError("a feature has no scale")
    if (np.diff(artefact.deciles) < 0).any():
        raise ValueError("its deciles do not ascend")
    return artefact


def _fault(path: Path, message: str) -> ConfigError:
    return ConfigError([Problem("router.classifier", f"{path} {message}")])


def _checksum(document: dict[str, Any]) -> str:
    rest = {key: value for key, value in document.items() if key != "sha256"}
    return hashlib.sha256(orjson.dumps(rest, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _packed(array: Array, kind: str = "<f4") -> dict[str, Any]:
    little = np.ascontiguousarray(array, dtype=kind)
    return {"shape": list(little.shape), "dtype": kind, "base64": base64.b64encode(little.tobytes()).decode()}


def _unpacked(value: dict[str, Any], shape: tuple[int, ...] | None = None) -> Array:
    found = tuple(int(n) for n in value["shape"])
    if value["dtype"] not in ("<f2", "<f4"):
        raise ValueError("an array is neither float16 nor float32")
    array = np.frombuffer(base64.b64decode(value["base64"], validate=True), dtype=value["dtype"]).astype(np.float32)
    if array.size != math.prod(found) or (shape is not None and found != shape):
        raise ValueError(f"an array has shape {found} where {shape or array.shape} is needed")
    if not np.isfinite(array).all():
        raise ValueError("an array holds values that are not finite")
    return array.reshape(found)


def _mixture_document(mixture: Mixture) -> dict[str, Any]:
    return {
        "kinds": list(mixture.kinds),
        "gate": _packed(mixture.gate),
        "gate_bias": _packed(mixture.gate_bias),
        "experts": _packed(mixture.experts),
        "expert_bias": _packed(mixture.expert_bias),
    }


def _mixture(value: dict[str, Any], width: int) -> Mixture:
    kinds = tuple(map(str, value["kinds"]))
    if not kinds:
        raise ValueError("it knows no kind of traffic")
    return Mixture(
        kinds,
        gate=_unpacked(value["gate"], (len(kinds), width)),
        gate_bias=_unpacked(value["gate_bias"], (len(kinds),)),
        experts=_unpacked(value["experts"], (len(kinds), width)),
        expert_bias=_unpacked(value["expert_bias"], (len(kinds),)),
    )


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("the embedder has no name")
    return value
