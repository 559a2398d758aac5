"""What is written down about vLLM and Ray Serve is what is installed. In processes of their own: imports of minutes."""

import json
import subprocess
import sys

import pytest

from tests.e2e.conftest import Home

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("home")
def test_the_list_of_engine_arguments_is_that_of_the_installed_vllm() -> None:
    checked = python("-m", "deploy.engine_arguments", "--check")
    assert checked.returncode == 0, "run: python -m deploy.engine_arguments"


LLM_CONFIG = """
import json
from core.config.records import Tier
from deploy.tiers import llm_config
config = llm_config(Tier(model="name", source="someone/weights", engine={"max_num_seqs": 3}), "DEVICE")
print(json.dumps({
    "model": config.model_loading_config.model_id,
    "source": config.model_loading_config.model_source,
    "engine": config.engine_kwargs,
    "kind": config.accelerator_config.kind,
    "metrics": config.log_engine_metrics,
    "bundles": config.get_engine_config().placement_bundles,
}))
"""


@pytest.mark.parametrize(("device", "bundle"), [("cpu", {"CPU": 1}), ("gpu", {"GPU": 1})])
def test_a_tier_is_a_configuration_that_ray_serve_takes(home: Home, device: str, bundle: dict[str, int]) -> None:
    built = python("-c", LLM_CONFIG.replace("DEVICE", device))
    assert built.returncode == 0, built.stderr
    found = json.loads(built.stdout.splitlines()[-1])
    assert found["model"] == "name"
    assert found["source"] == "someone/weights"
    assert found["engine"]["max_num_seqs"] == 3
    assert found["kind"] == device
    assert found["metrics"] is True
    assert found["bundles"] == [bundle]
