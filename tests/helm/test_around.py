"""What stands around the chart: monitors, rules, dashboards, the way in, the store, notes, the test pod, versions."""

import ast
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm import chart
from tests.helm.manifests import faults

BRACES = 'legend {{tenant}} {{ $labels.tier }} {{- "x" -}} \\{{'


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the chart with a dashboard and a rule that are full of braces."""
    copy = tmp_path_factory.mktemp("chart") / "forebay"
    shutil.copytree(chart.CHART, copy)
    (copy / "files" / "dashboards").mkdir(exist_ok=True)
    (copy / "files" / "dashboards" / "Some_Board.json").write_text(json.dumps({"title": BRACES}, indent=1))
    rule = {"alert": "A", "expr": "up == 0", "annotations": {"summary": BRACES}}
    (copy / "files" / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [rule]}]}))
    return copy


ON = {"monitoring": {key: {"enabled": True} for key in ("gateway", "ray", "rules", "dashboards")}}


def render(folder: Path, values: dict[str, Any]) -> list[dict[str, Any]]:
    answer = chart.run(chart.NEWEST, "template", chart.RELEASE, str(folder), "-f", "-", given=json.dumps(values))
    assert answer.code == 0, answer.error
    return [found for found in yaml.safe_load_all(answer.output) if found]


def test_braces_of_dashboards_and_rules_survive(own: Path) -> None:
    manifests = render(own, ON)
    boards = [m for m in chart.of_kind(manifests, "ConfigMap") if "Some_Board.json" in m["data"]]
    assert json.loads(boards[0]["data"]["Some_Board.json"]) == {"title": BRACES}
    assert boards[0]["metadata"]["name"] == "example-forebay-some-board"
    rule = chart.one(manifests, "PrometheusRule")
    assert rule["spec"]["groups"][0]["rules"][0]["annotations"]["summary"] == BRACES
    assert faults([*boards, rule], "1.35") == []


def test_dashboards_are_made_where_they_are_wanted_with_labels_and_annotations(own: Path) -> None:
    def boards(values: dict[str, Any]) -> list[dict[str, Any]]:
        return [m for m in chart.of_kind(render(own, values), "ConfigMap") if "Some_Board.json" in m["data"]]

    assert boards({}) == []
    (board,) = boards(
        {"monitoring": {"dashboards": {"enabled": True, "labels": {"a": "b"}, "annotations": {"c": "d"}}}}
    )
    assert board["metadata"]["labels"].items() >= {"a": "b", "grafana_dashboard": "1"}.items()
    assert board["metadata"]["annotations"] == {"c": "d"}


def test_each_dashboard_is_a_configmap_that_can_be_applied() -> None:
    boards = sorted(path.name for path in (chart.CHART / "files" / "dashboards").glob("*.json"))
    maps = [m for m in chart.of_kind(chart.render("production"), "ConfigMap") if "forebay.yaml" not in m["data"]]
    assert sorted(name for found in maps for name in found["data"]) == boards
    for found in maps:
        assert len(found["data"]) == 1
        # `kubectl apply` keeps the whole object in an annotation.
        assert len(json.dumps(found)) < 256 * 1024
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_a_dashboard_that_is_too_large_is_refused(own: Path) -> None:
    large = own / "files" / "dashboards" / "large.json"
    large.write_text(json.dumps({"title": "x" * 256_000}))
    answer = chart.run(chart.NEWEST, "template", "x", str(own), "-f", "-", given=json.dumps(ON))
    large.unlink()
    assert answer.code != 0
    assert "large.json has" in answer.error


def test_the_rules_of_the_chart_are_those_of_its_file() -> None:
    rules = yaml.safe_load((chart.CHART / "files" / "rules.yaml").read_text())
    assert chart.one(chart.render("production"), "PrometheusRule")["spec"] == rules


def test_monitors_find_their_pods_by_label_and_named_port() -> None:
    manifests = chart.render("production")
    monitor = chart.one(manifests, "ServiceMonitor")["spec"]
    services = [s for s in chart.of_kind(manifests, "Service")
                if monitor["selector"]["matchLabels"].items() <= s["metadata"]["labels"].items()]  # fmt: skip
    assert [[port["name"] for port in service["spec"]["ports"]] for service in services] == [["metrics"]]
    assert monitor["endpoints"][0]["port"] == "metrics"
    ray = chart.one(manifests, "PodMonitor")["spec"]
    matching = [t for t in chart.pods(manifests).values()
                if ray["selector"]["matchLabels"].items() <= t["metadata"]["labels"].items()]  # fmt: skip
    assert len(matching) == 3
    for template in matching:
        names = [port["name"] for port in template["spec"]["containers"][0]["ports"]]
        assert ray["podMetricsEndpoints"][0]["port"] in names


OPTIONAL = {
    "ServiceMonitor": {"monitoring": {"gateway": {"enabled": True}}},
    "PodMonitor": {"monitoring": {"ray": {"enabled": True}}},
    "PrometheusRule": {"monitoring": {"rules": {"enabled": True}}},
    "HorizontalPodAutoscaler": {"gateway": {"hpa": {"enabled": True}}},
    "ScaledObject": {"gateway": {"keda": {"enabled": True, "serverAddress": "http://p:9090"}}},
    "Ingress": {"ingress": {"enabled": True, "hosts": [{"host": "a.example.com"}]}},
    "HTTPRoute": {"httpRoute": {"enabled": True, "parentRefs": [{"name": "g"}]}},
    "StatefulSet": {"valkey": {"enabled": True}},
}


@pytest.mark.parametrize("kind", OPTIONAL)
def test_what_needs_more_than_kubernetes_is_switched_by_a_value_alone(kind: str) -> None:
    assert chart.of_kind(chart.render(), kind) == []
    # No cluster was asked and no --api-versions given: the value decides.
    assert len(chart.of_kind(chart.render(values=OPTIONAL[kind]), kind)) == 1


def test_no_template_looks_at_what_the_cluster_has() -> None:
    for path in (chart.CHART / "templates").rglob("*"):
        assert path.is_dir() or ".Capabilities" not in path.read_text()


def test_the_way_in_ends_tls_and_leads_to_the_gateway() -> None:
    ingress = chart.one(chart.render("external"), "Ingress")["spec"]
    assert ingress["tls"] == [{"hosts": ["llm.example.com"], "secretName": "llm-tls"}]
    (path,) = ingress["rules"][0]["http"]["paths"]
    assert path == {
        "path": "/",
        "pathType": "Prefix",
        "backend": {"service": {"name": "example-forebay", "port": {"name": "http"}}},
    }
    route = chart.one(chart.render("production"), "HTTPRoute")["spec"]
    assert route["parentRefs"] == [{"name": "public", "namespace": "gateways", "sectionName": "https"}]
    (rule,) = route["rules"]
    # Streams last: the route sets no end to them, the gateway does.
    assert rule["timeouts"] == {"request": "0s"}
    assert rule["backendRefs"] == [{"name": "example-forebay", "port": 80}]


def test_the_chart_needs_no_other_chart() -> None:
    assert "dependencies" not in yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    assert not (chart.CHART / "charts").exists()


def test_the_store_takes_the_password_of_a_secret_and_keeps_data_where_it_should() -> None:
    manifests = chart.render("production")
    spec = chart.one(manifests, "StatefulSet")["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert "--maxmemory 6gb --maxmemory-policy noeviction" in container["args"][0]
    assert "--appendonly yes" in container["args"][0]
    assert spec["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] == "32Gi"
    document = yaml.safe_load(chart.document(manifests))
    address = "redis://:${FOREBAY_STORE_PASSWORD}@example-forebay-valkey:6379/0"
    assert (document["cache"]["store"], document["auth"]["store"]) == (address, address)
    gateway = chart.one(manifests, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert "FOREBAY_STORE_PASSWORD" in [variable["name"] for variable in gateway["env"]]


def notes(install: str, values: dict[str, Any] | None = None) -> str:
    words = ["install", chart.RELEASE, str(chart.CHART), "--dry-run=client", "--namespace", chart.NAMESPACE]
    given = json.dumps(values or {})
    answer = chart.run(chart.NEWEST, *words, *chart.options(install), "-f", "-", given=given)
    assert answer.code == 0, answer.error
    return answer.output.partition("NOTES:")[2]


def test_the_notes_have_a_curl_that_asks_the_gateway() -> None:
    text = notes("production")
    command = re.search(r"curl -s (?:.*\\\n)*.*}'", text)
    assert command is not None
    # The shell itself says what curl would get.
    words = subprocess.run(
        ["/bin/bash", "-c", command[0].replace("curl", "printf '%s\\n'", 1)],
        capture_output=True, text=True, check=True, env={"FOREBAY_KEY": "k"},
    ).stdout.splitlines()  # fmt: skip
    assert "http://127.0.0.1:8080/v1/chat/completions" in words
    assert "authorization: Bearer k" in words
    assert json.loads(words[-1])["model"] == "auto"
    assert "port-forward service/example-forebay 8080:80" in text
    assert "authorization" not in notes("")


def test_the_notes_say_what_is_missing() -> None:
    assert "whoever reaches the Service may use it" in notes("")
    assert "a cache of its own" in notes("")
    assert "whoever reaches" not in notes("production")
    assert "a longer stream is cut" in notes("", {"config": {"gateway": {"drain": "30s"}}})
    assert "one worker pod means one proxy" in notes("")
    assert "one proxy" not in notes("production")


def test_the_test_pod_is_a_hook_and_its_program_is_one() -> None:
    pod = chart.one(chart.render(), "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (container,) = pod["spec"]["containers"]
    ast.parse(container["args"][0])
    # No other hook: nothing must have run before a new version may start.
    hooks = [m for m in chart.render("production") if "helm.sh/hook" in m["metadata"].get("annotations", {})]
    assert [hook["kind"] for hook in hooks] == ["Pod"]


def test_templates_of_a_version_do_not_change() -> None:
    digest = hashlib.sha256()
    for path in sorted((chart.CHART / "templates").rglob("*")):
        if path.is_file():
            digest.update(str(path.relative_to(chart.CHART)).encode() + b"\0" + path.read_bytes())
    version = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())["version"]
    known = json.loads((Path(__file__).parent / "versions.json").read_text())
    assert known.get(version) == digest.hexdigest(), (
        f"templates changed: raise `version` in Chart.yaml and add {digest.hexdigest()} to tests/helm/versions.json "
        "(a version that was never released may keep its number)"
    )
