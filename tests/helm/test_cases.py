"""Behaviours that users of comparable charts reported: the condition in, the right answer out.

More of the kind are beside what they belong to: unknown and unused values in test_values and test_every_value, monitors
and scalers in test_around and test_rollout, documented commands in test_operations_page, hooks in test_around.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from core.config import validate
from gateway.metrics import TABLE
from tests.helm import chart

TWO = {"tiers": {"small": {"model": "a"}, "frontier": {"model": "b", "timeout": {"total": "20m"}}}}


def groups(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = chart.one(chart.render(values={"config": TWO, **values}), "RayService")["spec"]["rayClusterConfig"]
    return {group["groupName"]: group for group in found["workerGroupSpecs"]}


def test_what_is_set_for_one_model_stays_with_it_and_is_checked() -> None:
    plain = groups({})
    own = groups({"ray": {"groups": {"small": {"resources": {"limits": {"memory": "7Gi"}}}}}})
    assert own["frontier"] == plain["frontier"]
    limits = own["small"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"memory": "7Gi", "nvidia.com/gpu": "1"}
    wrong = {"config": TWO, "ray": {"groups": {"small": {"resources": {"limit": {}}}}}}
    assert "/ray/groups/small/resources'" in chart.refusal(wrong)


def test_a_stream_of_minutes_survives_the_end_of_its_pods() -> None:
    # The frontier tier's answers may take twenty minutes: so long its engines and every gateway wait.
    manifests = chart.render(values={"config": TWO})
    gateway = chart.one(manifests, "Deployment")["spec"]["template"]["spec"]
    assert gateway["terminationGracePeriodSeconds"] == 15 + 1200 + 15
    assert validate(yaml.safe_load(chart.document(manifests))).gateway.drain == 1200
    found = groups({})
    assert found["frontier"]["template"]["spec"]["terminationGracePeriodSeconds"] == 15 + 1200 + 60
    assert found["small"]["template"]["spec"]["terminationGracePeriodSeconds"] == 15 + 600 + 60
    for longer in ({"gateway": {"terminationGracePeriodSeconds": 1215}}, {"gateway": {"preStopSeconds": 30,
                   "terminationGracePeriodSeconds": 1230}}):  # fmt: skip
        assert "gateway.terminationGracePeriodSeconds" in chart.refusal({"config": TWO, **longer})


def test_an_upgrade_leaves_the_old_cluster_until_its_answers_have_ended() -> None:
    service = chart.one(chart.render(values={"config": TWO}), "RayService")["spec"]
    assert service["upgradeStrategy"]["type"] == "NewCluster"
    assert service["rayClusterDeletionDelaySeconds"] == 1200
    rolling = chart.one(chart.render(), "Deployment")["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 1, "maxUnavailable": 0}


def test_a_tier_may_go_to_zero_and_there_is_a_number_left_that_wakes_it() -> None:
    config = {"tiers": {"small": {"model": "a", "replicas": {"min": 0, "max": 3}}}}
    manifests = chart.render(values={"config": config, "monitoring": {"gateway": {"enabled": True}}})
    cluster = chart.one(manifests, "RayService")["spec"]["rayClusterConfig"]
    assert (cluster["workerGroupSpecs"][0]["minReplicas"], cluster["enableInTreeAutoscaling"]) == (0, True)
    # The gateway stays, counts what it refuses, and is scraped: the schema knows no gateway of zero pods.
    names = {spec.name: spec.labels for spec in TABLE}
    assert "status" in names["forebay_requests_total"]
    assert chart.of_kind(manifests, "ServiceMonitor")
    for scaler in ("hpa", "keda"):
        said = chart.refusal({"gateway": {scaler: {"minReplicas": 0}}})
        assert f"/gateway/{scaler}/minReplicas'" in said
    assert "/gateway/replicas'" in chart.refusal({"gateway": {"replicas": 0}})


def test_the_store_needs_no_module_of_its_own() -> None:
    # Vectors are searched in the gateway: any Redis or Valkey will do, and nothing is loaded into the chart's.
    spec = chart.one(chart.render("production"), "StatefulSet")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert "loadmodule" not in container["args"][0]
    assert "bitnami" not in container["image"]


@pytest.mark.parametrize("install", chart.INSTALLS)
def test_nothing_must_run_before_a_new_version_may_start(install: str) -> None:
    manifests = chart.render(install)
    assert chart.of_kind(manifests, "Job") == []
    assert all("initContainers" not in template["spec"] for template in chart.pods(manifests).values())


def test_a_tutorial_needs_nothing_that_the_chart_does_not_bring() -> None:
    # The shortest install of all: no values, no other chart.
    kinds = {manifest["kind"] for manifest in chart.render()}
    assert {"Deployment", "Service", "RayService", "ConfigMap", "ServiceAccount"} <= kinds
    assert not Path(chart.CHART / "Chart.lock").exists()
