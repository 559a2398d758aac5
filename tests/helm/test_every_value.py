"""No value is without effect: set to something of its own, each shows in what is rendered."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from bench.chart.kinds import KUBERNETES
from bench.chart.platform import Values
from core.config.records import Record
from tests.helm import chart

DISAGGREGATED = {"model": "b", "disaggregation": {"prefill": {}, "decode": {}}}
# Everything on that goes together.
BASE: dict[str, Any] = {
    "config": {"tiers": {"small": {"model": "a", "replicas": {"max": 2}}, "frontier": {"model": "c"}}},
    "ray": {
        "upgrade": {"type": "NewClusterWithIncrementalUpgrade"},
        "incrementalUpgrade": {"gatewayClassName": "g"},
        "gcsFaultTolerance": {"enabled": True, "address": "redis://r:1", "existingSecret": "s"},
    },
    "valkey": {"enabled": True, "existingSecret": "v", "persistence": {"enabled": True}},
    "ingress": {"enabled": True, "hosts": [{"host": "h"}]},
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "p"}]},
    "monitoring": {key: {"enabled": True} for key in ("gateway", "ray", "rules", "dashboards")},
}
HPA = {"gateway": {"hpa": {"enabled": True}}}
KEDA = {"gateway": {"keda": {"enabled": True, "serverAddress": "http://p"}}}

# Values of Kubernetes' own types, with X where something of one's own stands.
SAMPLES: dict[str, Any] = {
    "Affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "X"}]}},
    "EnvFromSource": {"secretRef": {"name": "X"}},
    "EnvVar": {"name": "X", "value": "1"},
    "HorizontalPodAutoscalerBehavior": {"scaleUp": {"selectPolicy": "X"}},
    "IngressTLS": {"secretName": "X"},
    "LocalObjectReference": {"name": "X"},
    "MetricSpec": {"type": "X"},
    "NetworkPolicyEgressRule": {"to": [{"ipBlock": {"cidr": "X"}}]},
    "NetworkPolicyPeer": {"podSelector": {"matchLabels": {"X": "y"}}},
    "PodSecurityContext": {"sysctls": [{"name": "X", "value": "1"}]},
    "Probe": {"exec": {"command": ["X"]}},
    "ResourceRequirements": {"claims": [{"name": "X"}]},
    "SecurityContext": {"seLinuxOptions": {"user": "X"}},
    "Toleration": {"key": "X"},
    "TopologySpreadConstraint": {"maxSkew": 1, "topologyKey": "X", "whenUnsatisfiable": "ScheduleAnyway"},
    "Volume": {"name": "X"},
    "VolumeMount": {"name": "X", "mountPath": "/x"},
}
# Where the form of a value leaves room for a number only, which stands at N.
FORMED = {
    "digest": "sha256:" + "5" * 60 + "N", "maxMemory": "NGi", "size": "NGi", "sharedMemory": "NGi", "interval": "Ns",
    "scrapeTimeout": "Ns", "requestTimeout": "Ns",
}  # fmt: skip


def leaves(record: Record, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Every value that is no section, as path and schema."""
    kinds = type(record).model_json_schema()
    for name, field in type(record).model_fields.items():
        key, value = field.alias or name, getattr(record, name)
        if isinstance(value, Record) and name != "groups":
            yield from leaves(value, (*prefix, key))
        elif name not in ("groups", "config"):
            yield (*prefix, key), kinds["properties"][key]


# Dashboards are in test_around, with a dashboard of the test's own.
LEAVES = {path: schema for path, schema in leaves(Values()) if "dashboards" not in path}


def sample(schema: Mapping[str, Any], word: str) -> Any:
    """A value of that type with the word in it; None for types that have no room for one."""
    branches = [branch for branch in schema.get("anyOf", ()) if branch.get("type") != "null"]
    node = branches[0] if branches else schema
    if KUBERNETES in node:
        kind = node[KUBERNETES].rsplit(".", 1)[1]
        return json.loads(json.dumps(SAMPLES[kind]).replace("X", word))
    if node.get("type") == "array":
        item = sample(node["items"], word) if "$ref" not in node["items"] else {"host": word, "name": word}
        return [item]
    if node.get("type") == "object":
        return {word: word}
    return word if node.get("type") == "string" and "enum" not in node else None


def nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return dict(value)


def merged(*documents: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for document in documents:
        for key, value in document.items():
            both = isinstance(found.get(key), dict) and isinstance(value, dict)
            found[key] = merged(found[key], value) if both else value
    return found


def marks() -> dict[tuple[str, ...], tuple[Any, str]]:
    """A value for every path that has room for a mark, and the mark: a word, or a number that nothing else has."""
    found: dict[tuple[str, ...], tuple[Any, str]] = {}
    for number, (path, schema) in enumerate(LEAVES.items(), start=7001):
        word = f"word-{number}-end"
        kinds = {branch.get("type") for branch in (schema, *schema.get("anyOf", ()))}
        if path[-1] in FORMED:
            found[path] = FORMED[path[-1]].replace("N", str(number)), str(number)
        elif "integer" in kinds and schema.get("maximum", number) >= number:
            # An end must be later than everything before it.
            own = number + 90_000 * (path[-1] == "terminationGracePeriodSeconds")
            found[path] = own, str(own)
        elif value := sample(schema, word):
            found[path] = value, word
    # Lists of records of the chart's own.
    for path, key in {("ingress", "hosts"): "host", ("httpRoute", "parentRefs"): "name"}.items():
        found[path] = [{key: found[path][1]}], found[path][1]
    # Wins over the other name, and is the other values' business.
    found.pop(("fullnameOverride",))
    return found


MARKS = marks()


def test_every_value_that_has_room_for_a_mark_shows_it() -> None:
    values = [nested(path, value) for path, (value, _) in MARKS.items()]
    texts = []
    for scaler in ({}, HPA, KEDA):
        # A name stands for the image's tag where there is no digest.
        for without in ("digest", "tag"):
            chosen = [own for own, path in zip(values, MARKS, strict=True) if path[-1] != without]
            answer = chart.template("", merged(BASE, scaler, *chosen))
            assert answer.code == 0, answer.error
            texts.append(answer.output)
    text = "\n".join(texts)
    assert [path for path, (_, mark) in MARKS.items() if not re.search(rf"(?<!\d){mark}(?!\d)|5{mark}", text)] == []
    assert len(MARKS) > 110


REST = [path for path in LEAVES if path not in MARKS]


def other(path: tuple[str, ...], default: Any) -> Any:
    """Another legal value than the default."""
    schema = LEAVES[path]
    if path == ("fullnameOverride",):
        return "other"
    if "enum" in schema:
        return next(value for value in schema["enum"] if value != default)
    return (not default) if isinstance(default, bool) else 77


@pytest.mark.parametrize("path", REST, ids=".".join)
def test_every_other_value_changes_what_is_rendered(path: tuple[str, ...]) -> None:
    base = merged(BASE, HPA)
    scaler = {"keda": KEDA | {"gateway": KEDA["gateway"] | {"hpa": {"enabled": False}}}}.get(
        path[1] if path[1:] else "", {}
    )
    base = merged(base, scaler)
    default: Any = yaml.safe_load((chart.CHART / "values.yaml").read_text())
    current: Any = base
    for key in path:
        default = default[key]
        current = current.get(key) if isinstance(current, dict) else None
    values = merged(base, nested(path, other(path, default if current is None else current)))
    if path == ("gateway", "keda", "enabled"):
        values = BASE
    before, after = chart.template("", base), chart.template("", values)
    assert after.code == 0, after.error
    assert after.output != before.output


@pytest.mark.parametrize("name", ["small", "frontier"])
def test_every_group_of_workers_can_be_set_by_itself(name: str) -> None:
    for tier, groups in ({"model": "a"}, [name]), (DISAGGREGATED, [f"{name}-prefill", f"{name}-decode"]):
        own = {group: {"podLabels": {"mine": group}} for group in groups}
        manifests = chart.render(values={"config": {"tiers": {name: tier}}, "ray": {"groups": own}})
        found = {pod: template["metadata"]["labels"].get("mine") for pod, template in chart.pods(manifests).items()}
        assert {pod: mine for pod, mine in found.items() if mine} == {group: group for group in groups}


def test_the_whole_of_config_reaches_the_gateway() -> None:
    config = {
        "tiers": {"small": {"model": "a", "urls": ["http://a:1"]}},
        "console": {"history": 7},
        "router": {"threshold": 0.25},
        "embedder": {"batch_size": 3},
        "cache": {"exact": {"ttl": "7m"}, "scope": "global"},
        "auth": {"keys": [{"name": "n", "tenant": "t", "env": "K"}]},
    }
    document = yaml.safe_load(chart.document(chart.render(values={"config": config})))
    assert document.pop("gateway") == {"host": "0.0.0.0", "port": 8080, "metrics_port": 9090, "drain": "600s"}
    assert document == config


def test_values_of_a_parent_chart_are_nobodys_fault() -> None:
    assert chart.render(values={"global": {"registry": "elsewhere"}}) == chart.render()
