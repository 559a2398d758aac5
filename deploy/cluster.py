"""A Ray cluster that runs already, through the REST API of its Serve: deploy the tiers, see them, remove them.

The API takes the whole of what Serve shall run, so applications of others are read first and passed back unchanged.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from core.errors import ForebayError
from deploy.render import IMPORT_PATH

ADDRESS = "http://127.0.0.1:8265"
_PATH = "/api/serve/applications/"
_TIMEOUT = 60.0
_POLL = 2.0

Application = Mapping[str, Any]
Progress = Callable[[dict[str, Application]], None]


class ClusterFault(ForebayError):
    """The cluster does not answer, refuses, or a tier on it has failed; one line for people."""


class Cluster:
    """The Serve of one Ray cluster. A context manager. `address` is of Ray's dashboard.

    `pause(seconds)` waits between two looks at the cluster, `clock()` is in seconds.
    """

    def __init__(
        self,
        address: str,
        environ: Mapping[str, str] = os.environ,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address, self._pause, self._clock = address.rstrip("/"), pause, clock
        token = _token(environ)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(base_url=self._address, headers=headers, timeout=_TIMEOUT, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def tiers(self) -> dict[str, Application]:
        """The applications that run tiers, by name, as Serve describes them."""
        return {name: found for name, found in self._details()["applications"].items() if _is_ours(found)}

    def run(self, config: Mapping[str, Any]) -> int:
        """Have Serve run these applications beside those of others; the port they will answer at, once it has accepted.

        Tiers that run and are not in `config` are removed. Where Serve runs already, its HTTP options stay.
        """
        details = self._details()
        others = _others(details)
        wanted = {application["name"] for application in config["applications"]}
        taken = sorted(wanted & {name for name, found in details["applications"].items() if not _is_ours(found)})
        if taken:
            raise ClusterFault(f"the cluster runs an application called {taken[0]} that is no tier: remove it first")
        options = {key: details[key] for key in ("proxy_location", "http_options") if details.get(key)}
        whole = {**config, **options, "applications": [*others, *config["applications"]]}
        self._ask("PUT", whole)
        return int(whole["http_options"]["port"])

    def down(self) -> list[str]:
        """Remove the tiers and nothing else; the names of those that ran."""
        details = self._details()
        names = [name for name, found in details["applications"].items() if _is_ours(found)]
        if names:
            others = _others(details)
            foreign = len(details["applications"]) > len(names)
            options = {key: details[key] for key in ("proxy_location", "http_options") if details.get(key)}
            # An empty list would leave Serve running for nobody.
            self._ask("PUT" if foreign else "DELETE", {**options, "applications": others} if foreign else None)
        return names

    def wait(self, names: list[str], progress: Progress, limit: float) -> dict[str, Application]:
        """Wait until these tiers run. `limit` is in seconds.

        Raises ClusterFault as soon as one has failed, or when the time is over.
        """
        end = self._clock() + limit
        while True:
            found = self.tiers()
            progress(found)
            for name, application in found.items():
                if name in names and application["status"] in ("DEPLOY_FAILED", "UNHEALTHY"):
                    raise ClusterFault(f"tier {name} did not start: {message(application)}")
            if all(name in found and found[name]["status"] == "RUNNING" for name in names):
                return found
            if self._clock() >= end:
                late = ", ".join(name for name in names if found.get(name, {}).get("status") != "RUNNING")
                raise ClusterFault(f"still not running after {limit:.0f} s: {late}; `forebay deploy status` says more")
            self._pause(_POLL)

    def wait_gone(self, progress: Progress, limit: float) -> None:
        """Wait until no tier is left. Raises ClusterFault when the time is over."""
        end = self._clock() + limit
        while found := self.tiers():
            progress(found)
            if self._clock() >= end:
                raise ClusterFault(f"still there after {limit:.0f} s: {', '.join(found)}")
            self._pause(_POLL)

    def _details(self) -> dict[str, Any]:
        details: dict[str, Any] = self._ask("GET", None).json()
        return {**details, "applications": details.get("applications") or {}}

    def _ask(self, method: str, body: Mapping[str, Any] | None) -> httpx.Response:
        try:
            answer = self._client.request(method, _PATH, json=body)
        except httpx.HTTPError as error:
            reason = f"{type(error).__name__}: {error}"
            raise ClusterFault(f"no Ray dashboard answers at {self._address} ({reason}); give --address") from error
        if answer.status_code in (401, 403):
            raise ClusterFault(f"{self._address} wants a token: set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH")
        if answer.status_code != 200:
            said = answer.text.strip().splitlines()
            raise ClusterFault(f"Ray answered {answer.status_code}: {said[-1][:400] if said else 'nothing'}")
        return answer


def message(application: Application) -> str:
    """What Serve says of an application: the first deployment that has something to say, else its own message."""
    said = [deployment.get("message") for deployment in application.get("deployments", {}).values()]
    text = next(filter(None, said), None) or application.get("message") or "no reason given"
    return " ".join(str(text).split())[:400]


def replicas(deployment: Mapping[str, Any]) -> dict[str, int]:
    """How many replicas of a deployment are in which state."""
    states = [replica["state"] for replica in deployment.get("replicas", ())]
    return {state: states.count(state) for state in sorted(set(states))}


def _is_ours(application: Application) -> bool:
    config = application.get("deployed_app_config") or {}
    return bool(config.get("import_path") == IMPORT_PATH)


def _others(details: Mapping[str, Any]) -> list[Any]:
    return [
        found["deployed_app_config"]
        for found in details["applications"].values()
        if found.get("deployed_app_config") and not _is_ours(found) and found.get("status") != "DELETING"
    ]


def _token(environ: Mapping[str, str]) -> str | None:
    if token := environ.get("RAY_AUTH_TOKEN"):
        return token
    try:
        return Path(environ["RAY_AUTH_TOKEN_PATH"]).read_text(encoding="utf-8").strip()
    except (KeyError, OSError):
        return None
