"""From a file and the environment to a `Config`, or to every fault with its key path.

The only place that reads configuration files and environment variables.
"""

import difflib
import os
import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, JsonValue, ValidationError
from pydantic.fields import FieldInfo

from core.config.addresses import REFERENCE, RedisAddress, password_of, redis_address
from core.config.records import Config
from core.config.support import unsupported
from core.config.telemetry import Telemetry
from core.config.telemetry import telemetry as telemetry_in
from core.config.units import DURATION_PATTERN, SIZE_PATTERN, format_duration, format_size
from core.errors import ConfigError, Problem

PREFIX = "FOREBAY__"
_SECRET_PLACES = re.compile(r"^auth\b|\bapi_key\b|\burls\b|\bstore\b")
Document = dict[str, JsonValue]


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice: the second would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a plain word", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def parse_yaml(text: str, where: str) -> JsonValue:
    """The value of a YAML text. `where` names it in the ConfigError that bad YAML raises."""
    try:
        # The loader is a SafeLoader: it builds plain values only.
        value: JsonValue = yaml.load(text, Loader=_StrictLoader)  # noqa: S506
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: a date that is none; RecursionError: nested too deeply.
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = getattr(error, "problem", None) or "cannot be read"
        raise ConfigError([Problem("", f"{where}{place}: not valid YAML: {reason}")]) from None
    return value


def read_document(path: Path) -> Document:
    """The mapping in a YAML file. Raises ConfigError where there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([Problem("", f"{path}: cannot be read: {error}")]) from None
    value = parse_yaml(text, str(path))
    if not isinstance(value, dict):
        raise ConfigError([Problem("", f"{path}: the top level must be a mapping of sections")])
    return value


def overrides(environ: Mapping[str, str]) -> list[tuple[str, list[str], JsonValue]]:
    """`FOREBAY__SECTION__KEY` variables as (variable, key path, value read as YAML), in a stable order."""
    found = []
    for name in sorted(environ):
        if name.startswith(PREFIX):
            path = [part.lower() for part in name.removeprefix(PREFIX).split("__")]
            found.append((name, path, parse_yaml(environ[name], name)))
    return found


def apply_overrides(document: Document, environ: Mapping[str, str]) -> Document:
    """A copy of the document with the environment's overrides in it."""
    merged = _copy(document)
    for name, path, value in overrides(environ):
        at = merged
        for part in path[:-1]:
            below = at.setdefault(part, {})
            if below is None:
                below = at[part] = {}
            if not isinstance(below, dict):
                raise ConfigError([Problem(".".join(path), f"{name} reaches into {part!r}, which is not a section")])
            at = below
        at[path[-1]] = value
    return merged


def validate(document: Mapping[str, JsonValue]) -> Config:
    """The document as records. Raises ConfigError that names every fault."""
    try:
        config = Config.model_validate(dict(document))
    except ValidationError as error:
        raise ConfigError([_problem(fault) for fault in error.errors()]) from None
    problems = unsupported(config)
    if problems:
        raise ConfigError(problems)
    return config


def load(path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """The configuration in `path` with the environment's overrides. Raises ConfigError."""
    return validate(apply_overrides(read_document(path), environ))


def telemetry(environ: Mapping[str, str] = os.environ) -> Telemetry | None:
    """Where traces go, None for nowhere. Raises ConfigError that names the variable."""
    return telemetry_in(environ)


def resolve_secret(reference: str, environ: Mapping[str, str] = os.environ) -> str:
    """The secret behind `${NAME}` or `file:/path`. Raises ConfigError where it is missing or empty."""
    if reference.startswith("file:"):
        path = Path(reference.removeprefix("file:"))
        try:
            value = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise ConfigError([Problem("", f"the secret file {path} cannot be read")]) from None
    else:
        name = reference.removeprefix("${").removesuffix("}")
        value = environ.get(name, "")
    if not value:
        raise ConfigError([Problem("", f"the secret {reference} is not set")])
    return value


def store_address(store: str, environ: Mapping[str, str] = os.environ) -> RedisAddress:
    """The address behind a `store` key that is not `memory`, with its secrets. Raises ConfigError."""
    whole = bool(re.fullmatch(REFERENCE, store))
    url = resolve_secret(store, environ) if whole else store
    try:
        password = password_of(url)
        if password is not None and not whole:
            password = resolve_secret(password, environ)
        return redis_address(url, password)
    except ValueError as error:
        raise ConfigError([Problem("", str(error))]) from None


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the document."""
    described = Config.model_json_schema()
    for record in (described, *described["$defs"].values()):
        for key in record.get("properties", {}).values():
            _write_default(key)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **described}


def _write_default(key: dict[str, Any]) -> None:
    """Gives a duration's or size's default as it is written in the document."""
    patterns = {branch.get("pattern") for branch in (key, *key.get("anyOf", ()))}
    if key.get("default") is not None:
        if DURATION_PATTERN in patterns:
            key["default"] = format_duration(key["default"])
        elif SIZE_PATTERN in patterns:
            key["default"] = format_size(key["default"])


def _copy(value: Document) -> Document:
    return {key: _copy(item) if isinstance(item, dict) else item for key, item in value.items()}


def _problem(fault: Any) -> Problem:
    path = _path(fault["loc"])
    message = fault["msg"].removeprefix("Value error, ")
    match fault["type"]:
        case "extra_forbidden":
            legal = _legal_keys(fault["loc"][:-1])
            close = difflib.get_close_matches(str(fault["loc"][-1]), legal, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            message = f"unknown key; {hint}legal keys: {', '.join(legal)}"
        case "missing":
            message = "missing; this key is required"
        case "secret":
            message = message.replace("{{", "{").replace("}}", "}")
        case _ if _SECRET_PLACES.search(path):
            # What was given may be a key or an address with a password in it, in the wrong place.
            pass
        case "literal_error":
            message = f"{fault['input']!r} is not legal; legal: {fault['ctx']['expected']}"
        case _ if not isinstance(fault["input"], dict | list):
            message = f"{message} (given: {fault['input']!r})" if repr(fault["input"]) not in message else message
    return Problem(path, message[0].lower() + message[1:])


def _path(location: tuple[str | int, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _legal_keys(location: tuple[str | int, ...]) -> list[str]:
    model: type[BaseModel] | None = Config
    for part in location:
        if isinstance(part, int) or model is None:
            continue
        model = _record(model.model_fields.get(part))
    return sorted(model.model_fields) if model else []


def _record(field: FieldInfo | None) -> type[BaseModel] | None:
    """The record class inside a field's type, through unions and tuples."""
    pending = [field.annotation] if field else []
    while pending:
        annotation = pending.pop()
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return annotation
        pending.extend(get_args(annotation))
    return None
