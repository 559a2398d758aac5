"""The alert rules: they load, every alert is explained, and promtool sees each fire where it should only."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.metrics import TABLE

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "helm/forebay/files/rules.yaml"
CASES = [Path(__file__).with_name(f"alerts-{scale}.yaml") for scale in ("minutes", "days")]
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool (Debian: apt-get install prometheus)")


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def promtool(*words: str) -> str:
    done = subprocess.run([str(PROMTOOL), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_the_rules_load() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", str(RULES))


@needs_promtool
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_alert_fires_where_it_should_and_nowhere_else(path: Path, tmp_path: Path) -> None:
    cases = tmp_path / "alerts.yaml"
    cases.write_text(f"rule_files: ['{RULES}']\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    promtool("test", "rules", str(cases))


def test_every_alert_has_been_seen_firing() -> None:
    cases = "".join(path.read_text(encoding="utf-8") for path in CASES)
    seen = set(re.findall(r'alertname="(\w+)"}', cases))
    assert seen | {"ForebayAbsent"} == set(alerts())


@pytest.mark.parametrize("name", alerts())
def test_every_alert_is_explained(name: str) -> None:
    rule = alerts()[name]
    assert rule["labels"]["severity"] in ("critical", "warning")
    said = rule["annotations"]
    assert set(said) == {"summary", "description", "runbook", "runbook_anchor"}
    assert all(said.values())
    page, _, anchor = said["runbook_anchor"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert anchor in {heading.lower().replace(" ", "-") for heading in headings}


def test_rules_ask_for_metrics_that_there_are() -> None:
    known = {spec.name for spec in TABLE}
    known |= {
        f"{spec.name}_{part}" for spec in TABLE if spec.kind == "histogram" for part in ("bucket", "count", "sum")
    }
    asked = {name for rule in rules() for name in re.findall(r"(?<![\w:])forebay_\w+", rule["expr"])}
    assert asked
    assert asked <= known
