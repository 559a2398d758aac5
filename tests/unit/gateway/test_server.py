"""What a configuration needs to be served, found before anything listens."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.config import validate
from core.errors import ConfigError, ForebayError
from gateway.server import listen, run, start_line

# `run` belongs to a process of its own: it takes their logs over.
LOGGERS = ("forebay", "uvicorn")
TIER: dict[str, Any] = {"model": "m", "urls": ["http://127.0.0.1:1"]}


@pytest.fixture(autouse=True)
def logging_is_left_as_it_was() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


def problems(document: dict[str, Any]) -> list[str]:
    config = validate({"gateway": {"port": 0}, "cache": {"semantic": {"enabled": False}}, **document})
    with pytest.raises(ConfigError) as caught:
        run(config, lambda _: None)
    return [problem.path for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"tiers": {"small": {"model": "m"}}}, "tiers.small.urls"),
        ({"tiers": {"small": {**TIER, "api_key": "${NOT_SET_ANYWHERE}"}}}, "tiers.small.api_key"),
        ({"tiers": {"small": TIER}, "router": {"classifier": "/nothing/here.json"}}, "router.classifier"),
        (
            {"tiers": {"small": TIER}, "auth": {"keys": [{"name": "a", "tenant": "a", "env": "NOT_SET_ANYWHERE"}]}},
            "auth.keys[0].env",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_served_is_named_by_its_key(document: dict[str, Any], path: str) -> None:
    assert problems(document) == [path]


def test_a_taken_port_is_named_with_its_key() -> None:
    config = validate({"gateway": {"port": 0}, "tiers": {"small": TIER}})
    (taken,) = listen(config)
    port = taken.getsockname()[1]
    with taken, pytest.raises(ForebayError, match=rf"127\.0\.0\.1:{port} \(gateway\.port\)"):
        listen(validate({"gateway": {"port": port}, "tiers": {"small": TIER}}))


def test_the_first_line_says_where_what_and_who(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k")
    config = validate({"tiers": {"small": TIER}})
    line = start_line(config, "http://127.0.0.1:8080")
    assert line.startswith("forebay: gateway at http://127.0.0.1:8080, tiers: small m at http://127.0.0.1:1")
    assert "no client keys" in line
    keys = {"keys": [{"name": "a", "tenant": "a", "file": str(tmp_path / "key")}]}
    assert "1 client key" in start_line(validate({"tiers": {"small": TIER}, "auth": keys}), "u")
