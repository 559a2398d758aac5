"""`forebay up` and `down` as processes, in front of a tier that runs elsewhere: no Ray, but everything around it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from deploy.instance import Instance
from deploy.processes import is_alive
from tests.e2e.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

MODEL = "model-a"
Result = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """A scripted engine; its address."""
    command = [sys.executable, "-m", "bench.engine", "--model", MODEL]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
        process.terminate()


class Home:
    """One user: a state directory, a configuration, and the command line."""

    def __init__(self, directory: Path, engine: str) -> None:
        self.config = directory / "forebay.yaml"
        document = {"gateway": {"port": 0, "drain": "1s"}, "tiers": {"small": {"model": MODEL, "urls": [engine]}}}
        self.config.write_text(yaml.safe_dump(document))
        self.instance = Instance(directory / "state" / "forebay")
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("FOREBAY__")},
            "XDG_STATE_HOME": str(directory / "state"),
        }

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "forebay", *words]

    def forebay(self, *words: str, **environ: str) -> Result:
        """Run a command to its end."""
        return subprocess.run(
            self.command(*words), env={**self.environ, **environ}, capture_output=True, text=True, check=False
        )

    def up(self) -> dict[str, Any]:
        """Start it; the document it prints."""
        done = self.forebay("up", "--config", str(self.config), "--detach", "--json")
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document


@pytest.fixture
def home(tmp_path: Path, engine: str) -> Iterator[Home]:
    home = Home(tmp_path, engine)
    yield home
    home.forebay("down")


def gateway_of(pid: int) -> psutil.Process:
    """The gateway below an `up`."""
    (gateway,) = psutil.Process(pid).children()
    return gateway


def answers(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/ready", timeout=5).status_code == 200
    return False


def test_detached_it_answers_until_down_and_leaves_nothing(home: Home) -> None:
    document = home.up()
    assert answers(document["url"])
    assert document["tiers"]["small"]["model"] == MODEL
    supervisor = psutil.Process(document["pid"])
    family = [supervisor, *supervisor.children(recursive=True)]
    assert len(family) == 2

    second = home.forebay("up", "--config", str(home.config), "--detach")
    assert second.returncode == 1
    assert f"already running at {document['url']}" in second.stderr

    down = home.forebay("down", "--json")
    assert json.loads(down.stdout) == {"stopped": True, "pid": document["pid"], "leftovers": 0}
    assert not any(map(is_alive, family))
    assert not answers(document["url"])
    assert sorted(path.name for path in home.instance.directory.iterdir()) == ["logs", "up.lock"]


def test_down_cleans_up_after_one_that_was_killed(home: Home) -> None:
    document = home.up()
    supervisor, gateway = psutil.Process(document["pid"]), gateway_of(document["pid"])
    supervisor.kill()
    psutil.wait_procs([supervisor], timeout=10)
    assert gateway.is_running()
    down = home.forebay("down", "--json")
    assert json.loads(down.stdout) == {"stopped": True, "pid": None, "leftovers": 1}
    psutil.wait_procs([gateway], timeout=10)
    assert not answers(document["url"])


def test_after_one_that_was_killed_it_starts_again(home: Home) -> None:
    first = home.up()
    psutil.Process(first["pid"]).kill()
    second = home.up()
    assert second["pid"] != first["pid"]
    assert answers(second["url"])
    assert not answers(first["url"])


def test_a_gateway_that_dies_at_once_ends_it_with_the_reason(home: Home) -> None:
    document = home.up()
    supervisor = psutil.Process(document["pid"])
    gateway_of(document["pid"]).kill()
    psutil.wait_procs([supervisor], timeout=60)
    state = home.instance.read()
    assert state is not None
    assert state.phase == "failed"
    assert state.error is not None
    assert "exit code -9" in state.error
    assert not home.instance.is_running()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_in_the_foreground_a_signal_ends_it(home: Home, number: signal.Signals) -> None:
    command = home.command("up", "--config", str(home.config), "--json")
    with subprocess.Popen(command, env=home.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        document = json.loads(up.stdout.readline())
        assert answers(document["url"])
        family = psutil.Process(up.pid).children(recursive=True)
        up.send_signal(number)
        _, said = up.communicate()
    assert up.returncode == 0
    assert "gateway: ready" in said
    assert not any(map(is_alive, family))
    assert not answers(document["url"])


def test_stopped_while_it_starts_it_leaves_nothing(home: Home) -> None:
    # Nothing listens there, so the gateway does not become ready.
    environ = {**home.environ, "FOREBAY__TIERS__SMALL__URLS": "['http://127.0.0.1:9']"}
    command = home.command("up", "--config", str(home.config), "--detach")
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as up:
        until(lambda: bool((state := home.instance.read()) and state.processes))
        state = home.instance.read()
        assert state is not None
        family = [process for started in (state.supervisor, *state.processes) if (process := started.process())]
        assert len(family) == 2
        up.send_signal(signal.SIGINT)
        up.communicate()
    assert up.returncode != 0
    assert not any(map(is_alive, family))
    assert not home.instance.is_running()


def test_a_gateway_that_cannot_start_is_said_with_the_end_of_its_log(home: Home) -> None:
    failed = home.forebay(
        "up", "--config", str(home.config), "--detach", FOREBAY__ROUTER__CLASSIFIER="a-file-that-is-not-there"
    )
    assert failed.returncode == 1
    assert "the gateway ended with exit code 2" in failed.stderr
    assert "router.classifier" in failed.stderr
    assert not home.instance.is_running()
    assert home.forebay("down").stdout.strip() == "nothing is running"
