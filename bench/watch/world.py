"""A gateway with everything on, scripted engines, a store, and the Prometheus that watches them."""

import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from bench.faults.world import Process
from bench.servers import Server, binary
from bench.watch.apart import ApartNumbers
from bench.watch.prometheus import Prometheus

RULES = Path(__file__).resolve().parents[2] / "helm/forebay/files/rules.yaml"
TENANTS = ("shop", "desk", "batch", "lab")
SECRET = "watch-{tenant}"  # noqa: S105  # of this run alone
# What the engines answer, how fast (seconds), and how many at one time.
SAID = {
    "small": {"text": "It is the first one, as a rule.", "ttft": 0.04, "itl": 0.004, "logprob": -0.3},
    "frontier": {"text": "A weir raises the river; a sluice lets it pass by measure.", "ttft": 0.08, "itl": 0.006},
}
MODELS = {"small": "small-model", "frontier": "frontier-model"}
RUNNING = 16
STARTING = 240.0
PRICES = {"small": {"input": 0.05, "output": 0.2}, "frontier": {"input": 0.6, "output": 2.4}}


class World:
    """A context manager. `settings`: sections of the configuration that differ from `document`, merged key by key.

    `interval`: seconds between two scrapes. `others`: further addresses to scrape, by job.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any] | None = None,
        *,
        interval: float = 1.0,
        others: Mapping[str, str] | None = None,
    ) -> None:
        self._folder, self._settings, self._interval = folder, settings or {}, interval
        self._others = dict(others or {})
        self._stack = ExitStack()
        self.engines: dict[str, str] = {}
        self.store: Server | None = None
        self.url = ""
        self.log = folder / "gateway.log"

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start(self) -> None:
        enter = self._stack.enter_context
        kind = "valkey" if binary("valkey") else "redis"
        self.store = enter(Server(kind, self._folder / "store"))
        for tier, model in MODELS.items():
            words = ["bench.engine", "--model", model, "--max-running", str(RUNNING), "--keep", "10"]
            words += ["--acceptance", "0.6", "--script", json.dumps(SAID[tier])]
            engine = Process(words, self._folder / f"{tier}.log")
            self._stack.callback(engine.end)
            self.engines[tier] = json.loads(engine.first_line())["url"]
        config = self._folder / "forebay.yaml"
        config.write_text(json.dumps(merged(self.document(), self._settings)), encoding="utf-8")
        keys = {f"WATCH_{tenant.upper()}": SECRET.format(tenant=tenant) for tenant in TENANTS}
        gateway = Process(["forebay", "serve", "--config", str(config)], self.log, keys)
        self._stack.callback(gateway.end)
        self.url = self._announced(gateway)
        self._until_ready()
        apart = enter(ApartNumbers())
        targets = {"forebay": [self.url], "engines": list(self.engines.values()), "apart": [apart.url]}
        targets |= {job: [url] for job, url in self._others.items()}
        self.prometheus = enter(Prometheus(self._folder / "prometheus", targets, interval=self._interval, rules=RULES))

    def document(self) -> dict[str, Any]:
        """The gateway's configuration: every part that has a metric is on."""
        store = "memory" if self.store is None else self.store.url
        keys: list[dict[str, Any]] = [
            {"name": tenant, "tenant": tenant, "env": f"WATCH_{tenant.upper()}"} for tenant in TENANTS
        ]
        # One tenant runs into its limit now and then.
        keys[-1]["requests_per_minute"] = 60
        return {
            "gateway": {"port": 0, "drain": "2s"},
            "auth": {"store": store, "keys": keys},
            "cache": {
                "store": store,
                "timeout": "500ms",
                "exact": {"ttl": "10m"},
                "semantic": {"ttl": "10m", "deadline": "1s", "judge": "small", "shadow_rate": 0.5},
            },
            "router": {
                "labels": {"path": str(self._folder / "labels.jsonl"), "rate": 0.5},
                "cascade": {"enabled": True, "threshold": -1.0, "tokens": 4},
            },
            "tiers": {
                tier: {
                    "model": MODELS[tier],
                    "urls": [url],
                    "price": PRICES[tier],
                    "queue": {"max_inflight": RUNNING, "max_waiting": 64, "max_wait": "5s"},
                }
                for tier, url in self.engines.items()
            },
        }

    def _announced(self, gateway: Process) -> str:
        mark, until = "gateway at ", time.monotonic() + STARTING
        while time.monotonic() < until and gateway.ended() is None:
            text = self.log.read_text(encoding="utf-8", errors="replace")
            if mark in text:
                return text.split(mark)[1].split(",")[0]
            time.sleep(0.05)
        raise RuntimeError(f"the gateway did not start: {self.log.read_text(errors='replace')[-2000:]}")

    def _until_ready(self) -> None:
        """Wait until both tiers answer and the embedder is loaded."""
        until = time.monotonic() + STARTING
        with httpx.Client(base_url=self.url, trust_env=False, verify=False) as client:  # noqa: S501  # plain http
            while time.monotonic() < until:
                body = client.get("/ready").json()
                if all(tier["up"] for tier in body["tiers"].values()) and not body.get("degraded"):
                    return
                time.sleep(0.1)
        raise TimeoutError(f"not ready: {body}")


def merged(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The document with changes, mappings key by key."""
    found = dict(document)
    for key, value in changes.items():
        old = found.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        found[key] = merged(old, value) if both else value  # type: ignore[arg-type]  # both are mappings
    return found
