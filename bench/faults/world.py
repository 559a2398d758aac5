"""The processes of a run: engines that can be killed, a gateway in front of them, and a place where nobody answers."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil

MODEL, LOST = "scripted", "lost"
KEY, ADMIN = "fault-run-client", "fault-run-admin"
# How long the gateway waits for its tiers, in seconds; everything that a client may have to wait follows from these.
CONNECT, FIRST_TOKEN, IDLE, TOTAL = 0.3, 1.0, 1.0, 20.0
MAX_BODY = 256 * 1024
# For runs in which nobody is to wait in vain, however busy the machine.
PATIENT = {"connect": "10s", "first_token": "30s", "idle": "30s", "total": "1m"}
# An engine or a gateway that starts, in seconds.
STARTING = 60.0


class Process:
    """One process of ours with its log; ended with SIGTERM, and SIGKILL where that does not do."""

    def __init__(self, words: list[str], log: Path, environ: Mapping[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as err:
            self._popen = subprocess.Popen(  # noqa: S603  # our own modules, by the running interpreter
                [sys.executable, "-m", *words],
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                env={**os.environ, **(environ or {})},
            )
        self.pid = self._popen.pid

    def first_line(self) -> str:
        """The first line of its stdout."""
        assert self._popen.stdout is not None  # noqa: S101  # it was asked for
        return self._popen.stdout.readline()

    def send(self, number: int) -> None:
        """A signal."""
        self._popen.send_signal(number)

    def ended(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._popen.poll()

    def wait(self, limit: float) -> int | None:
        """Its exit code, waited for; None where it still runs."""
        try:
            return self._popen.wait(limit)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """End it."""
        if self.ended() is None:
            self.send(signal.SIGTERM)
            if self.wait(10) is None:
                self.send(signal.SIGKILL)
                self._popen.wait()
        if self._popen.stdout is not None:
            self._popen.stdout.close()


class Engine:
    """A scripted engine in a process of its own, always on the same port."""

    def __init__(self, folder: Path, number: int) -> None:
        self._log = folder / f"engine-{number}.log"
        self._process: Process | None = None
        self.port = 0
        self.url = ""

    def start(self) -> None:
        """Start it, or start it again."""
        words = ["bench.engine", "--model", MODEL, "--keep", "1", "--port", str(self.port)]
        self._process = Process(words, self._log)
        self.url = json.loads(self._process.first_line())["url"]
        self.port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """SIGKILL: its connections are reset, and further ones refused."""
        if self._process is not None:
            self._process.send(signal.SIGKILL)
            self._process.end()

    def end(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.end()

    async def state(self, client: httpx.AsyncClient) -> dict[str, Any]:
        """What it is doing."""
        state: dict[str, Any] = (await client.get(f"{self.url}/control")).json()
        return state


@contextmanager
def black_hole() -> Iterator[str]:
    """An address where connections are neither accepted nor refused: the kernel's queue for them is full."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(3):
            wire = stack.enter_context(socket.socket())
            wire.setblocking(False)
            wire.connect_ex(listening.getsockname())
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


class World:
    """Three engines, a black hole as the frontier tier, and the gateway. An async context manager.

    `gateway_settings` and `tier_settings` change the sections `gateway` and `tiers.small`; `environ` is added to the
    gateway's environment.
    """

    def __init__(
        self,
        *,
        engines: int = 3,
        gateway_settings: Mapping[str, Any] | None = None,
        tier_settings: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._stack = ExitStack()
        self._count = engines
        self._gateway_settings, self._tier_settings = dict(gateway_settings or {}), dict(tier_settings or {})
        self._environ = environ
        self.engines: list[Engine] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-faults-")))
        self.folder = folder
        try:
            for number in range(self._count):
                engine = Engine(folder, number)
                self._stack.callback(engine.end)
                engine.start()
                self.engines.append(engine)
            self._lost = self._stack.enter_context(black_hole())
            self.config = folder / "forebay.json"
            self.config.write_text(json.dumps(self.document(self._lost)), encoding="utf-8")
            self.gateway = Process(
                ["forebay", "serve", "--config", str(self.config)], folder / "gateway.log", self._environ
            )
            self._stack.callback(self.gateway.end)
            self.client = httpx.AsyncClient(timeout=20, trust_env=False, verify=False)  # noqa: S501  # plain http
            self.url = await self._announced()
            await self.until_ready()
        except BaseException:
            self._stack.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.aclose()
        await asyncio.to_thread(self._stack.close)

    def document(self, lost: str) -> dict[str, Any]:
        """The gateway's configuration."""
        timeout = {"connect": CONNECT, "first_token": FIRST_TOKEN, "idle": IDLE, "total": TOTAL}
        limits = {name: f"{round(value * 1000)}ms" for name, value in timeout.items()}
        # With limits that are never reached, so that they are counted; several workers would need a shared store.
        alone = self._gateway_settings.get("workers", 1) == 1
        limits_of_key = {"requests_per_minute": 10**9, "tokens_per_minute": 10**12, "concurrency": 10**6}
        bounds = limits_of_key if alone else {}
        keys = [
            {"name": "client", "tenant": "run", "env": "FAULT_RUN_KEY", **bounds},
            {"name": "admin", "tenant": "run", "env": "FAULT_RUN_ADMIN", "admin": True},
        ]
        self._environ = {"FAULT_RUN_KEY": KEY, "FAULT_RUN_ADMIN": ADMIN, **(self._environ or {})}
        queue = {"max_inflight": 1000, "max_waiting": 1000}
        small = {"model": MODEL, "urls": [engine.url for engine in self.engines], "timeout": limits, "queue": queue}
        return {
            "gateway": {"port": 0, "max_body_size": f"{MAX_BODY // 1024}KiB", "drain": "20s", **self._gateway_settings},
            "auth": {"keys": keys},
            "cache": {"max_bytes": "1MiB", "semantic": {"enabled": False}},
            "router": {"sticky": False},
            "tiers": {
                "small": small | self._tier_settings,
                "frontier": {"model": LOST, "urls": [lost], "timeout": limits},
            },
        }

    async def _announced(self) -> str:
        """The address that the gateway says it listens at."""
        mark = "gateway at "
        for _ in range(int(STARTING / 0.05)):
            text = self.gateway.log.read_text(encoding="utf-8", errors="replace")
            if mark in text:
                return text.split(mark)[1].split(",")[0]
            if self.gateway.ended() is not None:
                break
            await asyncio.sleep(0.05)
        raise RuntimeError(f"the gateway did not start: {self.gateway.log.read_text(errors='replace')[-2000:]}")

    async def until_ready(self) -> None:
        """Wait until every engine has been found up."""
        until = time.monotonic() + STARTING
        while time.monotonic() < until:
            tier = (await self.client.get(f"{self.url}/ready")).json()["tiers"]["small"]
            if tier["up"] == len(self.engines):
                return
            await asyncio.sleep(0.05)
        raise TimeoutError("the engines were not found up")

    async def be_patient(self) -> None:
        """Have the gateway wait amply for its small tier, by a reload while it runs."""
        self._tier_settings["timeout"] = dict(PATIENT)
        self.config.write_text(json.dumps(self.document(self._lost)), encoding="utf-8")
        self.gateway.send(signal.SIGHUP)
        until, seen = time.monotonic() + STARTING, 0
        # Several workers take turns in answering, and each reads the file itself.
        while seen < 20 and time.monotonic() < until:
            timeout = (await self.admin_state())["config"]["tiers"]["small"]["timeout"]
            seen = seen + 1 if timeout["idle"] == PATIENT["idle"] else 0
            await asyncio.sleep(0.02)
        if seen < 20:
            raise TimeoutError("the reload was not taken over")

    def usage(self) -> tuple[int, float]:
        """Open descriptors and resident memory in MB of the gateway, workers included."""
        process = psutil.Process(self.gateway.pid)
        family = [process, *process.children(recursive=True)]
        return sum(one.num_fds() for one in family), sum(one.memory_info().rss for one in family) / 1e6

    async def rested(self, descriptors: int, within: float = 12.0) -> tuple[int, float]:
        """The usage, once no more descriptors than these are open; what it is after so many seconds where there are.

        Connections to engines are kept for their next use, for 4 s to 8 s.
        """
        until = time.monotonic() + within
        found = self.usage()
        while found[0] > descriptors and time.monotonic() < until:
            await asyncio.sleep(0.2)
            found = self.usage()
        return found

    async def gauges(self) -> dict[str, float]:
        """What is inside gateway and engines at this moment."""
        text = (await self.client.get(f"{self.url}/metrics")).text
        found = dict.fromkeys(("forebay_inflight", "forebay_queue_depth"), 0.0)
        for line in text.splitlines():
            name = line.partition("{")[0]
            if name in found:
                found[name] += float(line.rpartition(" ")[2])
        state = await self.admin_state()
        workers = [state, *state["workers"].values()]
        # The request for the state is one itself.
        found["running"] = sum(worker["running"] for worker in workers) - 1
        tiers = [tier for worker in workers for tier in worker["tiers"].values()]
        found["outstanding"] = sum(replica["outstanding"] for tier in tiers for replica in tier["replicas"])
        engines = [await engine.state(self.client) for engine in self.engines]
        found["engine_running"] = sum(state["running"] + state["waiting"] for state in engines)
        return found

    async def admin_state(self) -> dict[str, Any]:
        """`GET /admin/state`."""
        # On a connection of its own, so that every worker may be the one that answers.
        headers = {"authorization": f"Bearer {ADMIN}", "connection": "close"}
        answer = await self.client.get(f"{self.url}/admin/state", headers=headers)
        answer.raise_for_status()
        state: dict[str, Any] = answer.json()
        return state

    async def settled(self, within: float = 15.0) -> dict[str, float]:
        """The gauges, once all of them are 0; those that are not after so many seconds."""
        until = time.monotonic() + within
        found = await self.gauges()
        while any(found.values()) and time.monotonic() < until:
            await asyncio.sleep(0.1)
            found = await self.gauges()
        return found
