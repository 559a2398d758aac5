"""What the chart hands to the gateway and to Ray Serve is what `forebay` itself takes and makes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from core.config import validate
from core.config.load import parse_yaml
from core.errors import ConfigError
from deploy.engine import check_engines
from deploy.render import serve_config
from forebay.main import main
from tests.golden.layouts import LAYOUTS
from tests.golden.layouts import document as layout
from tests.helm import chart

OWN = [install for install in chart.INSTALLS if install != "external"]


def given(install: str) -> dict[str, Any]:
    """The configuration that a reference install asks for."""
    if not install:
        found: Any = yaml.safe_load((chart.CHART / "files" / "tiers.yaml").read_text())
        return dict(found)
    found = yaml.safe_load((chart.CHART / "values" / f"{install}.yaml").read_text())
    return dict(found["config"])


@pytest.mark.parametrize("major", chart.MAJORS)
@pytest.mark.parametrize("install", chart.INSTALLS)
def test_the_configuration_passes_forebay_check(install: str, major: int, tmp_path: Path) -> None:
    path = tmp_path / "forebay.yaml"
    path.write_text(chart.document(chart.render(install, major=major)))
    assert main(["check", "--config", str(path), "--device", "gpu"]) == 0


@pytest.mark.parametrize("install", OWN)
def test_what_ray_serve_gets_is_what_forebay_deploy_render_prints(install: str) -> None:
    wanted = serve_config({"tiers": given(install)["tiers"]})
    wanted["applications"].sort(key=lambda application: application["name"])
    assert chart.serve(chart.render(install)) == wanted
    for application in wanted["applications"]:
        assert check_engines(validate(application["args"]["config"]), "gpu") == []


def test_of_timeouts_engines_get_what_they_need_themselves() -> None:
    timeout = {"total": "3m", "first_token": "9s", "idle": "8s"}
    apart = {"model": "b", "timeout": timeout, "disaggregation": {"prefill": {}, "decode": {}}}
    config = {"tiers": {"small": {"model": "a", "timeout": timeout}, "frontier": apart}}
    wanted = serve_config(config)
    wanted["applications"].sort(key=lambda application: application["name"])
    assert chart.serve(chart.render(values={"config": config})) == wanted


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_reference_layouts_come_out_the_same(name: str) -> None:
    wanted = serve_config(layout(name))
    wanted["applications"].sort(key=lambda application: application["name"])
    assert chart.serve(chart.render(values={"config": layout(name)})) == wanted


def unknown(config: dict[str, Any]) -> list[str]:
    """Keys that Ray's own schema does not have. It ignores them itself: a misspelt key would do nothing, silently."""
    from ray.serve.config import HTTPOptions
    from ray.serve.schema import HTTPOptionsSchema, ServeApplicationSchema, ServeDeploySchema

    ServeDeploySchema.model_validate(config)
    http = set(HTTPOptionsSchema.model_fields) | set(HTTPOptions.model_fields)
    found = [key for key in config if key not in ServeDeploySchema.model_fields]
    found += [f"http_options.{key}" for key in config.get("http_options", {}) if key not in http]
    for application in config["applications"]:
        found += [f"applications.{key}" for key in application if key not in ServeApplicationSchema.model_fields]
    return found


# Raised inside Ray at its import.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_ray_knows_every_key_of_the_serve_configuration() -> None:
    pytest.importorskip("ray", reason="ray is not installed: only the gateway is")
    for install in OWN:
        assert unknown(chart.serve(chart.render(install))) == []
    wrong = chart.serve(chart.render(""))
    wrong["aplications"] = []
    wrong["http_options"]["hots"] = "x"
    wrong["applications"][0]["import"] = "x"
    assert unknown(wrong) == ["aplications", "http_options.hots", "applications.import"]


def test_tiers_with_urls_are_left_alone_and_the_others_get_the_address_of_serve() -> None:
    tiers = {"small": {"model": "a"}, "frontier": {"model": "b", "urls": ["http://elsewhere:1234"]}}
    manifests = chart.render(values={"config": {"tiers": tiers}})
    document = validate(yaml.safe_load(chart.document(manifests)))
    assert document.tiers.small is not None
    assert document.tiers.frontier is not None
    assert document.tiers.small.urls == (f"http://{chart.RELEASE}-forebay-serve-svc:8000/small",)
    assert document.tiers.frontier.urls == ("http://elsewhere:1234",)
    assert [application["name"] for application in chart.serve(manifests)["applications"]] == ["small"]


def test_without_a_tier_of_its_own_there_is_nothing_of_ray() -> None:
    manifests = chart.render("external", {"monitoring": {"ray": {"enabled": True}}})
    assert "ray" not in " ".join(manifest["kind"].lower() for manifest in manifests)
    assert not [manifest for manifest in manifests if "engines" in manifest["metadata"]["name"]]
    assert chart.of_kind(manifests, "PodMonitor") == []


def test_what_is_set_is_kept_and_what_is_not_is_the_charts() -> None:
    default = validate(yaml.safe_load(chart.document(chart.render())))
    assert (default.gateway.host, default.gateway.port, default.gateway.metrics_port) == ("0.0.0.0", 8080, 9090)
    assert default.gateway.drain == 600
    own = {"gateway": {"port": 9000, "drain": "20s", "metrics_port": 9001}, "cache": {"store": "redis://a:1/2"}}
    chosen = validate(yaml.safe_load(chart.document(chart.render(values={"config": own, "valkey": {"enabled": True}}))))
    assert (chosen.gateway.port, chosen.gateway.drain, chosen.gateway.metrics_port) == (9000, 20, 9001)
    assert (chosen.cache.store, chosen.auth.store) == (
        "redis://a:1/2",
        f"redis://{chart.RELEASE}-forebay-valkey:6379/0",
    )


@pytest.mark.parametrize("major", chart.MAJORS)
def test_numbers_and_nulls_arrive_as_they_were_written(major: int) -> None:
    further = {"tiny": 0.00001, "tinier": 2e-7, "off": False, "none": None, "text": "1e5"}
    engine = {
        "max_num_batched_tokens": 1000000,
        "kv_cache_memory_bytes": 268435456,
        "seed": 0,
        "revision": "1e-05",
        "additional_config": further,
    }
    tier = {
        "model": "a",
        "engine": engine,
        "price": {"input": 0.00002, "output": 1e-8},
        "api_key": None,
        "context": None,
    }
    manifests = chart.render(values={"config": {"tiers": {"small": tier}}}, major=major)
    assert chart.serve(manifests)["applications"][0]["args"]["config"]["tiers"]["small"]["engine"] == engine
    document: Any = parse_yaml(chart.document(manifests), "the ConfigMap")
    kept = {key: document["tiers"]["small"][key] for key in tier}
    assert kept == tier
    validate(document)


def test_a_setting_that_forebay_refuses_is_refused_before_it_is_installed_or_by_its_check(tmp_path: Path) -> None:
    # The schema knows shapes; what depends on two keys is for `forebay check` and the gateway's start.
    path = tmp_path / "forebay.yaml"
    wrong = {"tiers": {"small": {"model": "auto"}}}
    path.write_text(chart.document(chart.render(values={"config": wrong})))
    with pytest.raises(ConfigError, match="reserved"):
        validate(yaml.safe_load(path.read_text()))


def test_settings_of_the_gateway_alone_change_nothing_for_engines() -> None:
    def service(**small: Any) -> dict[str, Any]:
        tiers = {"small": {"model": "a", **small}}
        return dict(chart.one(chart.render(values={"config": {"tiers": tiers}}), "RayService")["spec"])

    before = service()
    assert service(price={"input": 1}) == before
    assert service(queue={"max_inflight": 3}) == before
    # An engine's settings go into Serve's configuration, which is changed in place: the pods stay.
    after = service(engine={"max_num_seqs": 7})
    assert after["serveConfigV2"] != before["serveConfigV2"]
    assert after["rayClusterConfig"] == before["rayClusterConfig"]
