"""The supervisor behind `forebay up`: what it starts, in which order, how it notices trouble, and how all of it ends.

It owns every process below it. It ends when it is told to (SIGTERM, Ctrl-C), or when something that it cannot mend has
stopped; a gateway that dies is started again, but not over and over.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Any, Self

import psutil
import yaml

from core.errors import ForebayError
from deploy.instance import Instance, RunningTier, Started, State, Step, StepStatus
from deploy.local import ClusterError, LocalCluster, TierState, short_directory
from deploy.plan import Plan, gateway_url
from deploy.processes import reap, shared_memory
from deploy.tiers import is_packaged
from deploy.weights import ensure
from forebay.gateway_process import GatewayError, GatewayProcess
from forebay.steps import Display

_POLL = 1.0
# How often the list of processes is written down for a `down` after this one was killed.
_RECORD = 10.0
# A gateway that dies again within this time is not started again.
_STABLE = 60.0

WEIGHTS, RAY, GATEWAY = "weights", "Ray", "gateway"
_SAID: dict[TierState, tuple[StepStatus, str]] = {
    "starting": ("running", "loading the engine"),
    "warming": ("running", "first answer"),
    "ready": ("done", ""),
}


class Stopped(ForebayError):
    """The user wants it to end."""


class Signals:
    """SIGINT, SIGTERM and SIGHUP as a wish that is looked at between steps, so that no clean-up is interrupted."""

    _NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._ask) for number in self._NUMBERS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, _: int, __: FrameType | None) -> None:
        if not self.asked:
            # Not print: a handler may interrupt one.
            os.write(2, b"\nstopping\n")
        self.asked = True

    def check(self) -> None:
        """Raise Stopped where the user has asked for it."""
        if self.asked:
            raise Stopped("stopped")


class Supervisor:
    """One `forebay up` in this process. `ready` is called once, with the state, when everything answers."""

    def __init__(self, plan: Plan, instance: Instance, display: Display, ready: Callable[[State], None]) -> None:
        self._plan, self._instance, self._display, self._ready = plan, instance, display, ready
        names = [f"tier {name}" for name in plan.own]
        wanted = [WEIGHTS] if any(map(is_packaged, plan.own.values())) else []
        self._steps = {name: Step(name=name) for name in (*wanted, *([RAY] if names else []), *names, GATEWAY)}
        me = Started.of(psutil.Process())
        self._state = State(supervisor=me, drain=plan.config.gateway.drain)
        self._signals = Signals()
        self._cluster: LocalCluster | None = None
        self._recorded = 0.0

    def run(self) -> None:
        """Start everything, watch it, end everything. Returns once the user has ended it.

        Raises AlreadyRunning; ForebayError where it failed, after the reason was written down.
        """
        with self._instance.locked():
            self._instance.sweep()
            self._update()
            try:
                with self._signals:
                    self._run()
            except Stopped:
                self._instance.forget()
            except ForebayError as error:
                self._fail(error)
                raise

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            if self._plan.own:
                self._cluster = self._start_cluster(stack)
            urls = self._cluster.urls if self._cluster else {}
            gateway = stack.enter_context(self._gateway(urls))
            # Loads its models while the first core is busy with the engines' beginnings.
            gateway.start()
            self._record()
            if self._cluster:
                self._deploy(self._cluster, gateway)
            self._wait_for(gateway)
            tiers = {
                name: RunningTier(model=tier.model, url=urls.get(name) or tier.urls[0])
                for name, tier in self._plan.config.tiers.items()
            }
            self._update(phase="ready", url=gateway_url(self._plan.config), tiers=tiers)
            self._ready(self._state)
            self._watch(gateway)

    def _start_cluster(self, stack: contextlib.ExitStack) -> LocalCluster:
        if WEIGHTS in self._steps:
            self._step(WEIGHTS, "running")
            try:
                ensure(lambda line: self._step(WEIGHTS, "running", line))
            except ForebayError:
                # The process that converts gets a Ctrl-C, too.
                self._signals.check()
                raise
            self._step(WEIGHTS, "done")
        self._signals.check()
        self._step(RAY, "running")
        directory = short_directory()
        self._update(directory=str(directory))
        cluster = stack.enter_context(LocalCluster(self._plan.config, self._plan.document, directory))
        self._step(RAY, "done")
        self._update(metrics=cluster.metrics)
        self._record()
        return cluster

    def _gateway(self, urls: Mapping[str, str]) -> GatewayProcess:
        document = yaml.safe_dump(self._plan.gateway_document(urls), sort_keys=False)
        self._instance.write_private(self._instance.gateway_config, document)
        log = self._instance.logs / "gateway.log"
        log.unlink(missing_ok=True)
        url, drain = gateway_url(self._plan.config), self._plan.config.gateway.drain
        return GatewayProcess(self._instance.gateway_config, url, log, drain)

    def _deploy(self, cluster: LocalCluster, gateway: GatewayProcess) -> None:
        def check() -> None:
            self._check_and_record()
            gateway.refuse_if_ended()

        cluster.deploy(lambda name, state: self._step(f"tier {name}", *_SAID[state]), check)

    def _wait_for(self, gateway: GatewayProcess) -> None:
        self._step(GATEWAY, "running")
        gateway.wait_ready(self._check_and_record)
        self._step(GATEWAY, "done")

    def _watch(self, gateway: GatewayProcess) -> None:
        while True:
            self._check_and_record()
            fault = self._cluster.fault() if self._cluster else None
            if fault:
                raise ForebayError(fault)
            code = gateway.exit_code()
            if code is not None:
                if gateway.age() < _STABLE:
                    raise GatewayError(f"the gateway ended soon after its start, with exit code {code}")
                self._step(GATEWAY, "running", f"ended with exit code {code}; starting again")
                gateway.start()
                self._record()
                self._wait_for(gateway)
            time.sleep(_POLL)

    def _check_and_record(self) -> None:
        self._signals.check()
        if time.monotonic() - self._recorded > _RECORD:
            self._record()

    def _record(self) -> None:
        """Write down what would have to be cleaned up if this process were killed."""
        self._recorded = time.monotonic()
        reap()
        processes = psutil.Process().children(recursive=True)
        started = []
        for process in processes:
            with contextlib.suppress(psutil.Error):
                started.append(Started.of(process))
        segments = {*self._state.shared_memory, *shared_memory(processes)}
        self._update(processes=tuple(started), shared_memory=tuple(sorted(segments)))

    def _step(self, name: str, status: StepStatus, detail: str = "") -> None:
        self._steps[name] = Step(name=name, status=status, detail=detail)
        self._update()

    def _update(self, **changes: Any) -> None:
        self._state = self._state.model_copy(update={**changes, "steps": tuple(self._steps.values())})
        self._instance.write(self._state)
        self._display.show(self._state.steps)

    def _fail(self, error: ForebayError) -> None:
        log = None
        if isinstance(error, ClusterError) and error.log:
            log = self._instance.logs / "tiers.log"
            self._instance.write_private(log, error.log)
        elif isinstance(error, GatewayError):
            log = self._instance.logs / "gateway.log"
        for name, step in self._steps.items():
            if step.status == "running":
                self._steps[name] = Step(name=name, status="failed")
        kept = {"processes": (), "shared_memory": (), "directory": None}
        self._update(phase="failed", error=str(error), log=str(log) if log else None, **kept)
        self._instance.gateway_config.unlink(missing_ok=True)
