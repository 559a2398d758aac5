"""Who may reach whom, as whom containers run, where secrets come from."""

import json
from typing import Any

import pytest

from deploy.tiers import _PORTS
from tests.helm import chart

RESTRICTED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "runAsNonRoot": True,
              "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}  # fmt: skip


def policy(install: str, name: str, values: dict[str, Any] | None = None) -> dict[str, Any]:
    found = chart.one(chart.render(install, values), "NetworkPolicy", f"{chart.RELEASE}-forebay{name}")
    return dict(found["spec"])


def opens(rules: list[dict[str, Any]], port: int | str) -> bool:
    """Whether a rule opens the port; by number also where it lies in a range."""
    for rule in rules:
        for entry in rule.get("ports", [{"port": port}]):
            if entry["port"] == port:
                return True
            numbers = isinstance(port, int) and isinstance(entry["port"], int)
            if numbers and entry["port"] <= port <= entry.get("endPort", entry["port"]):
                return True
    return False


@pytest.mark.parametrize("install", chart.INSTALLS)
def test_containers_run_as_nobody_on_a_read_only_root_with_room_for_caches(install: str) -> None:
    for pod, template in chart.pods(chart.render(install)).items():
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
        for container in spec["containers"]:
            assert RESTRICTED.items() <= container["securityContext"].items(), pod
            assert container["securityContext"]["runAsUser"] >= 10000
            assert {"requests", "limits"} <= set(container["resources"])
            if container["name"] not in ("gateway", "ray-head", "ray-worker"):
                continue
            mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
            assert "emptyDir" in volumes[mounts["/tmp"]]  # noqa: S108  # a mount in a container
            environment = {variable["name"]: variable.get("value") for variable in container["env"]}
            wanted = ["HOME", "HF_HOME", "XDG_CACHE_HOME"]
            wanted += ["TRITON_CACHE_DIR", "VLLM_CACHE_ROOT"] if container["name"] != "gateway" else []
            for name in wanted:
                assert str(environment[name]).startswith("/var/lib/forebay")
            assert "emptyDir" in volumes[mounts["/var/lib/forebay"]]


@pytest.mark.parametrize("install", chart.INSTALLS)
def test_no_pod_but_one_that_scales_gets_a_token_of_kubernetes(install: str) -> None:
    for pod, template in chart.pods(chart.render(install)).items():
        scales = pod == "head" and install in ("two-tiers", "disaggregated", "production")
        assert template["spec"]["automountServiceAccountToken"] is scales
    if install == "production":
        return
    (account,) = chart.of_kind(chart.render(install), "ServiceAccount")
    assert account["automountServiceAccountToken"] is False


@pytest.mark.parametrize("install", chart.INSTALLS)
def test_secrets_come_by_reference_only(install: str) -> None:
    manifests = chart.render(install)
    assert chart.of_kind(manifests, "Secret") == []
    for template in chart.pods(manifests).values():
        for container in template["spec"]["containers"]:
            for variable in container.get("env", ()):
                if "PASSWORD" in variable["name"] or "KEY" in variable["name"] or "TOKEN" in variable["name"]:
                    assert "secretKeyRef" in variable["valueFrom"]


def test_every_pod_has_a_policy_for_both_directions() -> None:
    for install in chart.INSTALLS:
        manifests = chart.render(install)
        policies = [manifest["spec"] for manifest in chart.of_kind(manifests, "NetworkPolicy")]
        for pod, template in chart.pods(manifests).items():
            labels = template["metadata"]["labels"].items()
            matching = [p for p in policies if p["podSelector"]["matchLabels"].items() <= labels]
            assert [p["policyTypes"] for p in matching] == [["Ingress", "Egress"]], pod
            assert opens(matching[0]["egress"], 53) or pod.startswith("StatefulSet")


def test_engines_reach_each_other_on_rays_ports_and_the_side_channel_and_nobody_else_does() -> None:
    engines = policy("disaggregated", "-engines")
    among = [rule for rule in engines["ingress"] if "engines" in json.dumps(rule.get("from"))]
    others = [rule for rule in engines["ingress"] if rule not in among]
    side = [base + rank for base in _PORTS.values() for rank in (0, 1, 63)]
    for port in (6379, 6380, 6381, 8265, 10001, 10002, 19999, *side):
        assert opens(among, port)
        assert opens(engines["egress"], port)
    for port in (6379, 10001, *side):
        assert not opens(others, port)
    # Without prefill apart there is no side channel to open.
    assert not any(opens(policy("two-tiers", "-engines")["ingress"], port) for port in side)


def test_the_gateway_reaches_its_engines_its_store_and_what_config_names() -> None:
    own = policy("production", "")
    assert opens(own["egress"], 8000)
    assert opens(own["egress"], 6379)
    assert not opens(own["egress"], 443)
    outside = policy("external", "")
    assert all(opens(outside["egress"], port) for port in (8000, 443, 6379))
    assert not opens(outside["egress"], 80)
    config = {"tiers": {"small": {"model": "a", "urls": ["http://a.example.com/v1", "http://[::1]:8123"]}},
              "cache": {"store": "redis://u:${P}@r.example.com:7777/1"}}  # fmt: skip
    named = policy("", "", {"config": config})
    assert all(opens(named["egress"], port) for port in (80, 8123, 7777))


def test_clients_monitoring_and_further_targets_are_the_operators() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"team": "a"}}}
    rule = {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 4318}]}
    values = {
        "networkPolicy": {"clients": [peer], "monitoring": [peer], "gatewayEgress": [rule], "engineEgress": [rule]}
    }
    gateway, engines = policy("", "", values), policy("", "-engines", values)
    assert peer in gateway["ingress"][0]["from"]
    assert gateway["ingress"][1] == {"ports": [{"port": "metrics"}], "from": [peer]}
    assert rule in gateway["egress"]
    assert rule in engines["egress"]
    assert "from" not in policy("", "")["ingress"][0]
    assert chart.of_kind(chart.render(values={"networkPolicy": {"enabled": False}}), "NetworkPolicy") == []


def test_the_store_lets_in_the_gateway_and_ray_and_calls_nobody() -> None:
    store = policy("production", "-valkey")
    assert store["egress"] == []
    components = [
        peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in store["ingress"][0]["from"]
    ]
    assert components == ["gateway", "engines"]


def test_metrics_are_apart_from_what_clients_reach() -> None:
    manifests = chart.render("production")
    public = chart.one(manifests, "Service", "example-forebay")
    assert [port["name"] for port in public["spec"]["ports"]] == ["http"]
    assert chart.one(manifests, "Service", "example-forebay-metrics")["spec"]["type"] == "ClusterIP"
    on_main = {"config": {"gateway": {"metrics_port": None}}, "monitoring": {"gateway": {"enabled": True}}}
    manifests = chart.render(values=on_main)
    assert chart.one(manifests, "ServiceMonitor")["spec"]["endpoints"][0]["port"] == "http"
    assert len(chart.of_kind(manifests, "Service")) == 1
