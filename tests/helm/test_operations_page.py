"""The operations page: its commands are Helm's, and what they install renders."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.helm import chart

ROOT = chart.CHART.parents[1]
PAGES = (ROOT / "docs" / "operations.md", chart.CHART / "README.md")


def commands(program: str) -> list[list[str]]:
    """Every command of the pages that starts with the program, as words."""
    found = []
    for page in PAGES:
        text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
        found += [shlex.split(line) for line in re.findall(rf"^\$ ({program} .*)$", text, re.MULTILINE)]
    return found


RENDERED = [words for words in commands("helm") if words[1] in ("install", "upgrade", "template", "lint")]
OTHERS = [words for words in commands("helm") if words not in RENDERED]


def test_the_pages_have_commands() -> None:
    assert {words[1] for words in commands("helm")} >= {"install", "upgrade", "rollback", "test", "history", "template"}
    assert len(commands("kubectl")) > 5


@pytest.mark.parametrize("major", chart.MAJORS)
@pytest.mark.parametrize("words", RENDERED, ids=" ".join)
def test_what_a_command_installs_renders(words: list[str], major: int) -> None:
    rest = [
        str(ROOT / word) if word.startswith("helm/") else word for word in words[2:] if not word.startswith("--dry-run")
    ]
    command = "lint" if words[1] == "lint" else "template"
    answer = chart.run(major, command, *rest)
    assert answer.code == 0, answer.error
    assert command == "lint" or [document for document in yaml.safe_load_all(answer.output) if document]


@pytest.mark.parametrize("major", chart.MAJORS)
@pytest.mark.parametrize("words", OTHERS, ids=" ".join)
def test_commands_that_need_a_cluster_are_helms(words: list[str], major: int) -> None:
    answer = chart.run(major, words[1], "--help")
    assert answer.code == 0
    flags = [word.partition("=")[0] for word in words[2:] if word.startswith("-")]
    assert [flag for flag in flags if not re.search(rf"(?<![\w-]){flag}\b", answer.output)] == []


def test_values_and_labels_that_the_page_names_exist() -> None:
    text = PAGES[0].read_text(encoding="utf-8")
    values = (chart.CHART / "README.md").read_text(encoding="utf-8")
    for name in set(re.findall(r"`((?:gateway|ray|valkey|networkPolicy|monitoring)\.[A-Za-z.]+)`", text)):
        if not name.endswith((".hpa", ".keda", ".gateway", ".ray", ".rules", ".dashboards", ".gcsFaultTolerance")):
            assert f"`{name}`" in values, name
    rendered = json.dumps(chart.render("production"))
    assert '"forebay/group": "head"' in rendered
    for path in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (PAGES[0].parent / path).exists(), path
    for name in re.findall(r"^\| `([\w-]+\.yaml)`", text, re.MULTILINE):
        assert Path(chart.CHART / "values" / name).is_file()
