"""One `forebay up` for every end-to-end test: real Ray Serve, real vLLM, the profile of a machine without a GPU."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from deploy.instance import Instance

# What starts Ray by itself comes before the shared instance is up, and what ends that comes last.
FIRST = "test_engine_fails.py", "test_conformance.py", "test_chart.py", "test_apart.py"
LAST = "test_down.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests here in order; all others stay where they are."""
    here = Path(__file__).parent
    items.sort(key=lambda item: _place(item.path.name) if item.path.parent == here else 0)


def _place(name: str) -> int:
    return -1 if name in FIRST else int(name == LAST)


@dataclass(frozen=True)
class Running:
    """A running `forebay up`."""

    home: "Home"
    url: str
    pid: int
    tiers: dict[str, dict[str, str]]
    metrics: str

    def client(self) -> OpenAI:
        """The official client, without retries: what fails should be seen."""
        return OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, timeout=300)

    def engine_metric(self, name: str, tier: str) -> float:
        """The sum of an engine's metric as Ray exports it, such as `num_requests_running`; 0 where it is not there."""
        text = httpx.get(self.metrics, timeout=30).text
        model = re.escape(f'model_name="{self.tiers[tier]["model"]}"')
        lines = re.findall(rf"^ray_vllm_{name}\{{[^}}]*{model}[^}}]*\}} (\S+)$", text, re.MULTILINE)
        return sum(map(float, lines))


@dataclass(frozen=True)
class Home:
    """One user with a state directory of their own, and the command line."""

    directory: Path

    @property
    def instance(self) -> Instance:
        """What `up` writes down there."""
        return Instance(self.directory / "forebay")

    def forebay(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY__")}
        return subprocess.run(
            [sys.executable, "-m", "forebay", *words],
            env={**inherited, "XDG_STATE_HOME": str(self.directory), "FOREBAY__GATEWAY__PORT": "0", **environ},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A user who has started nothing yet."""
    for needed in ("vllm", "ray"):
        try:
            importlib.metadata.version(needed)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{needed} is not installed: only the gateway is")
    return Home(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def running(home: Home) -> Iterator[Running]:
    """`forebay up --detach --json`, stopped when the last test is over."""
    up = home.forebay("up", "--detach", "--json")
    try:
        assert up.returncode == 0, up.stderr
        document: dict[str, Any] = json.loads(up.stdout)
        yield Running(home, document["url"], document["pid"], document["tiers"], document["metrics"])
    finally:
        home.forebay("down")
