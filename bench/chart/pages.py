"""What is written for people: values.yaml with a comment above each value, and the table in the chart's README."""

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from pydantic.fields import FieldInfo

from bench.chart.kinds import KUBERNETES
from bench.chart.platform import Values
from core.config.records import Record

BEGIN, END = "<!-- values: written by python -m bench.chart -->", "<!-- end of values -->"
_WIDTH, _LONGEST_DEFAULT = 116, 60
_NAMES = {"string": "text", "boolean": "true, false", "integer": "whole number", "object": "mapping"}


def values_yaml() -> str:
    """values.yaml: every value with its default."""
    head = (
        "# Values of Forebay's chart, written by `python -m bench.chart`: change the records in bench/chart instead.\n"
        "# Unknown keys are refused, at every depth. Examples of whole installs are in values/.\n"
    )
    return head + "".join(f"\n{text}" if depth == 0 else text for depth, text in _entries(Values(), 0))


def table() -> str:
    """Every value as a row: key, type, default, what it does."""
    rows = ["| key | type | default | what |", "|---|---|---|---|"]
    for path, kind, default, what in _rows(Values(), ""):
        rows.append(f"| `{path}` | {kind} | {default} | {what} |")
    return "\n".join(rows)


def readme(text: str) -> str:
    """The README with the table of these values between its marks. Raises ValueError where it has no marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md has no place for the table: {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def _entries(record: Record, depth: int) -> Iterator[tuple[int, str]]:
    plain = record.model_dump(mode="json", by_alias=True)
    margin = "  " * depth
    for name, field in type(record).model_fields.items():
        key, value = field.alias or name, getattr(record, name)
        what = " ".join(_description(field, value).split())
        comment = textwrap.indent("\n".join(textwrap.wrap(what, _WIDTH - len(margin))), f"{margin}# ") + "\n"
        if _is_section(value):
            yield depth, f"{comment}{margin}{key}:\n"
            yield from _entries(value, depth + 1)
        else:
            given = {key: {} if isinstance(value, Record) else plain[key]}
            yield depth, comment + textwrap.indent(yaml.safe_dump(given, sort_keys=False, width=_WIDTH), margin)


def _rows(record: Record, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    plain = record.model_dump(mode="json", by_alias=True)
    kinds = type(record).model_json_schema()
    for name, field in type(record).model_fields.items():
        key, value = field.alias or name, getattr(record, name)
        path = f"{prefix}{key}"
        if _is_section(value):
            yield from _rows(value, f"{path}.")
            continue
        default = json.dumps({} if isinstance(value, Record) else plain[key], ensure_ascii=False)
        shown = f"`{default}`" if len(default) <= _LONGEST_DEFAULT else "see values.yaml"
        kind = " or ".join(_kinds(kinds["properties"][key])).replace("|", "\\|")
        yield path, kind, shown, " ".join(_description(field, value).split()).replace("|", "\\|")


def _description(field: FieldInfo, value: object) -> str:
    described = field.description or (type(value).__doc__ if isinstance(value, Record) else None)
    if not described:
        raise ValueError(f"a value has no description: {field}")
    return described


def _is_section(value: object) -> bool:
    """Whether a value is shown by its parts: a record of which something is set."""
    return isinstance(value, Record) and any(getattr(value, name) is not None for name in type(value).model_fields)


def _kinds(node: Mapping[str, Any]) -> Iterator[str]:
    if KUBERNETES in node:
        yield f"Kubernetes {node[KUBERNETES].rsplit('.', 1)[1]}"
    elif "anyOf" in node:
        for branch in node["anyOf"]:
            yield from _kinds(branch)
    elif "enum" in node:
        yield ", ".join(node["enum"])
    elif node.get("type") == "array":
        yield f"list of {next(_kinds(node['items']))}"
    elif node.get("type") == "null":
        yield "null"
    elif "$ref" in node:
        yield "mapping"
    else:
        yield _NAMES.get(str(node.get("type", "object")), str(node.get("type"))) + (
            " ≥ " + str(node["minimum"]) if "minimum" in node else ""
        )
