from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import pytest

from core.config import schema, validate
from core.errors import ConfigError

SCHEMA = schema()


def properties(node: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every key of the document with its schema, sections included."""
    if "$ref" in node:
        yield from properties(SCHEMA["$defs"][node["$ref"].rsplit("/", 1)[1]], path)
    for branch in node.get("anyOf", ()):
        yield from properties(branch, path)
    if "items" in node:
        yield from properties(node["items"], path + "[]")
    for key, below in node.get("properties", {}).items():
        yield f"{path}.{key}".lstrip("."), below
        yield from properties(below, f"{path}.{key}")


def described(node: Mapping[str, Any]) -> bool:
    """Whether the key, or the section that it is, has a description."""
    refs = [branch["$ref"] for branch in (node, *node.get("anyOf", ())) if "$ref" in branch]
    return "description" in node or any("description" in SCHEMA["$defs"][ref.rsplit("/", 1)[1]] for ref in refs)


def test_the_schema_is_a_valid_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(("path", "node"), [pytest.param(*item, id=item[0]) for item in properties(SCHEMA)])
def test_every_key_has_a_description_and_a_default_that_it_accepts(path: str, node: Mapping[str, Any]) -> None:
    assert described(node)
    if "default" in node:
        jsonschema.validate(node["default"], {**node, "$defs": SCHEMA["$defs"]})


def test_the_walk_reaches_the_deepest_keys() -> None:
    paths = {path for path, _ in properties(SCHEMA)}
    assert {"auth.keys[].sha256", "tiers.small.disaggregation.prefill.replicas.min", "cache.semantic.guard"} <= paths


def with_tier(**fields: Any) -> dict[str, Any]:
    return {"tiers": {"small": {"model": "m", **fields}}}


GOOD = [
    with_tier(),
    with_tier(urls=["http://h:1/v1/"], api_key="${KEY}", engine={"max_model_len": 2048}, context=None),
    with_tier(timeout={"idle": "1.5m"}, queue={"max_wait": "250ms"}, price={"input": 1, "output": 0.2}),
    {**with_tier(), "gateway": {"max_body_size": "4KiB", "sse_ping": None}, "cache": {"semantic": {"threshold": 1}}},
    {**with_tier(), "auth": {"keys": [{"name": "n", "tenant": "t", "sha256": "0" * 64, "admin": True}]}},
    {"tiers": {"small": {"model": "a"}, "frontier": {"model": "b", "capabilities": ["vision"]}}},
]
BAD = [
    {},
    {"tiers": []},
    {"tiers": {"small": {}}},
    with_tier(modle="m"),
    with_tier(api_key="sk-literal"),
    with_tier(api_key="${not a name}"),
    with_tier(urls=["http://user:password@h"]),
    with_tier(urls="http://h"),
    with_tier(timeout={"idle": 30}),
    with_tier(timeout={"idle": "30"}),
    with_tier(capabilities=["smell"]),
    with_tier(fallback="medium"),
    with_tier(context=0),
    {**with_tier(), "gatway": {}},
    {**with_tier(), "gateway": {"port": "8080"}},
    {**with_tier(), "gateway": {"port": 65536}},
    {**with_tier(), "gateway": {"max_body_size": "4M"}},
    {**with_tier(), "cache": {"semantic": {"threshold": -0.1}}},
    {**with_tier(), "auth": {"keys": [{"name": "n", "tenant": "t", "sha256": "short"}]}},
    {**with_tier(), "console": {"enabled": "yes"}},
]


@pytest.mark.parametrize("document", GOOD, ids=str)
def test_the_schema_accepts_what_is_accepted(document: Mapping[str, Any]) -> None:
    validate(document)
    jsonschema.validate(document, SCHEMA)


@pytest.mark.parametrize("document", BAD, ids=str)
def test_the_schema_rejects_what_is_rejected(document: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigError):
        validate(document)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)
