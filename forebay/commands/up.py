"""`forebay up`: Ray, the tiers and the gateway on this machine, until they answer."""

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import ForebayError
from forebay import configuration

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from deploy.instance import Instance, State
    from deploy.plan import Plan
    from forebay.steps import Display

_POLL = 0.2
_TAIL = 15


def add(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "up",
        help="everything on this machine: Ray, the tiers and the gateway",
        description="Start a local Ray, the tiers without urls, and the gateway; wait until it answers, and print its "
        "address and a line to try. Without a configuration it takes the profile of this machine: real models where "
        "there are NVIDIA GPUs, a small demonstration model where there are none. Runs in the foreground until Ctrl-C.",
        epilog="example: forebay up --detach --json",
    )
    configuration.add_option(parser)
    parser.add_argument("--detach", action="store_true", help="return when it is ready; `forebay down` stops it")
    parser.add_argument("--json", action="store_true", help="print one JSON document when it is ready")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 once it is ready (detached) or was stopped (foreground); 1 where it failed."""
    # Not at the top, to keep `--help` quick.
    from deploy.instance import Instance  # noqa: PLC0415
    from deploy.places import state_home  # noqa: PLC0415
    from deploy.plan import Machine, plan, refuse_what_cannot_run, resolve_port  # noqa: PLC0415

    path = configuration.path_of(arguments)
    instance = Instance(state_home())
    machine = Machine.here()
    planned = plan(path, machine.device)
    instance.refuse_if_running()
    refuse_what_cannot_run(planned, machine)
    configuration.say_notes(planned.config, machine.device)
    if arguments.detach:
        return _detach(path, instance, as_json=arguments.json)
    return _foreground(resolve_port(planned), instance, as_json=arguments.json)


def _foreground(planned: "Plan", instance: "Instance", *, as_json: bool) -> int:
    from forebay.steps import display  # noqa: PLC0415  # as above
    from forebay.up import Supervisor  # noqa: PLC0415  # as above

    shown = display()

    def ready(state: "State") -> None:
        shown.close()
        _announce(state, instance, as_json=as_json, detached=False)

    try:
        Supervisor(planned, instance, shown, ready).run()
    except ForebayError:
        shown.close()
        _tell_log(instance.read())
        raise
    finally:
        shown.close()
    return 0


def _detach(path: Path | None, instance: "Instance", *, as_json: bool) -> int:
    from forebay.steps import display  # noqa: PLC0415  # as above

    instance.prepare()
    log = instance.logs / "up.log"
    search = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    named = ["--config", str(path)] if path else []
    with log.open("wb") as output:
        child = subprocess.Popen(  # noqa: S603  # our own module, by the running interpreter
            [sys.executable, "-m", "forebay", "up", *named],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, search))},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    shown = display()
    try:
        state = _follow(child, instance, shown)
    except BaseException:
        # Ctrl-C before it was ready: nothing stays behind.
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        child.wait()
        raise
    finally:
        shown.close()
    if state is None or state.phase != "ready":
        _tell_log(state)
        raise ForebayError(state.error if state and state.error else f"`up` ended while starting; see {log}")
    _announce(state, instance, as_json=as_json, detached=True)
    return 0


def _follow(child: "subprocess.Popen[bytes]", instance: "Instance", shown: "Display") -> "State | None":
    """Show the steps until it is ready or has ended; the last state it wrote, if any."""
    while True:
        ended = child.poll() is not None
        state = instance.read()
        if state is not None and state.supervisor.pid != child.pid:
            state = None
        if state is not None:
            shown.show(state.steps)
        if ended or (state is not None and state.phase == "ready"):
            return state
        time.sleep(_POLL)


def _announce(state: "State", instance: "Instance", *, as_json: bool, detached: bool) -> None:
    if as_json:
        tiers = {name: tier.model_dump() for name, tier in state.tiers.items()}
        document = {
            "url": state.url,
            "pid": state.supervisor.pid,
            "tiers": tiers,
            "metrics": state.metrics,
            "logs": str(instance.logs),
        }
        print(json.dumps(document), flush=True)
        return
    body = '{"model": "auto", "messages": [{"role": "user", "content": "What is the capital of France?"}]}'
    command = f"{shlex.quote(sys.argv[0])} down"
    stop = command if detached else f"Ctrl-C, or {command}"
    print(f"Forebay answers at {state.url}/v1", *_tier_lines(state), sep="\n")
    print(f"\ncurl -s {state.url}/v1/chat/completions -H 'content-type: application/json' \\\n  -d '{body}'\n")
    print(f"logs: {instance.logs}\nstop: {stop}", flush=True)


def _tier_lines(state: "State") -> list[str]:
    return [f"  {name:<9} {tier.model} at {tier.url}" for name, tier in state.tiers.items()]


def _tell_log(state: "State | None") -> None:
    """The end of the log that belongs to a failure."""
    from forebay.gateway_process import tail  # noqa: PLC0415  # as above

    if state is None or state.log is None:
        return
    print(f"--- end of {state.log}", *tail(Path(state.log), _TAIL), "---", sep="\n", file=sys.stderr)
