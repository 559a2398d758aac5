"""`forebay up` and `down` say what is wrong before anything is started."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

Result = subprocess.CompletedProcess[str]

CONFIG = "tiers: {small: {model: m, urls: ['http://127.0.0.1:9']}}"


def forebay(directory: Path, *words: str, **environ: str) -> Result:
    """Run a command to its end, as a user whose files lie in the directory."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY__")}
    return subprocess.run(
        [sys.executable, "-m", "forebay", *words],
        env={**inherited, "XDG_STATE_HOME": str(directory / "state"), **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "forebay.yaml"
    path.write_text(CONFIG)
    return str(path)


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield str(other.getsockname()[1])


@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_a_port_in_use(tmp_path: Path, config: str, taken: str, detach: list[str]) -> None:
    refused = forebay(tmp_path, "up", "--config", config, *detach, FOREBAY__GATEWAY__PORT=taken)
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"forebay: gateway.port: 127.0.0.1:{taken} is in use")
    assert len(refused.stderr.splitlines()) == 1
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("FOREBAY__GATEWAY__PORTS", "1", "gateway.ports: unknown key"),
        ("FOREBAY__TIERS__FRONTIER__ENGINE__MAX_NUM_SEQ", "1", "tiers.frontier.model: missing"),
        ("FOREBAY__TIERS", "{small: {model: m, engine: {max_num_seq: 1}}}", "did you mean 'max_num_seqs'?"),
    ],
)
def test_a_wrong_configuration(tmp_path: Path, config: str, variable: str, value: str, said: str) -> None:
    refused = forebay(tmp_path, "up", "--config", config, "--detach", **{variable: value})
    assert refused.returncode == 2
    assert said in refused.stderr
    assert not (tmp_path / "state").exists()


def test_down_says_so_where_nothing_runs(tmp_path: Path) -> None:
    done = forebay(tmp_path, "down")
    assert (done.returncode, done.stdout) == (0, "nothing is running\n")
    assert forebay(tmp_path, "down", "--json").stdout == '{"stopped": false, "pid": null, "leftovers": 0}\n'
