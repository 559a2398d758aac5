"""A `forebay up` of one test module's own, with the engines' metrics by replica."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from tests.e2e.conftest import Home

_SAMPLE = re.compile(r"^ray_(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_WAIT = 300.0


@dataclass(frozen=True)
class Sample:
    """One line of Ray's metrics."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Live:
    """A running one: the gateway's address, Ray's metrics, the process of `up`, where each tier answers."""

    url: str
    metrics: str
    pid: int
    tiers: Mapping[str, str]

    @classmethod
    @contextmanager
    def started(cls, folder: Path, document: Mapping[str, Any]) -> Iterator["Live"]:
        """Start it with this configuration and a state directory in `folder`; stopped at the end."""
        home, config = Home(folder), folder / "forebay.yaml"
        config.write_text(yaml.safe_dump(dict(document)), encoding="utf-8")
        up = home.forebay("up", "--config", str(config), "--detach", "--json")
        try:
            assert up.returncode == 0, up.stderr
            said = json.loads(up.stdout)
            tiers = {name: tier["url"] for name, tier in said["tiers"].items()}
            yield cls(said["url"], said["metrics"], said["pid"], tiers)
        finally:
            home.forebay("down")

    def ask(self, path: str, model: str, **body: Any) -> httpx.Response:
        """One request, whose answer says how it was prefilled."""
        return httpx.post(
            f"{self.url}{path}", json={"model": model, **body}, headers={"x-forebay-debug": "1"}, timeout=_WAIT
        )

    def client(self, tier: str | None = None) -> httpx.AsyncClient:
        """Many requests at one time, to the gateway, or past it to a tier."""
        url = self.url if tier is None else self.tiers[tier]
        return httpx.AsyncClient(base_url=url, headers={"x-forebay-debug": "1"}, timeout=_WAIT)

    def samples(self, name: str, **labels: str) -> list[Sample]:
        """Samples of a metric that have these labels."""
        text = httpx.get(self.metrics, timeout=_WAIT).text
        found = [Sample(dict(_LABEL.findall(given)), float(v)) for n, given, v in _SAMPLE.findall(text) if n == name]
        return [sample for sample in found if labels.items() <= sample.labels.items()]

    def metric(self, name: str, **labels: str) -> float:
        """The sum of those samples; 0 where there is none. A gauge is gone 2 s after its engine has become idle."""
        return sum(sample.value for sample in self.samples(name, **labels))

    def replicas(self, deployment: str) -> list[psutil.Process]:
        """The processes of a deployment's replicas, such as `small:prefill:m`."""
        family = psutil.Process(self.pid).children(recursive=True)
        return [process for process in family if _title(process) == f"ray::ServeReplica:{deployment}"]


def _title(process: psutil.Process) -> str:
    try:
        words = process.cmdline()
    except psutil.Error:
        return ""
    return words[0] if words else ""
