"""`forebay down` ends exactly what `forebay up` started."""

import json
import re
import socket
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from deploy.processes import is_alive, shared_memory
from tests.e2e.conftest import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

MEMORY = Path("/dev/shm")  # noqa: S108  # where the kernel keeps it
# What vLLM would leave in the system's temporary directory.
ENGINES = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|vllm_dist_[0-9a-f]+")


def test_no_process_port_or_directory_stays(running: Running) -> None:
    state = running.home.instance.read()
    assert state is not None
    assert state.directory is not None
    supervisor = psutil.Process(running.pid)
    supervisor_since = supervisor.create_time()
    family = [supervisor, *supervisor.children(recursive=True)]
    ports = {
        connection.laddr.port
        for process in family
        for connection in process.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    scratch = Path(state.directory) / "tmp"
    assert any(scratch.iterdir()), "the engines' sockets"
    since = {path.name for path in MEMORY.iterdir() if path.stat().st_mtime >= supervisor.create_time()}
    assert len(family) > 10
    assert urlsplit(running.url).port in ports
    assert shared_memory(family)
    assert Path(state.directory).is_dir()

    down = running.home.forebay("down", "--json")
    assert json.loads(down.stdout) == {"stopped": True, "pid": running.pid, "leftovers": 0}

    assert [process for process in family if is_alive(process)] == []
    assert [port for port in sorted(ports) if listens(port)] == []
    assert (since & {path.name for path in MEMORY.iterdir()}) - shared_memory(psutil.process_iter()) == set()
    assert not Path(state.directory).exists()
    made = [path for path in Path(tempfile.gettempdir()).iterdir() if path.stat().st_ctime >= supervisor_since]
    assert [path.name for path in made if ENGINES.fullmatch(path.name)] == []
    assert sorted(path.name for path in running.home.instance.directory.iterdir()) == ["logs", "up.lock"]
    assert running.home.forebay("down").stdout.strip() == "nothing is running"


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
