"""Pods that come and go: endings that finish streams, probes, rollouts, and who owns the number of replicas."""

import copy
from typing import Any

import pytest

from core.config.units import parse_duration
from tests.helm import chart

ENDING = [(install, name) for install in chart.INSTALLS for name in ("gateway", "ray-worker")]


def containers(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Every container by pod and name."""
    return {
        f"{pod}/{container['name']}": container
        for pod, template in chart.pods(manifests).items()
        for container in template["spec"]["containers"]
    }


@pytest.mark.parametrize("install", chart.INSTALLS)
def test_a_pod_waits_in_prestop_and_is_not_killed_before_its_longest_stream_has_ended(install: str) -> None:
    manifests = chart.render(install)
    tiers = chart.yaml.safe_load(chart.document(manifests))["tiers"]
    longest = {name: parse_duration(tier.get("timeout", {}).get("total", "10m")) for name, tier in tiers.items()}
    drain = parse_duration(chart.yaml.safe_load(chart.document(manifests))["gateway"]["drain"])
    assert drain >= max(longest.values())
    for pod, template in chart.pods(manifests).items():
        spec = template["spec"]
        for container in spec["containers"]:
            if container["name"] not in ("gateway", "ray-worker"):
                continue
            wait = container["lifecycle"]["preStop"]["sleep"]["seconds"]
            stream = drain if container["name"] == "gateway" else longest[pod.split("-")[0]]
            assert spec["terminationGracePeriodSeconds"] > wait + stream


def test_a_gateway_that_ends_leaves_the_endpoints_first() -> None:
    # Kubernetes takes an ending pod out of the endpoints while preStop waits; then SIGTERM makes /ready 503.
    gateway = containers(chart.render())["Deployment/example-forebay/gateway"]
    assert gateway["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert gateway["lifecycle"]["preStop"]["sleep"]["seconds"] >= 3 * gateway["readinessProbe"]["periodSeconds"]


@pytest.mark.parametrize("install", chart.INSTALLS)
def test_probes_name_ports_and_liveness_depends_on_nothing_outside(install: str) -> None:
    local = {"/health", "/api/local_raylet_healthz"}
    for name, container in containers(chart.render(install)).items():
        ports = {port["name"] for port in container.get("ports", ())}
        probes = {key: value for key, value in container.items() if key.endswith("Probe")}
        if name.startswith("Pod/"):
            continue
        assert set(probes) == {"startupProbe", "readinessProbe", "livenessProbe"}, name
        for probe in probes.values():
            action = probe.get("httpGet") or probe["tcpSocket"]
            assert action["port"] in ports
        if "httpGet" in probes["livenessProbe"]:
            assert probes["livenessProbe"]["httpGet"]["path"] in local
        # Slow starts are the startup probe's.
        start = probes["startupProbe"]
        assert start["failureThreshold"] * start["periodSeconds"] >= 120


def test_every_probe_can_be_replaced_and_left_out() -> None:
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 77, "httpGet": None}
    own = {"probes": {"startup": probe, "readiness": probe, "liveness": None}}
    values = {"gateway": own, "ray": {"head": own, "workers": own}}
    for major in chart.MAJORS:
        found = containers(chart.render(values=values, major=major))
        for name, container in found.items():
            if name.startswith("Pod/"):
                continue
            assert "livenessProbe" not in container
            for kind in ("startupProbe", "readinessProbe"):
                assert container[kind]["periodSeconds"] == 77
                assert set(container[kind]) & {"exec", "httpGet"} == {"exec"}


def test_a_change_of_the_configuration_rolls_the_gateway_and_a_new_chart_version_does_not() -> None:
    def annotations(**tier: Any) -> Any:
        found = chart.render(values={"config": {"tiers": {"small": {"model": "a", **tier}}}})
        return chart.one(found, "Deployment")["spec"]["template"]["metadata"]["annotations"]

    assert annotations(price={"input": 1}) != annotations(price={"input": 2})
    for template in chart.pods(chart.render("production")).values():
        if template.get("kind") != "Pod":
            assert "helm.sh/chart" not in template["metadata"]["labels"]


@pytest.mark.parametrize("scaler", ["hpa", "keda"])
def test_who_scales_owns_the_number_of_replicas(scaler: str) -> None:
    on = {
        "gateway": {
            scaler: {"enabled": True, "serverAddress": "http://p:9090"} if scaler == "keda" else {"enabled": True}
        }
    }
    assert "replicas" not in chart.one(chart.render(values=on), "Deployment")["spec"]
    assert chart.one(chart.render(), "Deployment")["spec"]["replicas"] == 2
    # Groups that Ray's autoscaler owns name no number either; fixed ones do.
    service = chart.one(chart.render("production"), "RayService")["spec"]["rayClusterConfig"]
    assert service["enableInTreeAutoscaling"] is True
    assert all("replicas" not in group for group in service["workerGroupSpecs"])
    fixed = chart.one(chart.render("one-gpu"), "RayService")["spec"]["rayClusterConfig"]
    assert [group["replicas"] for group in fixed["workerGroupSpecs"]] == [1]
    assert "enableInTreeAutoscaling" not in fixed


def test_scalers_have_behaviour_and_a_rule_for_a_missing_metric() -> None:
    behavior = {"scaleUp": {"stabilizationWindowSeconds": 7}}
    hpa = chart.one(
        chart.render(values={"gateway": {"hpa": {"enabled": True, "behavior": behavior}}}), "HorizontalPodAutoscaler"
    )
    assert hpa["spec"]["behavior"]["scaleUp"] == {"stabilizationWindowSeconds": 7}
    assert hpa["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 300
    scaled = chart.one(chart.render("production"), "ScaledObject")["spec"]
    (trigger,) = scaled["triggers"]
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert scaled["fallback"] == {"failureThreshold": 3, "replicas": 6}
    assert scaled["minReplicaCount"] >= 1
    assert "behavior" in scaled["advanced"]["horizontalPodAutoscalerConfig"]


def test_the_budget_never_blocks_the_drain_of_a_node() -> None:
    for install in chart.INSTALLS:
        for budget in chart.of_kind(chart.render(install), "PodDisruptionBudget"):
            assert budget["spec"]["maxUnavailable"] == 1
            assert "minAvailable" not in budget["spec"]
            # Kubernetes counts for Deployments, not for a RayCluster: a budget there would block every drain.
            assert budget["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"


def test_gpus_need_not_be_there_twice_and_the_strategy_is_the_operators() -> None:
    assert chart.one(chart.render("one-gpu"), "RayService")["spec"]["upgradeStrategy"] == {"type": "None"}
    assert chart.one(chart.render(), "RayService")["spec"]["upgradeStrategy"] == {"type": "NewCluster"}
    stepwise = {"ray": {"upgrade": {"type": "NewClusterWithIncrementalUpgrade"},
                        "incrementalUpgrade": {"gatewayClassName": "istio", "maxSurgePercent": 0}}}  # fmt: skip
    strategy = chart.one(chart.render(values=stepwise), "RayService")["spec"]["upgradeStrategy"]
    assert strategy["clusterUpgradeOptions"]["maxSurgePercent"] == 0


def test_what_changes_often_leaves_the_pods_of_engines_alone() -> None:
    def cluster(**tier: Any) -> dict[str, Any]:
        found = chart.render(values={"config": {"tiers": {"small": {"model": "a", **tier}}}})
        return copy.deepcopy(chart.one(found, "RayService")["spec"]["rayClusterConfig"])

    before = cluster()
    for change in ({"engine": {"max_num_seqs": 9}}, {"price": {"input": 1}}, {"source": "b"}, {"adapters": {"x": "y"}}):
        assert cluster(**change) == before
    # KubeRay takes a new range of replicas without a new cluster: nothing else may differ.
    after = cluster(replicas={"min": 1, "max": 4})
    for found in (before, after):
        for key in ("replicas", "minReplicas", "maxReplicas"):
            found["workerGroupSpecs"][0].pop(key, None)
        found.pop("autoscalerOptions", None)
        found.pop("enableInTreeAutoscaling", None)
        found["headGroupSpec"]["template"]["spec"].pop("automountServiceAccountToken")
    assert after == before
