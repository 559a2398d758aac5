"""The Ray cluster: worker groups that fit their engines, ports, isolation, and a head that may die."""

import json
import shlex
from typing import Any

import pytest

from core.config import validate
from deploy.groups import groups
from deploy.pinning import VARIABLE, bundle
from deploy.tiers import placement
from tests.golden.layouts import LAYOUTS
from tests.golden.layouts import document as layout
from tests.helm import chart


def cluster(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = chart.one(manifests, "RayService")["spec"]["rayClusterConfig"]
    return found


def workers(config: dict[str, Any], **ray: Any) -> dict[str, dict[str, Any]]:
    found = cluster(chart.render(values={"config": config, "ray": ray}))["workerGroupSpecs"]
    return {group["groupName"]: group for group in found}


def gpus(group: dict[str, Any]) -> int:
    (container,) = group["template"]["spec"]["containers"]
    return int(container["resources"]["limits"].get("nvidia.com/gpu", 0))


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_replica_group_has_pods_that_hold_its_engine(name: str) -> None:
    found = workers(layout(name))
    tiers = dict(validate(layout(name)).tiers.items())
    wanted = {f"{tier}{'' if group.role == 'engine' else f'-{group.role}'}": group
              for tier, settings in tiers.items() for group in groups(settings)}  # fmt: skip
    assert set(found) == set(wanted)
    for key, group in wanted.items():
        assert (found[key]["minReplicas"], found[key]["maxReplicas"]) == (group.replicas.min, group.replicas.max)
        pod, hosts = gpus(found[key]), found[key]["numOfHosts"]
        assert pod * hosts == group.gpus
        assert found[key]["rayStartParams"]["num-gpus"] == str(pod)
        # What must be on one node must be in one pod.
        if placement(tiers[key.split("-")[0]], group)["strategy"] == "STRICT_PACK":
            assert hosts == 1


def test_an_engine_over_two_nodes_gets_two_pods_for_each_replica() -> None:
    (group,) = workers(layout("two-nodes")).values()
    assert (gpus(group), group["numOfHosts"]) == (8, 2)


def test_groups_are_told_apart_so_that_no_engine_takes_the_pod_of_another() -> None:
    named = {}
    # The layout apart has no group of the other's name.
    for key, group in (workers(layout("eight-gpus")) | workers(layout("apart"))).items():
        # KubeRay puts the value behind `ray start --resources=` in a shell.
        (text,) = shlex.split(group["rayStartParams"]["resources"])
        named[key] = json.loads(text)
    assert named == {
        "small": {"forebay-engine-Qwen-Qwen3-4B-Instruct-2507": 1},
        "frontier": {"forebay-engine-Qwen-Qwen3-32B": 4},
        "frontier-prefill": {"forebay-prefill-Qwen-Qwen3-32B": 2},
        "frontier-decode": {"forebay-decode-Qwen-Qwen3-32B": 2},
    }
    # The same that an engine asks for there.
    for name, tier in (item for key in ("eight-gpus", "apart") for item in validate(layout(key)).tiers.items()):
        for group in groups(tier):
            key = name if group.role == "engine" else f"{name}-{group.role}"
            assert bundle(tier, group, {VARIABLE: "1"}) == {"GPU": 1, **dict.fromkeys(named[key], 1)}


TWO = {"tiers": {"small": {"model": "a"}, "frontier": {"model": "b", "engine": {"tensor_parallel_size": 2}}}}


def test_settings_of_one_group_are_its_own() -> None:
    own = {
        "nodeSelector": {"gpu": "h100"},
        "resources": {"requests": {"cpu": "32"}},
        "tolerations": [],
        "image": {"tag": "other"},
        "priorityClassName": "high",
    }
    plain, found = workers(TWO), workers(TWO, groups={"frontier": own})
    assert found["small"] == plain["small"]
    spec = found["frontier"]["template"]["spec"]
    assert spec["nodeSelector"] == {"gpu": "h100"}
    assert spec["priorityClassName"] == "high"
    assert "tolerations" not in spec
    (container,) = spec["containers"]
    assert container["image"] == "forebay-engine:other"
    assert container["resources"]["requests"] == {"cpu": "32", "memory": "48Gi", "nvidia.com/gpu": "2"}
    assert found["frontier"]["rayStartParams"]["num-cpus"] == "32"


def test_engines_on_the_cpu_ask_for_no_gpu() -> None:
    group = workers({"tiers": {"small": {"model": "a"}}}, groups={"small": {"gpusPerPod": 0}})["small"]
    (container,) = group["template"]["spec"]["containers"]
    assert set(container["resources"]["limits"]) == {"memory"}
    assert group["rayStartParams"]["num-gpus"] == "0"


@pytest.mark.parametrize(("cpu", "cpus"), [("8", "8"), ("500m", "1"), ("2500m", "2"), ("1.5", "1"), (4, "4")])
def test_ray_is_told_the_whole_cpus_of_a_pod(cpu: Any, cpus: str) -> None:
    group = workers({"tiers": {"small": {"model": "a"}}}, workers={"resources": {"requests": {"cpu": cpu}}})["small"]
    assert group["rayStartParams"]["num-cpus"] == cpus


def test_the_head_runs_no_engine_takes_no_requests_and_may_die() -> None:
    manifests = chart.render("production")
    service = chart.one(manifests, "RayService")["spec"]
    head = service["rayClusterConfig"]["headGroupSpec"]
    assert service["excludeHeadPodFromServeSvc"] is True
    assert (head["rayStartParams"]["num-cpus"], head["rayStartParams"]["num-gpus"]) == ("0", "0")
    fault = service["rayClusterConfig"]["gcsFaultToleranceOptions"]
    assert fault["redisAddress"] == "redis://example-forebay-valkey:6379"
    assert fault["redisPassword"]["valueFrom"]["secretKeyRef"] == {"name": "forebay-valkey", "key": "password"}
    # Two proxies of Serve at least, one on each worker pod.
    assert chart.serve(manifests)["proxy_location"] == "EveryNode"
    assert sum(group["minReplicas"] for group in service["rayClusterConfig"]["workerGroupSpecs"]) >= 2
    assert all(group["minReplicas"] >= 2 for group in service["rayClusterConfig"]["workerGroupSpecs"])


def test_rays_state_may_be_in_a_redis_of_ones_own() -> None:
    own = {"gcsFaultTolerance": {"enabled": True, "address": "redis://r:7000", "existingSecret": "s", "secretKey": "k"}}
    manifests = chart.render(values={"ray": own})
    fault = cluster(manifests)["gcsFaultToleranceOptions"]
    assert fault["redisAddress"] == "redis://r:7000"
    assert fault["redisPassword"]["valueFrom"]["secretKeyRef"] == {"name": "s", "key": "k"}
    egress = chart.one(manifests, "NetworkPolicy", "example-forebay-engines")["spec"]["egress"]
    assert {"ports": [{"port": 7000}]} in egress


def test_ports_are_named_and_those_of_ray_are_fixed() -> None:
    found = cluster(chart.render("disaggregated"))
    for group in (found["headGroupSpec"], *found["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
        start = group["rayStartParams"]
        assert ports["metrics"] == start["metrics-export-port"]
        assert ports["agent"] == start["dashboard-agent-listen-port"]
        assert {"node-manager-port", "object-manager-port", "min-worker-port", "max-worker-port"} <= set(start)
        assert all(isinstance(value, str) for value in start.values())


def test_ray_wants_a_token_unless_the_operator_says_otherwise() -> None:
    assert cluster(chart.render())["authOptions"] == {"mode": "token"}
    assert cluster(chart.render(values={"ray": {"auth": "disabled"}}))["authOptions"] == {"mode": "disabled"}
