"""Every reference install renders in both majors, to what every supported Kubernetes and the operators take."""

import pytest
import yaml

from tests.helm import chart
from tests.helm.manifests import VERSIONS, custom_schemas, faults


@pytest.mark.parametrize("major", chart.MAJORS)
@pytest.mark.parametrize("install", chart.INSTALLS)
def test_helm_lints_it_without_a_word(install: str, major: int) -> None:
    answer = chart.run(major, "lint", "--strict", str(chart.CHART), *chart.options(install))
    assert answer.code == 0, answer.output + answer.error
    assert "[WARNING]" not in answer.output


@pytest.mark.parametrize("install", chart.INSTALLS)
def test_both_majors_render_the_same(install: str) -> None:
    rendered = [chart.render(install, major=major) for major in chart.MAJORS]
    assert all(manifests == rendered[0] for manifests in rendered)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("install", chart.INSTALLS)
def test_the_manifests_are_valid(install: str, version: str) -> None:
    assert faults(chart.render(install), version) == []


EVERYTHING = {
    "gateway": {
        "keda": {"enabled": False},
        "hpa": {"enabled": True, "metrics": [{"type": "Resource", "resource": {
            "name": "memory", "target": {"type": "Utilization", "averageUtilization": 80}}}]},
        "envFrom": [{"secretRef": {"name": "more"}}],
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
        "serviceAccount": {"annotations": {"a": "b"}},
        "volumes": [{"name": "more", "configMap": {"name": "classifier"}}],
        "volumeMounts": [{"name": "more", "mountPath": "/etc/classifier"}],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}]}},
        "priorityClassName": "high",
    },
    "imagePullSecrets": [{"name": "registry"}],
    "ray": {"upgrade": {"type": "NewClusterWithIncrementalUpgrade"},
            "incrementalUpgrade": {"gatewayClassName": "istio"},
            "workers": {"modelCacheClaim": "weights", "runtimeClassName": "nvidia"}},
    "ingress": {"enabled": True, "className": "nginx", "hosts": [{"host": "a.example.com"}]},
}  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_are_valid_with_everything_on(version: str) -> None:
    manifests = chart.render("production", EVERYTHING)
    assert faults(manifests, version) == []
    kinds = {manifest["kind"] for manifest in manifests}
    assert {"HorizontalPodAutoscaler", "Ingress", "HTTPRoute", "ServiceMonitor", "PodMonitor"} <= kinds
    assert {"PrometheusRule", "PodDisruptionBudget", "NetworkPolicy", "RayService", "StatefulSet"} <= kinds


def test_the_check_of_manifests_finds_faults() -> None:
    manifests = chart.render("two-tiers")
    chart.one(manifests, "RayService")["spec"]["serveConfigV3"] = ""
    chart.one(manifests, "Deployment")["spec"]["template"]["spec"]["containers"][0]["port"] = []
    found = faults(manifests, "1.35")
    assert any("serveConfigV3" in fault for fault in found)
    assert any("'port'" in fault for fault in found)
    assert faults([{"apiVersion": "ray.io/v1", "kind": "RayServise", "metadata": {"name": "x"}}], "1.35")
    assert "rayservice-ray.io-v1" in custom_schemas()


def test_every_object_names_its_namespace_and_no_name_comes_twice() -> None:
    for install in chart.INSTALLS:
        manifests = chart.render(install)
        assert {manifest["metadata"]["namespace"] for manifest in manifests} == {chart.NAMESPACE}
        names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("release", ["a", "forebay", "r" * 53])
def test_names_fit_what_operators_make_of_them(release: str) -> None:
    answer = chart.run(chart.NEWEST, "template", release, str(chart.CHART), *chart.options("production"))
    names = [m["metadata"]["name"] for m in yaml.safe_load_all(answer.output) if m]
    assert all(len(name) <= 63 for name in names)
    assert all(len(m["metadata"]["name"]) <= 41 for m in yaml.safe_load_all(answer.output) if m["kind"] == "RayService")
