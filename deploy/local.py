"""A Ray cluster on this machine for the tiers of one `forebay up`: started, deployed to, and ended without a trace.

Everything listens on the loopback interface. Ray asks for a token that lies in the cluster's own directory, so that
other users of the machine cannot run code through it. Engines run in Ray's worker processes; this process stays small.
"""

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, cast

import psutil
from pydantic import JsonValue

from core.config import Config, TierName
from core.errors import ForebayError
from deploy.enginelog import reason
from deploy.tiers import CPUS_PER_REPLICA

_LOOPBACK = "127.0.0.1"
_POLL = 0.5
_OBJECT_STORE = 100 * 1024**2
# Longer than clients keep a connection for reuse: the proxy must not be the one that closes it.
_KEEP_ALIVE = 300
# Unix sockets below the directory have names of up to 65 characters, and the system allows 107 in all.
_LONGEST_DIRECTORY = 40
_PREFIX = "forebay-"

TierState = Literal["starting", "ready", "failed"]
TierProgress = Callable[[TierName, TierState], None]


class ClusterError(ForebayError):
    """The local cluster or a tier on it did not start; the message is one line for people.

    `log` is the text of the logs that belong to it, for a file.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


@dataclass(frozen=True)
class Tiers:
    """Deployed tiers: the address of each, and where Ray answers a Prometheus scrape."""

    urls: Mapping[TierName, str]
    metrics: str


class LocalCluster:
    """A Ray head with Serve, in a directory of its own. A context manager, to be entered in the main thread.

    The kernel ends Ray's daemons when the thread that started them ends, so nothing survives this process for long even
    if it is killed.
    """

    def __init__(self, config: Config, document: Mapping[str, JsonValue]) -> None:
        """`document` is what `config` was read from; tiers with `urls` are somebody else's."""
        self._document = dict(document)
        self._tiers = {name: tier for name, tier in config.tiers.items() if not tier.urls}
        self._exit = contextlib.ExitStack()
        self.directory = Path()
        self._metrics_port = self._http_port = 0

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as starting:
            before = set(psutil.Process().children())
            self.directory = _short_directory()
            starting.callback(shutil.rmtree, self.directory, ignore_errors=True)
            starting.enter_context(_environment(self._environment()))
            starting.callback(_end_children, before)
            self._start(starting)
            self._exit = starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.close()

    def _environment(self) -> dict[str, str | None]:
        token = self.directory / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32), encoding="utf-8")
        search = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        return {
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
            # Its listeners are open to the network; the Python proxy's are not.
            "RAY_SERVE_ENABLE_HA_PROXY": "0",
        }

    def _start(self, starting: contextlib.ExitStack) -> None:
        # Heavy, and reads its environment when imported.
        import ray  # noqa: PLC0415
        from ray import serve  # noqa: PLC0415

        self._metrics_port, self._http_port = free_port(), free_port()
        replicas = sum(tier.replicas.max for tier in self._tiers.values())
        starting.callback(ray.shutdown)
        try:
            ray.init(
                address="local",
                # Logical: engines share the real ones.
                num_cpus=max(4, 2 + CPUS_PER_REPLICA * replicas),
                object_store_memory=_OBJECT_STORE,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                _temp_dir=str(self.directory),
                _node_ip_address=_LOOPBACK,
                _metrics_export_port=self._metrics_port,
            )
            http = {"host": _LOOPBACK, "port": self._http_port, "keep_alive_timeout_s": _KEEP_ALIVE}
            serve.start(proxy_location="HeadOnly", http_options=http)
        except Exception as error:  # a boundary: whatever Ray raises, it did not start
            raise ClusterError(f"Ray did not start: {reason(str(error))}", self._logs()) from error

    def deploy(self, progress: TierProgress) -> Tiers:
        """Run every tier and wait until all are up. Raises ClusterError as soon as one cannot be."""
        import ray  # noqa: PLC0415  # as above

        # In a worker, because building an application imports vLLM: its memory goes back when the task is done.
        task = ray.remote(num_cpus=0, max_calls=1)(deploy_tiers)
        pending = [task.remote(list(self._tiers), self._document)]
        for name in self._tiers:
            progress(name, "starting")
        while pending:
            done, pending = ray.wait(pending, timeout=_POLL)
            try:
                ray.get(done)
            except Exception as error:  # a boundary: a worker's error, of any class
                raise ClusterError(f"the tiers cannot be deployed: {reason(str(error))}", self._logs()) from error
        waiting = set(self._tiers)
        while waiting:
            for name in sorted(waiting):
                if self._is_ready(name):
                    waiting.remove(name)
                    progress(name, "ready")
            if waiting:
                time.sleep(_POLL)
        urls = {name: f"http://{_LOOPBACK}:{self._http_port}/{name}" for name in self._tiers}
        return Tiers(urls, f"http://{_LOOPBACK}:{self._metrics_port}/metrics")

    def _is_ready(self, name: TierName) -> bool:
        from ray import serve  # noqa: PLC0415  # as above

        status = serve.status().applications.get(name)
        if status is None:
            return False
        messages = [status.message, *(deployment.message for deployment in status.deployments.values())]
        trouble = next((message for message in messages if "fail" in message.lower()), None)
        if trouble is not None or status.status.value in ("DEPLOY_FAILED", "UNHEALTHY"):
            log = self._logs()
            raise ClusterError(f"tier {name} did not start: {reason(log, trouble or status.message)}", log)
        return bool(status.status.value == "RUNNING")

    def _logs(self) -> str:
        """What engines and replicas wrote, for a file: Ray's directory is gone with the cluster."""
        logs = self.directory / "session_latest" / "logs"
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


def free_port(host: str = _LOOPBACK) -> int:
    """A TCP port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return cast("int", probe.getsockname()[1])


def _short_directory() -> Path:
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


def _end_children(before: set[psutil.Process]) -> None:
    """End what this process has started since: politely, then not."""
    mine = [child for child in psutil.Process().children(recursive=True) if child not in before]
    end(mine)


def end(processes: Sequence[psutil.Process], patience: float = 3.0) -> None:
    """End processes: SIGTERM, `patience` seconds, SIGKILL. psutil knows a reused pid by its start time."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.terminate()
    _, stubborn = psutil.wait_procs(processes, timeout=patience)
    for process in stubborn:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.kill()
    psutil.wait_procs(stubborn, timeout=patience)
