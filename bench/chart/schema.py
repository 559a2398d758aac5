"""One strict JSON Schema of the chart's values, with the configuration's own and Kubernetes' definitions in it."""

import copy
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bench.chart.kinds import DOCUMENT, KUBERNETES
from bench.chart.platform import Values
from core.config import schema as configuration
from deploy.engine import OWNED
from deploy.engine_arguments import document as engine_document

# The oldest release that the chart supports: what it knows, all later ones know.
KUBERNETES_VERSION = "1.30"
_K8S, _ROOT, _CONFIG, _ENGINE = "io.k8s.api.", "config", "config.", "engine"
Node = dict[str, Any]

_JSON_TYPES = {
    "bool": "boolean",
    "int": "integer",
    "float": "number",
    "str": "string",
    "list": "array",
    "dict": "object",
    "null": "null",
}


def values_schema() -> Node:
    """The schema (2020-12): every record closed to unknown keys, at every depth."""
    own = Values.model_json_schema()
    own["properties"]["global"] = {
        "description": "Values of a parent chart for all its charts; not read.",
        "type": "object",
    }
    found: Node = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **own,
        "title": "Values of Forebay's chart",
    }
    found["$defs"] |= configuration_definitions()
    found["$defs"][_ENGINE] = engine_arguments()
    _resolve(found)
    found["$defs"] |= _kubernetes(_references(found))
    return found


def configuration_definitions() -> Node:
    """The configuration's schema as definitions, `config` its root. Two things differ from what `forebay check` has:
    tiers may be left to the chart, and engine arguments are named.
    """
    whole = json.loads(json.dumps(configuration()).replace('"#/$defs/', f'"#/$defs/{_CONFIG}'))
    definitions = {f"{_CONFIG}{name}": node for name, node in whole.pop("$defs").items()}
    for name in ("Tier", "Group"):
        engine = definitions[f"{_CONFIG}{name}"]["properties"]["engine"]
        definitions[f"{_CONFIG}{name}"]["properties"]["engine"] = {
            "description": engine["description"],
            "$ref": f"#/$defs/{_ENGINE}",
        }
    del whole["$schema"], whole["required"]
    return {**definitions, _ROOT: whole}


def engine_arguments() -> Node:
    """Engine arguments by name and type, as `forebay check` knows them."""
    known = engine_document()
    names = {name: _argument(node) for name, node in known["arguments"].items() if name not in OWNED}
    names["speculative_config"] = {
        "anyOf": [
            {
                "type": "object",
                "properties": {name: _argument(node) for name, node in known["speculative"].items()},
                "additionalProperties": False,
            },
            {"type": "null"},
        ]
    }
    return {"type": "object", "title": "Engine arguments", "properties": names, "additionalProperties": False}


def _argument(node: Node) -> Node:
    if "any" in node["types"]:
        return {}
    if node.get("choices"):
        return {"enum": [*node["choices"], *([None] if "null" in node["types"] else [])]}
    types = [_JSON_TYPES[kind] for kind in node["types"]]
    return {"type": types[0] if len(types) == 1 else types}


def _resolve(node: object) -> None:
    """Puts references where the records have placeholders, in place."""
    for at in _nodes(node):
        if KUBERNETES in at:
            at["$ref"] = f"#/$defs/{_K8S}{at.pop(KUBERNETES)}"
        elif DOCUMENT in at:
            at.pop(DOCUMENT)
            at["$ref"] = f"#/$defs/{_ROOT}"


def _nodes(node: object) -> Iterator[Node]:
    if isinstance(node, dict):
        yield node
        for below in list(node.values()):
            yield from _nodes(below)
    elif isinstance(node, list):
        for below in node:
            yield from _nodes(below)


def _references(node: object) -> set[str]:
    return set(re.findall(r'"#/\$defs/(io\.k8s\.[\w.]+)"', json.dumps(node)))


def _kubernetes(names: Iterable[str]) -> Node:
    """Kubernetes' own definitions of these names and all that they need, closed to unknown keys, without prose."""
    import kubernetes_validate  # noqa: PLC0415  # a package of checks, not of the product

    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    path = folder / f"v{KUBERNETES_VERSION}.0-local-strict" / "_definitions.json"
    known = json.loads(path.read_text(encoding="utf-8"))["$defs"]
    found: Node = {}
    pending = sorted(names)
    while pending:
        name = pending.pop()
        if name not in found:
            found[name] = _plain(known[name])
            pending += sorted(_references(found[name]))
    return dict(sorted(found.items()))


def _plain(node: Any) -> Any:
    if isinstance(node, list):
        return [_plain(below) for below in node]
    if not isinstance(node, dict):
        return copy.copy(node)
    return {
        key: _plain(below)
        for key, below in node.items()
        if not (key in ("description", "format") and isinstance(below, str)) and not key.startswith("x-kubernetes-")
    }
