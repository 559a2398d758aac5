"""What stands in the way of `forebay up` is said before anything is started."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from core.config import validate
from core.errors import ConfigError
from deploy.plan import CannotStart, Machine, Plan, gateway_url, plan, refuse_what_cannot_run, resolve_port

GIB = 1024**3
CPU = Machine(engine="cpu", gpus=0, memory=64 * GIB)
ELSEWHERE = {"model": "b", "urls": ["http://127.0.0.1:1"]}


def planned(tmp_path: Path, document: dict[str, Any], **environ: str) -> Plan:
    path = tmp_path / "forebay.yaml"
    path.write_text(yaml.safe_dump(document))
    return plan(path, "cpu", environ)


def document(**small: Any) -> dict[str, Any]:
    return {"gateway": {"port": 0}, "tiers": {"small": {"model": "a", **small}, "frontier": ELSEWHERE}}


def test_without_a_file_the_profile_of_the_device_is_taken() -> None:
    assert {tier.source for tier in plan(None, "cpu", {}).own.values()} == {"packaged:SmolLM2-135M-Instruct"}
    assert plan(None, "gpu", {}).own["frontier"].model == "Qwen/Qwen3-32B"


def test_the_environment_overrides_the_profile_too() -> None:
    found = plan(None, "cpu", {"FOREBAY__GATEWAY__PORT": "8090", "FOREBAY__TIERS__SMALL__ENGINE__MAX_NUM_SEQS": "2"})
    assert found.config.gateway.port == 8090
    assert found.own["small"].engine["max_num_seqs"] == 2


def test_only_tiers_without_addresses_are_run_here(tmp_path: Path) -> None:
    assert list(planned(tmp_path, document()).own) == ["small"]


def test_wrong_engine_arguments_are_a_wrong_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tiers\.small\.engine\.max_num_seq:"):
        planned(tmp_path, document(engine={"max_num_seq": 1}))


def test_the_gateway_gets_the_addresses_and_otherwise_the_same_document(tmp_path: Path) -> None:
    found = planned(tmp_path, {**document(), "cache": {"exact": {"ttl": "5m"}}})
    resolved = found.gateway_document({"small": "http://127.0.0.1:7/small"})
    config = validate(resolved)
    assert config.tiers.small is not None
    assert config.tiers.small.urls == ("http://127.0.0.1:7/small",)
    assert config.tiers.frontier is not None
    assert config.tiers.frontier.urls == ("http://127.0.0.1:1",)
    assert resolved["cache"] == {"exact": {"ttl": "5m"}}


def test_a_folder_of_weights_is_named_absolutely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights").mkdir()
    monkeypatch.chdir(tmp_path)
    tiers = planned(tmp_path, document(source="weights")).document["tiers"]
    assert isinstance(tiers, dict)
    assert tiers["small"] == {"model": "a", "source": str(tmp_path / "weights")}
    assert tiers["frontier"] == ELSEWHERE


def test_port_0_becomes_a_free_port(tmp_path: Path) -> None:
    found = resolve_port(planned(tmp_path, document()))
    assert found.config.gateway.port > 0
    assert validate(found.document) == found.config


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:81"), ("0.0.0.0", "http://127.0.0.1:81"), ("::", "http://[::1]:81")],
)
def test_the_address_that_is_printed_works_on_this_machine(host: str, url: str) -> None:
    assert gateway_url(validate({"gateway": {"host": host, "port": 81}, "tiers": {"small": ELSEWHERE}})) == url


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_a_port_in_use_is_named(tmp_path: Path, taken: int) -> None:
    found = planned(tmp_path, document(), FOREBAY__GATEWAY__PORT=str(taken))
    with pytest.raises(CannotStart, match=rf"gateway\.port: 127\.0\.0\.1:{taken} is in use"):
        refuse_what_cannot_run(found, CPU)


def test_an_address_of_another_machine_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"gateway\.host: cannot listen on 192\.0\.2\.77"):
        refuse_what_cannot_run(planned(tmp_path, document(), FOREBAY__GATEWAY__HOST="192.0.2.77"), CPU)


def test_without_vllm_only_tiers_elsewhere_can_be_used(tmp_path: Path) -> None:
    bare = Machine(engine=None, gpus=0, memory=GIB)
    with pytest.raises(CannotStart, match="vLLM is not installed, so tier small cannot run here"):
        refuse_what_cannot_run(planned(tmp_path, document()), bare)
    refuse_what_cannot_run(planned(tmp_path, document(urls=["http://127.0.0.1:2"])), bare)


@pytest.mark.parametrize("engine", ["cpu", "gpu"])
def test_prefill_and_decode_apart_need_nixl(tmp_path: Path, engine: Literal["cpu", "gpu"]) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(1024))
    there = Machine(engine, gpus=2, memory=64 * GIB)
    apart = planned(tmp_path, document(source=str(tmp_path), disaggregation={}))
    with pytest.raises(CannotStart, match=r"tiers\.small\.disaggregation: NIXL is not installed"):
        refuse_what_cannot_run(apart, replace(there, nixl=False))
    refuse_what_cannot_run(apart, there)
    refuse_what_cannot_run(planned(tmp_path, document(source=str(tmp_path))), replace(there, nixl=False))


def test_too_little_memory_is_said_with_both_figures(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(1024))
    found = planned(tmp_path, document(source=str(tmp_path), engine={"kv_cache_memory_bytes": 10 * GIB}))
    with pytest.raises(CannotStart, match=r"about 13\.\d GiB are needed and 12\.0 GiB are available"):
        refuse_what_cannot_run(found, Machine(engine="cpu", gpus=0, memory=12 * GIB))
    refuse_what_cannot_run(found, CPU)


@pytest.mark.parametrize(("gpus", "enough"), [(0, False), (3, False), (4, True)])
def test_a_gpu_engine_needs_as_many_gpus_as_it_spans(tmp_path: Path, gpus: int, enough: bool) -> None:
    found = planned(tmp_path, document(engine={"tensor_parallel_size": 2}, replicas={"min": 2, "max": 2}))
    machine = Machine(engine="gpu", gpus=gpus, memory=GIB)
    if enough:
        refuse_what_cannot_run(found, machine)
        return
    with pytest.raises(CannotStart, match=f"need 4 NVIDIA GPUs and this machine has {gpus}"):
        refuse_what_cannot_run(found, machine)


@pytest.mark.parametrize(
    ("machine", "device"),
    [
        (Machine("gpu", 1, 0), "gpu"),
        (Machine("gpu", 0, 0), "cpu"),
        (Machine("cpu", 1, 0), "cpu"),
        (Machine(None, 0, 0), "cpu"),
    ],
)
def test_the_cpu_is_used_wherever_engines_cannot_use_a_gpu(machine: Machine, device: str) -> None:
    assert machine.device == device
