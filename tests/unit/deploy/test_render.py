"""What is printed for Ray Serve: the reference layouts, and only what engines depend on."""

from typing import Any

import pytest

from core.config import validate
from core.errors import ConfigError
from deploy.engine import check_engines
from deploy.render import deployments, serve_config
from tests.golden.layouts import LAYOUTS, document, groups, rendered


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_reference_layout_is_rendered_as_its_golden_files(layout: str) -> None:
    for path, text in rendered(layout).items():
        assert path.read_text(encoding="utf-8") == text, "run: python -m tests.golden"


@pytest.mark.parametrize(("layout", "gpus"), LAYOUTS.items())
def test_a_reference_layout_is_right_and_takes_its_gpus(layout: str, gpus: int) -> None:
    assert check_engines(validate(document(layout)), "gpu") == []
    assert sum(group["gpus_max"] for group in groups(layout)) == gpus
    for group in groups(layout):
        bundles = group["llm_config"]["placement_group_config"]["bundles"]
        assert sum(bundle["GPU"] for bundle in bundles) == group["gpus_per_engine"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_rendered_is_what_the_application_is_built_from(layout: str) -> None:
    for application in serve_config(document(layout))["applications"]:
        whole = dict(validate(document(layout)).tiers.items())[application["args"]["tier"]]
        (part,) = (tier for _, tier in validate(application["args"]["config"]).tiers.items())
        assert part.model_copy(update={"fallback": whole.fallback}) == whole


def two(**small: Any) -> dict[str, Any]:
    return {"tiers": {"small": {"model": "a", **small}, "frontier": {"model": "b", "fallback": "small"}}}


def arguments(given: dict[str, Any]) -> dict[str, Any]:
    return {application["name"]: application["args"] for application in serve_config(given)["applications"]}


@pytest.mark.parametrize(
    "change",
    [
        {"price": {"input": 1.0}},
        {"queue": {"max_inflight": 3}},
        {"timeout": {"first_token": "3s"}},
        {"capabilities": ["text"]},
    ],
)
def test_what_only_the_gateway_reads_does_not_start_engines_anew(change: dict[str, Any]) -> None:
    assert arguments(two(**change)) == arguments(two())
    assert arguments({**two(), "cache": {"semantic": {"threshold": 0.5}}}) == arguments(two())


@pytest.mark.parametrize("change", [{"engine": {"max_num_seqs": 1}}, {"timeout": {"total": "1m"}}, {"source": "x"}])
def test_a_change_of_one_tier_leaves_the_other_alone(change: dict[str, Any]) -> None:
    before, after = arguments(two()), arguments(two(**change))
    assert before["small"] != after["small"]
    assert before["frontier"] == after["frontier"]


def test_a_tier_that_runs_elsewhere_is_left_out() -> None:
    elsewhere = {"urls": ["http://127.0.0.1:1"]}
    assert list(arguments(two(**elsewhere))) == ["frontier"]
    assert [group["tier"] for group in deployments(validate(two(**elsewhere)), "gpu")] == ["frontier"]
    with pytest.raises(ConfigError, match="nothing to deploy"):
        serve_config({"tiers": {"small": {"model": "a", **elsewhere}}})


def test_a_cpu_takes_no_gpus() -> None:
    assert {group["gpus_max"] for group in deployments(validate(two()), "cpu")} == {0}
