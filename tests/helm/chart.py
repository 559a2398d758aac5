"""The chart as tests see it: values in, parsed manifests out, each render made once."""

import functools
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.helm import tools

CHART = Path(__file__).resolve().parents[2] / "helm" / "forebay"
# The five reference installs, and the chart without any values.
INSTALLS = ("", "one-gpu", "two-tiers", "disaggregated", "external", "production")
RELEASE, NAMESPACE = "example", "llm"
MAJORS = tuple(tools.PINS)
NEWEST = max(MAJORS)


@dataclass(frozen=True)
class Answer:
    """What Helm said."""

    code: int
    output: str
    error: str


def run(major: int, *words: str, given: str = "") -> Answer:
    """One call of Helm. `given` is its standard input."""
    found = subprocess.run([tools.helm(major), *words], input=given, capture_output=True, text=True, check=False)
    return Answer(found.returncode, found.stdout, found.stderr)


def options(install: str) -> list[str]:
    """The options that choose a reference install."""
    return ["-f", str(CHART / "values" / f"{install}.yaml")] if install else []


@functools.cache
def _template(install: str, values: str, major: int) -> Answer:
    words = ["template", RELEASE, str(CHART), "--namespace", NAMESPACE, *options(install)]
    return run(major, *words, *(["-f", "-"] if values else []), given=values)


def template(install: str = "", values: Mapping[str, Any] | None = None, major: int = NEWEST) -> Answer:
    """`helm template` of a reference install with further values over it."""
    return _template(install, json.dumps(values, sort_keys=True) if values else "", major)


def render(install: str = "", values: Mapping[str, Any] | None = None, major: int = NEWEST) -> list[dict[str, Any]]:
    """The manifests, hooks included. Fails where Helm refuses."""
    answer = template(install, values, major)
    assert answer.code == 0, answer.error
    return [document for document in yaml.load_all(answer.output, Loader=yaml.CSafeLoader) if document]


def refusal(values: Mapping[str, Any], install: str = "", major: int = NEWEST) -> str:
    """What Helm says where it refuses."""
    answer = template(install, values, major)
    assert answer.code != 0, "it was accepted"
    return answer.error


def of_kind(manifests: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The manifests of one kind."""
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def one(manifests: list[dict[str, Any]], kind: str, name: str | None = None) -> dict[str, Any]:
    """The only manifest of a kind (and name)."""
    found = [m for m in of_kind(manifests, kind) if name is None or m["metadata"]["name"] == name]
    assert len(found) == 1, [m["metadata"]["name"] for m in of_kind(manifests, kind)]
    return found[0]


def document(manifests: list[dict[str, Any]]) -> str:
    """The configuration in the gateway's ConfigMap."""
    found = [m for m in of_kind(manifests, "ConfigMap") if "forebay.yaml" in m["data"]]
    assert len(found) == 1
    return str(found[0]["data"]["forebay.yaml"])


def serve(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    """Ray Serve's configuration in the RayService."""
    found: dict[str, Any] = yaml.safe_load(one(manifests, "RayService")["spec"]["serveConfigV2"])
    return found


def pods(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Every pod that runs because of the manifests, as its template, by what it belongs to."""
    found: dict[str, dict[str, Any]] = {}
    for manifest in manifests:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if kind in ("Deployment", "StatefulSet"):
            found[f"{kind}/{name}"] = manifest["spec"]["template"]
        elif kind == "Pod":
            found[f"{kind}/{name}"] = manifest
        elif kind == "RayService":
            cluster = manifest["spec"]["rayClusterConfig"]
            found["head"] = cluster["headGroupSpec"]["template"]
            found |= {group["groupName"]: group["template"] for group in cluster["workerGroupSpecs"]}
    return found
