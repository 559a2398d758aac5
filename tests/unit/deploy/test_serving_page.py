"""docs/serving.md is true: its examples pass the check, and the engine has the metrics that it names."""

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

from core.config import validate
from deploy.engine import check_engines

PAGE = (Path(__file__).parents[3] / "docs" / "serving.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
METRICS = sorted(set(re.findall(r"`(vllm:\w+)`", PAGE)))


def test_there_is_something_to_check() -> None:
    assert len(EXAMPLES) == 3
    assert len(METRICS) > 10


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_passes_the_check(example: str) -> None:
    assert check_engines(validate(yaml.safe_load(example)), "gpu") == []


def test_the_engine_has_every_metric_that_is_named() -> None:
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed: only the gateway is")
    # Read as text: its import takes up to a minute.
    source = "".join(path.read_text(encoding="utf-8") for path in (Path(spec.origin).parent / "v1").rglob("*.py"))
    assert [name for name in METRICS if f'"{name}"' not in source] == []
