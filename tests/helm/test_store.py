"""The command of the chart's Valkey, run with a real one."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from bench.servers import binary, free_port
from tests.e2e.waiting import until
from tests.helm import chart

PASSWORD = "of 'its' own $HOME"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[redis.Redis]:
    """The server as the container starts it, on a port and in a folder of the test."""
    program = binary("valkey")
    if program is None:
        pytest.skip("no valkey server is installed")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "valkey-server").symlink_to(program)
    spec = chart.one(chart.render("production"), "StatefulSet")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    port = free_port()
    script = container["args"][0].replace("valkey-server", f"valkey-server --port {port} --bind 127.0.0.1", 1)
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "STORE_PASSWORD": PASSWORD}
    words = [*container["command"], script.replace("--dir /data", f"--dir {tmp_path}")]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
    client = redis.Redis(port=port, password=PASSWORD, socket_timeout=30)

    def answers() -> bool:
        assert process.poll() is None, (tmp_path / "log").read_text()
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False

    try:
        until(answers)
        yield client
    finally:
        client.close()
        # The shell has given way to the server: what Kubernetes signals is the server itself.
        process.terminate()
        assert process.wait(60) == 0


def test_it_keeps_its_limits_its_password_and_its_data(store: redis.Redis) -> None:
    settings = store.config_get("*")
    assert isinstance(settings, dict)
    assert settings["maxmemory"] == str(6 * 1024**3)
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["appendonly"] == "yes"
    assert settings["requirepass"] == PASSWORD
    port = store.connection_pool.connection_kwargs["port"]
    with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
