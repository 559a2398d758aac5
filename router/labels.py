"""Labelled asks: what the small and the frontier model were worth on each, read from JSON lines."""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import JsonValue

from core.errors import ConfigError, Problem
from core.request import InferenceRequest

# Fields that name what kind of ask a row is, in the order in which they are looked for; rows of one group stay together
# when data is split.
GROUP_FIELDS = ("group", "task", "subject", "category", "kind")


@dataclass(frozen=True)
class Labelled:
    """One ask with the quality of both models' answers in any one unit; `group` is its task or subject."""

    prompt: str
    weak: float
    strong: float
    group: str

    @property
    def gain(self) -> float:
        """What the frontier model's answer is worth more."""
        return self.strong - self.weak


@dataclass(frozen=True)
class Scored:
    """One ask with the quality of several models' answers, by their names."""

    prompt: str
    scores: Mapping[str, float]
    group: str


def read_scores(path: Path) -> list[Scored]:
    """The asks of a file whose rows hold `scores` per model. Raises ConfigError that names the file and line."""
    rows = []
    for number, row in read_rows(path):
        where, scores = f"{path}:{number}", row.get("scores")
        if not isinstance(scores, dict) or not scores:
            raise ConfigError([Problem("data", f"{where} has no scores per model")])
        values = {name: _number(value, f"{where}: {name}") for name, value in scores.items()}
        rows.append(Scored(prompt_of(row, where), values, _group(row, None, where)))
    if not rows:
        raise ConfigError([Problem("data", f"{path} holds no rows")])
    return rows


def read_labels(
    path: Path, *, weak: str | None = None, strong: str | None = None, group_field: str | None = None
) -> list[Labelled]:
    """The labelled asks in a `.jsonl` or `.jsonl.gz` file.

    A row holds `prompt` (or chat `messages`), and `weak` and `strong`, or `scores` per model; then the names `weak` and
    `strong` choose two of them. Raises ConfigError that names the file and line.
    """
    rows = []
    for number, row in read_rows(path):
        where = f"{path}:{number}"
        if row.get("source") == "feedback" and "weak" not in row:
            # Feedback on the frontier tier's answer, or without its prompt: for people to read.
            continue
        weak_quality, strong_quality = _qualities(row, weak, strong, where)
        rows.append(Labelled(prompt_of(row, where), weak_quality, strong_quality, _group(row, group_field, where)))
    if not rows:
        raise ConfigError([Problem("data", f"{path} holds no rows")])
    return rows


def read_rows(path: Path) -> list[tuple[int, Mapping[str, JsonValue]]]:
    """The JSON objects of a file with their line numbers; blank lines are skipped."""
    try:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, gzip.BadGzipFile) as error:
        raise ConfigError([Problem("data", f"{path} cannot be read: {error}")]) from None
    rows: list[tuple[int, Mapping[str, JsonValue]]] = []
    for number, line in enumerate(text.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise ConfigError([Problem("data", f"{path}:{number} is not JSON: {error}")]) from None
        if not isinstance(row, dict):
            raise ConfigError([Problem("data", f"{path}:{number} is not an object")])
        rows.append((number, row))
    return rows


def prompt_of(row: Mapping[str, JsonValue], where: str) -> str:
    """The user's ask in a row."""
    prompt = row.get("prompt")
    if isinstance(prompt, str):
        return prompt
    messages = row.get("messages")
    if isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages):
        text = InferenceRequest("chat", {"messages": messages}).user_text
        if text is not None:
            return text
    raise ConfigError([Problem("data", f"{where} has neither a prompt nor messages that end with a user's text")])


def _qualities(row: Mapping[str, JsonValue], weak: str | None, strong: str | None, where: str) -> tuple[float, float]:
    scores = row.get("scores")
    if not isinstance(scores, dict):
        return _number(row.get("weak"), f"{where}: weak"), _number(row.get("strong"), f"{where}: strong")
    if weak is None or strong is None:
        raise ConfigError([Problem("data", f"{where} has scores per model: name two of them with --weak and --strong")])
    for name in (weak, strong):
        if name not in scores:
            raise ConfigError([Problem("data", f"{where} has no model {name!r}; it has {', '.join(sorted(scores))}")])
    return _number(scores[weak], f"{where}: {weak}"), _number(scores[strong], f"{where}: {strong}")


def _number(value: JsonValue, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError([Problem("data", f"{where} must be a number")])
    return float(value)


def _group(row: Mapping[str, JsonValue], field: str | None, where: str) -> str:
    if field is not None:
        if field not in row:
            raise ConfigError([Problem("data", f"{where} has no field {field!r} to group by")])
        return str(row[field])
    return next((str(row[name]) for name in GROUP_FIELDS if name in row), "")
