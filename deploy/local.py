"""A Ray cluster on this machine for the tiers of one `forebay up`: started, deployed to, and ended without a trace.

Everything listens on the loopback interface, but for one port of each replica, which Serve opens to all. Ray asks for a
token there and everywhere, which lies in the cluster's own directory: nobody else can run code through it. Engines run
in Ray's worker processes; this process stays small.
"""

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, cast

import httpx
import psutil
from pydantic import JsonValue

from core.config import Config, TierName
from core.errors import ForebayError
from deploy.enginelog import reason
from deploy.groups import groups
from deploy.processes import adopt_orphans, descendants, end, is_alive, reap, remove_shared_memory, shared_memory
from deploy.tiers import CPUS_PER_REPLICA

_LOOPBACK = "127.0.0.1"
_POLL = 1.0
_FIRST_ANSWER = 120.0
_OBJECT_STORE = 100 * 1024**2
# Longer than clients keep a connection for reuse: the proxy must not be the one that closes it.
_KEEP_ALIVE = 300
# Unix sockets below the directory have names of up to 65 characters, and the system allows 107 in all.
_LONGEST_DIRECTORY = 40
_PREFIX = "forebay-"

TierState = Literal["starting", "warming", "ready"]
TierProgress = Callable[[TierName, TierState], None]
# Called while waiting; what it raises ends the wait.
Check = Callable[[], None]


class ClusterError(ForebayError):
    """The local cluster or a tier on it did not start; the message is one line for people.

    `log` is the text of the logs that belong to it, for a file.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class LocalCluster:
    """A Ray head with Serve, in a directory of its own. A context manager, to be entered in the main thread.

    The kernel ends Ray's daemons when the thread that started them ends, so nothing survives this process for long even
    if it is killed.
    """

    def __init__(self, config: Config, document: Mapping[str, JsonValue], directory: Path) -> None:
        """`document` is what `config` was read from; tiers with `urls` are somebody else's.

        `directory` is an empty one of `short_directory`; it is removed in the end.
        """
        self._document = dict(document)
        self._tiers = {name: tier for name, tier in config.tiers.items() if not tier.urls}
        self._directory = directory
        self._exit = contextlib.ExitStack()
        self._others: set[psutil.Process] = set()
        self._daemons: list[psutil.Process] = []
        self._metrics_port, self._http_port = free_port(), free_port()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as starting:
            starting.callback(shutil.rmtree, self._directory, ignore_errors=True)
            starting.enter_context(_environment(self._environment()))
            adopt_orphans()
            self._others = set(psutil.Process().children())
            starting.callback(self._stop)
            self._start()
            self._exit = starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.close()

    @property
    def urls(self) -> dict[str, str]:
        """Where each tier answers, once it is ready."""
        return {name: f"http://{_LOOPBACK}:{self._http_port}/{name}" for name in self._tiers}

    @property
    def metrics(self) -> str:
        """Where Ray answers a Prometheus scrape: engines as `ray_vllm_*`, Serve as `ray_serve_*`."""
        return f"http://{_LOOPBACK}:{self._metrics_port}/metrics"

    def processes(self) -> list[psutil.Process]:
        """What runs because of this cluster."""
        return descendants(but=self._others)

    def fault(self) -> str | None:
        """Why the cluster cannot go on, or None. Engines that die are Serve's to restart."""
        gone = [daemon for daemon in self._daemons if not is_alive(daemon)]
        return "Ray has stopped" if gone else None

    def _environment(self) -> dict[str, str | None]:
        token = self._directory / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32), encoding="utf-8")
        search = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        scratch = self._directory / "tmp"
        scratch.mkdir(mode=0o700, exist_ok=True)
        return {
            # Engines leave their sockets behind when they are ended: they go with the directory.
            "TMPDIR": str(scratch),
            "PYTHONPATH": os.pathsep.join(filter(None, search)),
            "RAY_ADDRESS": None,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            # Off, the node's address is 127.0.0.1 and nothing listens elsewhere; the name is of other systems' default.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_metrics_report_interval_ms": "1000",
            # Free ports instead of fixed ones, so that another Ray on this machine is not in the way.
            "AUTOSCALER_METRIC_PORT": "0",
            "DASHBOARD_METRIC_PORT": "0",
            # Workers are engines here. Started in advance or kept idle, they would cost up to 0.7 GB each.
            "RAY_prestart_worker_first_driver": "0",
            "RAY_num_workers_soft_limit": "0",
            # Ray gives way to everything else by default; an engine that starves fails its health checks.
            "RAY_worker_niceness": "0",
            # Its listeners are open to the network; the Python proxy's are not.
            "RAY_SERVE_ENABLE_HA_PROXY": "0",
        }

    def _start(self) -> None:
        # Heavy, and reads its environment when imported.
        from ray import serve  # noqa: PLC0415

        # It would write across the progress of whoever waits.
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        # Ray puts a handler of its own here, which would end this process without its clean-up.
        handler = signal.getsignal(signal.SIGTERM)
        try:
            try:
                self._init()
            except Exception:  # noqa: BLE001  # a boundary, as below
                # Ray gives its daemons 30 s, which a busy machine may need to read them from disk: once more.
                self._stop()
                self._init()
            http = {"host": _LOOPBACK, "port": self._http_port, "keep_alive_timeout_s": _KEEP_ALIVE}
            serve.start(proxy_location="HeadOnly", http_options=http)
        except Exception as error:  # a boundary: whatever Ray raises, it did not start
            raise ClusterError(f"Ray did not start: {reason(str(error))}", self._logs()) from error
        finally:
            signal.signal(signal.SIGTERM, handler)
        self._daemons = [child for child in self.processes() if child.name() in ("raylet", "gcs_server")]

    def _init(self) -> None:
        import ray  # noqa: PLC0415  # as above

        replicas = sum(group.replicas.max for tier in self._tiers.values() for group in groups(tier))
        ray.init(
            address="local",
            # Logical: engines share the real ones.
            num_cpus=max(4, 2 + CPUS_PER_REPLICA * replicas),
            object_store_memory=_OBJECT_STORE,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            _temp_dir=str(self._directory),
            _node_ip_address=_LOOPBACK,
            _metrics_export_port=self._metrics_port,
        )

    def _stop(self) -> None:
        import ray  # noqa: PLC0415  # as above

        processes = self.processes()
        segments = shared_memory(processes)
        ray.shutdown()
        end([*processes, *self.processes()])
        reap()
        remove_shared_memory(segments)

    def deploy(self, progress: TierProgress, check: Check) -> None:
        """Run every tier and wait until all are up. Raises ClusterError as soon as one cannot be."""
        import ray  # noqa: PLC0415  # as above

        # In a worker, because building an application imports vLLM: its memory goes back when the task is done.
        task = ray.remote(num_cpus=0, max_calls=1)(deploy_tiers)
        pending = [task.remote(list(self._tiers), self._document)]
        for name in self._tiers:
            progress(name, "starting")
        while pending:
            check()
            done, pending = ray.wait(pending, timeout=_POLL)
            try:
                ray.get(done)
            except Exception as error:  # a boundary: a worker's error, of any class
                raise ClusterError(f"the tiers cannot be deployed: {reason(str(error))}", self._logs()) from error
        waiting = set(self._tiers)
        while waiting:
            check()
            if fault := self.fault():
                raise ClusterError(fault, self._logs())
            for name in self._up(waiting):
                waiting.remove(name)
                progress(name, "warming")
                _first_answer(f"{self.urls[name]}/v1/chat/completions", self._tiers[name].model)
                progress(name, "ready")
            time.sleep(_POLL)

    def _up(self, names: Iterable[TierName]) -> list[TierName]:
        """Which of the tiers are up. Raises ClusterError where one has failed."""
        from ray import serve  # noqa: PLC0415  # as above

        applications = serve.status().applications
        found = []
        for name in sorted(names):
            if (status := applications.get(name)) is None:
                continue
            messages = [status.message, *(deployment.message for deployment in status.deployments.values())]
            trouble = next((message for message in messages if "fail" in message.lower()), None)
            if trouble is not None or status.status.value in ("DEPLOY_FAILED", "UNHEALTHY"):
                log = self._logs()
                raise ClusterError(f"tier {name} did not start: {reason(log, trouble or status.message)}", log)
            if status.status.value == "RUNNING":
                found.append(name)
        return found

    def _logs(self) -> str:
        """What engines and replicas wrote, for a file: Ray's directory is gone with the cluster."""
        logs = self._directory / "session_latest" / "logs"
        files = sorted([*logs.glob("worker-*.err"), *logs.glob("worker-*.out"), *logs.glob("serve/*.log")])
        parts = []
        for file in files:
            with contextlib.suppress(OSError):
                text = file.read_text(encoding="utf-8", errors="replace")
                parts += [f"==> {file.name} <==", text] if text.strip() else []
        return "\n".join(parts)


def deploy_tiers(names: Sequence[TierName], document: dict[str, JsonValue]) -> None:
    """Runs in a Ray worker: hand the tiers to Serve, without waiting for their engines."""
    # Heavy, as above.
    from ray import serve  # noqa: PLC0415

    from deploy.app import build  # noqa: PLC0415

    targets = [
        serve.RunTarget(build({"tier": name, "config": document}), name=name, route_prefix=f"/{name}") for name in names
    ]
    serve.run_many(targets, wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)


def _first_answer(url: str, model: str) -> None:
    """Have an engine answer once: what it imports and prepares for that takes up to seconds, which no user should wait.

    A model without a chat template refuses, and that is fine here.
    """
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    with contextlib.suppress(httpx.HTTPError):
        httpx.post(url, json=body, timeout=_FIRST_ANSWER, trust_env=False)


def free_port(host: str = _LOOPBACK) -> int:
    """A TCP port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return cast("int", probe.getsockname()[1])


def short_directory() -> Path:
    """A directory for one cluster, private, with a name short enough for the sockets in it."""
    default = tempfile.gettempdir()
    base = default if len(default) <= _LONGEST_DIRECTORY else "/tmp"  # noqa: S108  # mkdtemp makes it private
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))


@contextlib.contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """This process's environment, which Ray and its workers inherit, with changes; undone at the end."""
    before = {name: os.environ.get(name) for name in changes}
    _apply(changes)
    try:
        yield
    finally:
        _apply(before)


def _apply(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
