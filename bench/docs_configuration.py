"""Prints docs/configuration.md from the configuration's own schema.

    python -m bench.docs_configuration > docs/configuration.md

A test fails where the committed page differs.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from core.config import TIER_NAMES, schema
from core.config.units import DURATION_PATTERN, SIZE_PATTERN

_INTRODUCTION = """# Configuration

This page is printed by `python -m bench.docs_configuration` from the schema that `forebay check --schema` prints.

One YAML file configures the command line, the gateway and the tiers. The least of it is one tier:

```yaml
tiers:
  small:
    model: Qwen/Qwen3-4B-Instruct-2507
```

* `forebay check --config FILE` names every fault with its key path. Unknown keys and keys given twice are faults. So is
  a setting that this version cannot honour: the message names the one legal value.
* A duration is a number with `ms`, `s`, `m`, `h` or `d`: `250ms`, `30s`, `10m`. A size is a number with `B`, `KB`,
  `MB`, `GB` (powers of 1,000) or `KiB`, `MiB`, `GiB` (powers of 1,024). A number without a unit is a fault.
* A secret is given by reference only: `${NAME}` is the environment variable NAME, `file:/path` the text of a file.
  Faults never print what stands in the place of a secret.
* Any key can be overridden by an environment variable: `FOREBAY__` and the key path in capitals with `__` between its
  parts, the value read as YAML. `FOREBAY__GATEWAY__PORT=9000`, `FOREBAY__TIERS__SMALL__URLS='[http://10.0.0.7:8000]'`.
"""

Node = Mapping[str, Any]


class Page:
    """The page for one schema: a section per record, a table row per key."""

    def __init__(self, document: Node) -> None:
        self._definitions: Node = document["$defs"]
        self._document = document

    def text(self) -> str:
        """The page in Markdown."""
        parts = [_INTRODUCTION.rstrip()]
        for name, node in self._document["properties"].items():
            if name != "tiers":
                parts += self._section(name, self._record(node))
        tier = self._record(self._record(self._document["properties"]["tiers"])["properties"][TIER_NAMES[0]])
        names = " and ".join(f"`tiers.{name}`" for name in TIER_NAMES)
        parts += [
            f"## {names}",
            "One of the two or both, each with these keys.",
            *self._section("tiers.NAME", tier)[1:],
        ]
        return "\n\n".join(parts) + "\n"

    def _section(self, path: str, record: Node) -> list[str]:
        rows = ["| key | value | default | what |", "|---|---|---|---|"]
        below: list[str] = []
        for name, node in record["properties"].items():
            inner, inner_path = self._inner(node, f"{path}.{name}")
            if inner is None:
                rows.append(self._row(f"{path}.{name}", node, name in record.get("required", ())))
                continue
            if inner_path.endswith("[]") or "anyOf" in node:
                # A list of records, or one that may be absent, is a value as well as a section.
                rows.append(self._row(f"{path}.{name}", node, name in record.get("required", ())))
            below += self._section(inner_path, inner)
        table = ["\n".join(rows)] if len(rows) > 2 else []
        return [f"## `{path}`", str(record["description"]), *table, *below]

    def _row(self, path: str, node: Node, required: bool) -> str:
        given = node.get("default", {})
        default = "required" if required else f"`{given if isinstance(given, str) else json.dumps(given)}`"
        inner, _ = self._inner(node, path)
        what = node.get("description") or (inner or {}).get("description", "")
        return f"| `{path}` | {self._value(node)} | {default} | {what} |"

    def _inner(self, node: Node, path: str) -> tuple[Node | None, str]:
        """The record that a key holds, through null and lists, and the path of that record's keys."""
        for branch in (node, *node.get("anyOf", ())):
            if "$ref" in branch and "properties" in self._record(branch):
                return self._record(branch), path
            if "items" in branch and "$ref" in branch["items"]:
                return self._record(branch["items"]), f"{path}[]"
        return None, path

    def _record(self, node: Node) -> Node:
        for branch in (node, *node.get("anyOf", ())):
            if "$ref" in branch:
                found: Node = self._definitions[branch["$ref"].rsplit("/", 1)[1]]
                return found
        return node

    def _value(self, node: Node) -> str:
        return " or ".join(self._kinds(node))

    def _kinds(self, node: Node) -> Iterator[str]:
        if "anyOf" in node:
            for branch in node["anyOf"]:
                yield from self._kinds(branch)
        elif "enum" in node:
            yield ", ".join(f"`{value}`" for value in node["enum"])
        elif node.get("pattern") == DURATION_PATTERN:
            yield "duration"
        elif node.get("pattern") == SIZE_PATTERN:
            yield "size"
        elif node.get("type") == "array":
            yield f"list of {'records' if '$ref' in node['items'] else self._value(node['items'])}"
        elif "$ref" in node:
            yield "section"
        else:
            yield _NAMES.get(str(node.get("type")), str(node.get("type"))) + _range(node)


_NAMES = {
    "string": "text",
    "boolean": "`true`, `false`",
    "null": "`null`",
    "object": "mapping",
    "integer": "whole number",
}


def _range(node: Node) -> str:
    low, above, high = node.get("minimum"), node.get("exclusiveMinimum"), node.get("maximum")
    if low is not None and high is not None:
        return f" {low} to {high}"
    return f" ≥ {low}" if low is not None else f" > {above}" if above is not None else ""


def page() -> str:
    """docs/configuration.md as it should be."""
    return Page(schema()).text()


if __name__ == "__main__":
    print(page(), end="")
