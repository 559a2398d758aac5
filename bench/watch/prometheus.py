"""A real Prometheus server for tests and measurements: on a free port of the loopback, in a folder of its own."""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

from bench.servers import free_port

STARTING = 60.0


def binary() -> str | None:
    """The server program; None where it is not installed (Debian: apt-get install prometheus)."""
    return shutil.which("prometheus")


class Prometheus:
    """A context manager: entering starts the server and waits until it answers.

    `targets`: addresses (http://host:port) by job, scraped every `interval` seconds. `rules`: a file of rules.
    """

    def __init__(
        self, folder: Path, targets: Mapping[str, Sequence[str]], *, interval: float = 1.0, rules: Path | None = None
    ) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self._folder, self._targets, self._interval, self._rules = folder, targets, interval, rules
        self._process: subprocess.Popen[bytes] | None = None
        self._client = httpx.Client(base_url=self.url, timeout=30, trust_env=False, verify=False)  # noqa: S501  # plain

    def __enter__(self) -> Self:
        program = binary()
        if program is None:
            raise FileNotFoundError("no prometheus is installed")
        self._folder.mkdir(parents=True, exist_ok=True)
        pause = f"{round(self._interval * 1000)}ms"
        jobs = [
            {"job_name": job, "static_configs": [{"targets": [url.removeprefix("http://") for url in urls]}]}
            for job, urls in self._targets.items()
        ]
        settings: dict[str, Any] = {
            "global": {"scrape_interval": pause, "scrape_timeout": pause, "evaluation_interval": "5s"},
            "scrape_configs": jobs,
        }
        if self._rules is not None:
            settings["rule_files"] = [str(self._rules.resolve())]
        config = self._folder / "prometheus.yml"
        config.write_text(yaml.safe_dump(settings), encoding="utf-8")
        command = [
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
            "--log.level=warn",
        ]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603  # a system's program
        self.wait(lambda: self._client.get("/-/ready").status_code == 200, STARTING)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The series of an instant query; a scalar is one series. Raises ValueError where the query is none."""
        answer = self._client.post("/api/v1/query", data={"query": expr}).json()
        if answer["status"] != "success":
            raise ValueError(answer["error"])
        data = answer["data"]
        return data["result"] if data["resultType"] == "vector" else [{"metric": {}, "value": data["result"]}]

    def range(self, expr: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """The series of a range query."""
        asked = {"query": expr, "start": start, "end": end, "step": step}
        answer = self._client.post("/api/v1/query_range", data=asked).json()
        if answer["status"] != "success":
            raise ValueError(answer["error"])
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def rules(self) -> dict[str, str]:
        """The health of every alert: ok, err or unknown."""
        groups = self._client.get("/api/v1/rules").json()["data"]["groups"]
        return {
            rule["name"]: rule["health"] for group in groups for rule in group["rules"] if rule["type"] == "alerting"
        }

    def down(self) -> list[str]:
        """Targets whose last scrape failed, with the reason."""
        found = self._client.get("/api/v1/targets").json()["data"]["activeTargets"]
        return [f"{one['scrapeUrl']}: {one['lastError']}" for one in found if one["health"] != "up"]

    def wait(self, holds: Callable[[], bool], within: float) -> None:
        """Wait until something holds. Raises TimeoutError."""
        until = time.monotonic() + within
        while True:
            try:
                if holds():
                    return
            except (httpx.HTTPError, json.JSONDecodeError):
                pass
            if self._process is not None and self._process.poll() is not None:
                raise OSError((self._folder / "log").read_text(errors="replace")[-2000:])
            if time.monotonic() > until:
                raise TimeoutError("waited for Prometheus in vain")
            time.sleep(0.1)
