"""An engine that cannot start ends `forebay up` with one line that says why, and nothing stays behind."""

import json
from pathlib import Path

import psutil
import pytest
import yaml

from deploy.processes import is_alive
from tests.e2e.conftest import Home

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

HEADS = 2


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A Llama of two layers without weights: enough for the engine to look at, and to refuse."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "num_hidden_layers": 2,
        "vocab_size": 512,
        "max_position_embeddings": 1024,
        "dtype": "float32",
    }
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_it_is_said_why_and_nothing_stays(home: Home, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "forebay.yaml"
    engine = {"max_model_len": 4096, "skip_tokenizer_init": True}
    path.write_text(yaml.safe_dump({"tiers": {"small": {"model": "m", "source": str(tiny), "engine": engine}}}))
    before = set(psutil.pids())
    up = home.forebay("up", "--config", str(path), "--detach")
    assert up.returncode == 1, up.stdout
    said = up.stderr.strip().splitlines()[-1]
    assert said.startswith("forebay: tier small did not start: ")
    assert "max_model_len (4096)" in said
    state = home.instance.read()
    assert state is not None
    assert state.phase == "failed"
    assert (home.instance.logs / "tiers.log").stat().st_size > 0
    left = [psutil.Process(pid) for pid in set(psutil.pids()) - before if psutil.pid_exists(pid)]
    assert [process for process in left if is_alive(process) and "ray" in process.name().lower()] == []
    assert not home.instance.is_running()
    assert home.forebay("down").stdout.strip() == "nothing is running"
