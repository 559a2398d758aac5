"""Values: what is misspelt is refused with its path, and schema, values.yaml and README are one."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml

from bench.chart.__main__ import files
from bench.chart.schema import engine_arguments, values_schema
from core.config import schema as configuration
from deploy.engine import check_engine
from tests.helm import chart

SCHEMA = values_schema()
WRONG = "zzz"


def resolve(node: dict[str, Any]) -> dict[str, Any]:
    found = node
    while "$ref" in found:
        found = SCHEMA["$defs"][found["$ref"].rsplit("/", 1)[1]]
    return found


def with_wrong_keys(node: dict[str, Any], path: str, found: set[str]) -> Any:
    """A value with an unknown key in every object that the schema closes; their paths go into `found`."""
    node = resolve(node)
    for branch in node.get("anyOf", ()):
        if "properties" in resolve(branch):
            return with_wrong_keys(branch, path, found)
    if "properties" in node and node.get("additionalProperties") is False:
        found.add(path)
        below = {key: with_wrong_keys(inner, f"{path}/{key}", found) for key, inner in node["properties"].items()}
        return {**{key: value for key, value in below.items() if value is not None}, WRONG: 1}
    if "items" in node:
        item = with_wrong_keys(node["items"], f"{path}/0", found)
        return None if item is None else [item]
    if isinstance(node.get("additionalProperties"), dict):
        item = with_wrong_keys(node["additionalProperties"], f"{path}/any", found)
        return None if item is None else {"any": item}
    return None


@pytest.mark.parametrize("major", chart.MAJORS)
def test_a_misspelt_key_is_refused_with_its_path_at_every_depth(major: int) -> None:
    paths: set[str] = set()
    values = with_wrong_keys(SCHEMA, "", paths)
    assert len(paths) > 500
    assert {"/config/auth/keys/0", "/config/tiers/small/disaggregation/prefill/engine", "/ray/groups/small/image",
            "/gateway/tolerations/0", "/config/tiers/frontier/engine/speculative_config",
            "/gateway/affinity/nodeAffinity", "/networkPolicy/clients/0/podSelector"} <= paths  # fmt: skip
    said = chart.refusal(values, major=major)
    refused = set(re.findall(rf"at '([^']*)': additional propert[^\n]*'{WRONG}'", said))
    assert paths - refused == set()


@pytest.mark.parametrize("major", chart.MAJORS)
@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"gateway": {"replica": 3}}, "/gateway"),
        ({"config": {"gateway": {"worker": 2}}}, "/config/gateway"),
        ({"config": {"tiers": {"smal": {"model": "a"}}}}, "/config/tiers"),
        ({"config": {"tiers": {"small": {"model": "a", "engine": {"max_num_seq": 1}}}}}, "/config/tiers/small/engine"),
        ({"config": {"cache": {"semantic": {"threshold": 1.5}}}}, "/config/cache/semantic/threshold"),
        ({"config": {"gateway": {"drain": "30"}}}, "/config/gateway/drain"),
        ({"config": {"auth": {"keys": [{"name": "a", "tenant": "t", "env": "K", "prioriti": "high"}]}}}, "/keys/0"),
        ({"ray": {"workers": {"sharedMemory": "16 GB"}}}, "/ray/workers/sharedMemory"),
        ({"ray": {"upgrade": {"type": "newCluster"}}}, "/ray/upgrade/type"),
        ({"gateway": {"image": {"digest": "sha256:short"}}}, "/gateway/image/digest"),
        ({"gateway": {"service": {"port": "80"}}}, "/gateway/service/port"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_with_its_path(values: dict[str, Any], path: str, major: int) -> None:
    said = chart.refusal(values, major=major)
    assert re.search(rf"at '[^']*{path}'", said), said


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"config": {"gateway": {"drain": "5m"}}, "gateway": {"terminationGracePeriodSeconds": 315}},
         "gateway.terminationGracePeriodSeconds: 315 cuts streams off; legal: above 315"),
        ({"gateway": {"terminationGracePeriodSeconds": 600}}, "legal: above 615"),
        ({"ray": {"workers": {"terminationGracePeriodSeconds": 60}}}, "ray.workers.terminationGracePeriodSeconds: 60"),
        ({"config": {"gateway": {"host": "127.0.0.1"}}}, "config.gateway.host"),
        ({"config": {"gateway": {"port": 0}}}, "config.gateway.port"),
        ({"config": {"gateway": {"port": 80}}}, "config.gateway.port"),
        ({"gateway": {"hpa": {"enabled": True}, "keda": {"enabled": True, "serverAddress": "http://p"}}},
         "gateway.keda.enabled"),
        ({"gateway": {"keda": {"enabled": True}}}, "gateway.keda.serverAddress: missing"),
        ({"gateway": {"hpa": {"enabled": True, "minReplicas": 9, "maxReplicas": 3}}}, "gateway.hpa.minReplicas"),
        ({"gateway": {"hpa": {"enabled": True, "targetCPUUtilizationPercentage": None}}}, "gateway.hpa.metrics"),
        ({"config": {"auth": {"keys": [{"name": "k", "tenant": "t", "env": "K", "tokens_per_minute": 9}]}}},
         'config.auth.store: several gateways count the limits of "k" apart'),
        ({"ingress": {"enabled": True}}, "ingress.hosts: missing"),
        ({"httpRoute": {"enabled": True}}, "httpRoute.parentRefs: missing"),
        ({"ray": {"gcsFaultTolerance": {"enabled": True}}}, "ray.gcsFaultTolerance.address: missing"),
        ({"ray": {"groups": {"frontier": {"gpusPerPod": 1}}}}, "ray.groups.frontier: config runs no such group here"),
        ({"ray": {"upgrade": {"type": "NewClusterWithIncrementalUpgrade"}}}, "ray.incrementalUpgrade.gatewayClassName"),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_schema_cannot_say_is_refused_by_a_sentence_that_names_the_value(
    values: dict[str, Any], said: str
) -> None:
    assert said in chart.refusal(values)


def test_limits_may_be_counted_in_memory_by_one_gateway_or_in_a_store_by_several() -> None:
    limited = {"config": {"auth": {"keys": [{"name": "k", "tenant": "t", "env": "K", "concurrency": 9}]}}}
    chart.render(values={**limited, "gateway": {"replicas": 1}})
    chart.render(values={**limited, "valkey": {"enabled": True}})


def test_schema_values_and_readme_are_what_the_records_say() -> None:
    differing = [path.name for path, text in files().items() if path.read_text(encoding="utf-8") != text]
    assert differing == [], "run: python -m bench.chart"


def test_the_schema_is_valid_and_takes_every_reference_install() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    checker = jsonschema.Draft202012Validator(SCHEMA)
    for path in [chart.CHART / "values.yaml", *(chart.CHART / "values").glob("*.yaml")]:
        assert [error.message for error in checker.iter_errors(yaml.safe_load(path.read_text()))] == []


def test_the_configurations_own_schema_is_in_it_whole() -> None:
    text = json.dumps(SCHEMA["$defs"]).replace('"#/$defs/config.', '"#/$defs/')
    embedded = json.loads(text)
    own = json.loads(json.dumps(configuration()))
    for name, node in own["$defs"].items():
        found = embedded[f"config.{name}"]
        if name in ("Tier", "Group"):
            # Wider there: any mapping. `forebay check` refuses unknown arguments by the same list.
            assert found["properties"].pop("engine")["$ref"] == "#/$defs/engine"
            node["properties"].pop("engine")
        assert found == node
    assert {"required": ["tiers"], "$schema": own["$schema"], "$defs": own["$defs"], **embedded["config"]} == own


def test_engine_arguments_are_those_of_forebay_check() -> None:
    names = engine_arguments()["properties"]
    assert "max_num_seqs" in names
    assert "api_key" not in names
    sample = {"boolean": True, "integer": 1, "number": 1.0, "string": "x", "array": [], "object": {}, "null": None}
    for name, node in names.items():
        kinds = [node["type"]] if isinstance(node.get("type"), str) else node.get("type", [])
        for value in [*(sample[kind] for kind in kinds), *node.get("enum", ())]:
            assert check_engine({name: value}, "engine") == [], name


def test_every_value_has_a_row_in_the_readme() -> None:
    def leaves(node: Any, path: str) -> Iterator[str]:
        if isinstance(node, dict) and node:
            for key, below in node.items():
                yield from leaves(below, f"{path}.{key}" if path else key)
        else:
            yield path

    rows = re.findall(r"^\| `([^`]+)` \|", (chart.CHART / "README.md").read_text(), re.MULTILINE)
    values = yaml.safe_load((chart.CHART / "values.yaml").read_text())
    missing = [p for p in leaves(values, "") if not any(p == row or p.startswith(f"{row}.") for row in rows)]
    assert missing == []
