"""`forebay deploy` against a cluster's Serve: runs, reports and removes the tiers, and nothing else."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.cluster import Cluster, ClusterFault
from deploy.render import IMPORT_PATH, serve_config
from forebay.main import main
from tests.golden.layouts import LAYOUTS

DOCUMENT = {"tiers": {"small": {"model": "a"}, "frontier": {"model": "b"}}}


class Serve:
    """The REST API of Serve as far as it is used: keeps applications, which are deployed after some looks at them."""

    def __init__(self) -> None:
        self.applications: dict[str, dict[str, Any]] = {}
        self.options: dict[str, Any] = {}
        self.puts: list[dict[str, Any]] = []
        self.deletes = 0
        self.looks = 0
        self.ready_after = 1
        self.fail: str | None = None
        self.token: str | None = None
        self.status = 200

    def get(self) -> dict[str, Any]:
        self.looks += 1
        for name, application in list(self.applications.items()):
            if application["status"] == "DELETING":
                del self.applications[name]
            elif application["left"] > 0:
                application["left"] -= 1
            elif name == self.fail:
                application.update(status="DEPLOY_FAILED", message="it broke")
            else:
                application["status"] = "RUNNING"
        return {**self.options, "applications": self.applications}

    def put(self, body: dict[str, Any]) -> None:
        self.puts.append(body)
        self.options = {key: body[key] for key in ("proxy_location", "http_options") if key in body}
        wanted = {config["name"]: config for config in body["applications"]}
        for name in set(self.applications) - set(wanted):
            self.applications[name]["status"] = "DELETING"
        for name, config in wanted.items():
            self.applications[name] = self.application(config)

    def delete(self) -> None:
        self.deletes += 1
        for application in self.applications.values():
            application["status"] = "DELETING"

    def application(self, config: dict[str, Any]) -> dict[str, Any]:
        replica = {"status": "HEALTHY", "target_num_replicas": 1, "message": "", "replicas": [{"state": "RUNNING"}]}
        return {
            "status": "DEPLOYING",
            "message": "",
            "route_prefix": config["route_prefix"],
            "deployed_app_config": config,
            "deployments": {"engine:a": replica},
            "left": self.ready_after,
        }


@pytest.fixture
def serve() -> Serve:
    return Serve()


@pytest.fixture
def address(serve: Serve) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self, body: Any = None) -> None:
            if serve.token and self.headers["authorization"] != f"Bearer {serve.token}":
                status, text = 401, "Unauthorized"
            else:
                status, text = serve.status, json.dumps(body) if serve.status == 200 else "Traceback\nit is wrong"
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def do_GET(self) -> None:
            self.answer(serve.get())

        def do_PUT(self) -> None:
            serve.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.answer()

        def do_DELETE(self) -> None:
            serve.delete()
            self.answer()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def cluster(address: str) -> Iterator[Cluster]:
    clock = iter(range(10_000))
    with Cluster(address, {}, pause=lambda _: None, clock=lambda: float(next(clock))) as found:
        yield found


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "forebay.yaml"
    path.write_text(yaml.safe_dump(DOCUMENT))
    return str(path)


OTHER = {"name": "theirs", "route_prefix": "/theirs", "import_path": "their.app:build", "args": {"x": 1}}


def test_the_tiers_are_deployed_and_waited_for(serve: Serve, cluster: Cluster) -> None:
    serve.ready_after = 3
    seen: list[set[str]] = []
    cluster.run(serve_config(DOCUMENT))
    found = cluster.wait(["small", "frontier"], lambda now: seen.append({a["status"] for a in now.values()}), 60)
    assert set(found) == {"small", "frontier"}
    assert seen[0] == {"DEPLOYING"}
    assert seen[-1] == {"RUNNING"}
    assert serve.puts == [serve_config(DOCUMENT)]


def test_applications_and_options_of_others_stay_as_they_are(serve: Serve, cluster: Cluster) -> None:
    serve.put({"applications": [OTHER], "proxy_location": "HeadOnly", "http_options": {"port": 9000}})
    assert cluster.run(serve_config(DOCUMENT)) == 9000
    assert serve.puts[-1]["applications"][0] == OTHER
    assert serve.puts[-1]["http_options"] == {"port": 9000}
    assert serve.puts[-1]["proxy_location"] == "HeadOnly"
    assert set(cluster.tiers()) == {"small", "frontier"}
    assert cluster.down() == ["small", "frontier"]
    assert serve.puts[-1]["applications"] == [OTHER]
    assert serve.deletes == 0
    cluster.wait_gone(lambda _: None, 60)
    assert set(serve.applications) == {"theirs"}


def test_with_nothing_else_on_it_serve_is_emptied(serve: Serve, cluster: Cluster) -> None:
    cluster.run(serve_config(DOCUMENT))
    assert cluster.down() == ["small", "frontier"]
    assert serve.deletes == 1
    assert cluster.tiers() == {}
    assert cluster.down() == []
    assert serve.deletes == 1


def test_a_tier_that_is_configured_no_more_goes(serve: Serve, cluster: Cluster) -> None:
    cluster.run(serve_config(DOCUMENT))
    cluster.run(serve_config({"tiers": {"small": {"model": "a"}}}))
    cluster.wait(["small"], lambda _: None, 60)
    assert set(cluster.tiers()) == {"small"}


def test_an_application_of_another_with_a_tier_s_name_is_not_overwritten(serve: Serve, cluster: Cluster) -> None:
    serve.put({"applications": [{**OTHER, "name": "small"}]})
    with pytest.raises(ClusterFault, match="called small that is no tier"):
        cluster.run(serve_config(DOCUMENT))
    assert len(serve.puts) == 1


def test_a_tier_that_fails_is_named_with_the_reason_at_once(serve: Serve, cluster: Cluster) -> None:
    serve.fail = "frontier"
    cluster.run(serve_config(DOCUMENT))
    with pytest.raises(ClusterFault, match="tier frontier did not start: it broke"):
        cluster.wait(["small", "frontier"], lambda _: None, 1e6)


def test_a_wait_has_an_end(serve: Serve, cluster: Cluster) -> None:
    serve.ready_after = 10_000
    cluster.run(serve_config(DOCUMENT))
    with pytest.raises(ClusterFault, match="still not running after 3 s: small, frontier"):
        cluster.wait(["small", "frontier"], lambda _: None, 3)


def test_what_ray_refuses_is_said_in_one_line(serve: Serve, cluster: Cluster) -> None:
    serve.status = 400
    with pytest.raises(ClusterFault, match=r"^Ray answered 400: it is wrong$"):
        cluster.tiers()


def test_a_cluster_with_a_token_gets_it(serve: Serve, address: str, tmp_path: Path) -> None:
    serve.token = "secret"
    (tmp_path / "token").write_text("secret\n")
    with Cluster(address, {}) as without, pytest.raises(ClusterFault, match="RAY_AUTH_TOKEN"):
        without.tiers()
    for environ in ({"RAY_AUTH_TOKEN": "secret"}, {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}):
        with Cluster(address, environ) as found:
            assert found.tiers() == {}


def test_run_status_and_down_from_the_command_line(
    serve: Serve, address: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    serve.ready_after = 0
    assert main(["deploy", "status", "--address", address, "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"tiers": {}}
    assert main(["deploy", "run", "--config", file, "--address", address]) == 0
    assert "tiers.small.urls: [http://HOST:8000/small]" in capsys.readouterr().out
    assert main(["deploy", "status", "--address", address, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["tiers"]
    assert found["small"]["status"] == "RUNNING"
    assert found["small"]["deployments"]["engine:a"]["replicas"] == {"RUNNING": 1}
    assert main(["deploy", "down", "--address", address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"removed": ["small", "frontier"]}


def test_without_a_cluster_the_address_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "status", "--address", "http://127.0.0.1:9"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("forebay: no Ray dashboard answers at http://127.0.0.1:9")
    assert said.count("\n") == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_render_prints_what_serve_deploys(layout: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(Path(__file__).parents[1] / "golden" / "layouts" / f"{layout}.yaml")
    assert main(["deploy", "render", "--device", "gpu", "--config", path]) == 0
    text = capsys.readouterr().out
    assert text == (Path(__file__).parents[1] / "golden" / f"{layout}.serve.yaml").read_text()
    assert main(["deploy", "render", "--device", "gpu", "--config", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == yaml.safe_load(text)
    assert {a["import_path"] for a in yaml.safe_load(text)["applications"]} == {IMPORT_PATH}
    assert main(["deploy", "render", "--device", "gpu", "--config", path, "--json", "--engines"]) == 0
    assert json.loads(capsys.readouterr().out)["gpus_max"] == LAYOUTS[layout]


@pytest.mark.parametrize("command", [["deploy", "render"], ["check"]])
def test_what_will_hardly_pay_is_noted_and_not_refused(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "forebay.yaml"
    path.write_text(yaml.safe_dump({"tiers": {"small": {"model": "a", "disaggregation": {}}}}))
    assert main([*command, "--config", str(path), "--device", "gpu", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)
    assert said.err.startswith("forebay: note: tiers.small.disaggregation.prefill.replicas: one engine each")


def test_what_cannot_work_is_refused_before_the_cluster_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "forebay.yaml"
    path.write_text(yaml.safe_dump({"tiers": {"small": {"model": "a", "engine": {"quantization": "fp8"}}}}))
    words = ["--config", str(path), "--device"]
    assert main(["deploy", "run", *words, "cpu", "--address", "http://127.0.0.1:9"]) == 2
    assert "tiers.small.engine.quantization: fp8 needs a GPU" in capsys.readouterr().err
    assert main(["deploy", "render", *words, "gpu"]) == 0
    assert main(["check", *words, "cpu"]) == 2
    assert main(["check", *words, "gpu"]) == 0
