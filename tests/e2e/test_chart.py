"""The Serve configuration that the chart renders starts real engines on a local Ray, and they answer."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from deploy.profiles import profile
from tests.helm import chart, tools

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]


def test_the_serve_configuration_of_the_chart_starts_on_a_local_ray(tmp_path: Path) -> None:
    for needed in ("vllm", "ray"):
        try:
            importlib.metadata.version(needed)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{needed} is not installed: only the gateway is")
    try:
        tools.helm(chart.NEWEST)
    except tools.CannotFetch as error:
        pytest.skip(str(error))
    document = profile("cpu")
    manifests = chart.render(values={"config": document, "ray": {"workers": {"gpusPerPod": 0}}})
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(chart.serve(manifests)), encoding="utf-8")
    found = subprocess.run(
        [sys.executable, "-m", "tests.e2e.declared", str(path)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr[-2000:]
    answers = json.loads(found.stdout.strip().splitlines()[-1])
    tiers = document["tiers"]
    assert isinstance(tiers, dict)
    assert {name: answer["model"] for name, answer in answers.items()} == {
        name: tier["model"] for name, tier in tiers.items() if isinstance(tier, dict)
    }
    assert all(answer["text"].strip() for answer in answers.values())
