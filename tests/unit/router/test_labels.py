"""Labelled files in their shapes, and what is said about a bad one."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from core.errors import ConfigError
from router.labels import read_labels, read_scores


def write(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n", encoding="utf-8")
    return path


def test_a_row_holds_a_prompt_and_two_qualities(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", {"prompt": "Why?", "weak": 1, "strong": 2.5, "task": "chat"})
    [row] = read_labels(file)
    assert (row.prompt, row.weak, row.strong, row.gain, row.group) == ("Why?", 1, 2.5, 1.5, "chat")


def test_a_gzip_file_is_read_whatever_its_name(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(gzip.compress(b'{"prompt": "x", "weak": 0, "strong": 1}\n'))
    assert len(read_labels(file)) == 1


def test_messages_stand_for_a_prompt(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": parts}]
    [row] = read_labels(write(tmp_path / "a.jsonl", {"messages": messages, "weak": 0, "strong": 1}))
    assert row.prompt == "a\nb"


def test_two_of_many_models_are_chosen_by_name(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", {"prompt": "x", "scores": {"one": 0.1, "two": 0.2, "three": 0.3}})
    [row] = read_labels(file, weak="one", strong="three")
    assert (row.weak, row.strong) == (0.1, 0.3)


def test_groups_can_be_named(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", {"prompt": "x", "weak": 0, "strong": 1, "task": "t", "team": "u"})
    assert read_labels(file, group_field="team")[0].group == "u"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "x", "weak": 0}, ":1: strong must be a number"),
        ({"prompt": "x", "weak": True, "strong": 1}, ":1: weak must be a number"),
        ({"weak": 0, "strong": 1}, ":1 has neither a prompt nor messages"),
        ({"messages": [{"role": "assistant", "content": "x"}], "weak": 0, "strong": 1}, ":1 has neither"),
        ({"prompt": "x", "scores": {"one": 1}}, "--weak and --strong"),
        ([1], ":1 is not an object"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, row: Any, message: str) -> None:
    file = write(tmp_path / "bad.jsonl", row)
    with pytest.raises(ConfigError, match=r"bad\.jsonl") as caught:
        read_labels(file)
    assert message in str(caught.value)


def test_an_unknown_model_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", {"prompt": "x", "scores": {"one": 0.1, "two": 0.2}})
    with pytest.raises(ConfigError, match=r"'three'; it has one, two"):
        read_labels(file, weak="one", strong="three")


def test_a_missing_an_empty_and_a_broken_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_labels(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="holds no rows"):
        read_labels(write(tmp_path / "empty.jsonl"))
    broken = tmp_path / "broken.jsonl"
    broken.write_bytes(gzip.compress(b'{"prompt": "x"}')[:-9])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_labels(broken)
    with pytest.raises(ConfigError, match="no field 'team'"):
        read_labels(write(tmp_path / "a.jsonl", {"prompt": "x", "weak": 0, "strong": 1}), group_field="team")


def test_scores_of_many_models_are_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text('{"prompt": "x", "scores": {"a": 1, "b": 0.5}, "task": "t"}\n', encoding="utf-8")
    [row] = read_scores(path)
    assert (row.prompt, dict(row.scores), row.group) == ("x", {"a": 1.0, "b": 0.5}, "t")
    path.write_text('{"prompt": "x", "weak": 1, "strong": 0}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="no scores per model"):
        read_scores(path)
