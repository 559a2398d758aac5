"""`forebay check --live` asks the shared store."""

from pathlib import Path

import pytest

from bench.servers import Server, binary
from forebay.live import store_faults
from tests.integration.shared import server

__all__ = ["server"]


def test_a_store_that_answers_has_no_fault(server: Server) -> None:
    assert store_faults("cache.store", server.url) == []
    assert store_faults("auth.store", "memory") == []


def test_a_store_that_is_not_there_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_PASSWORD", "hunter2")
    (fault,) = store_faults("cache.store", "redis://:${STORE_PASSWORD}@127.0.0.1:1/0")
    assert (fault.path, "127.0.0.1:1 does not answer" in fault.message) == ("cache.store", True)
    assert "hunter2" not in fault.message
    (missing,) = store_faults("cache.store", "redis://:${NOT_SET_ANYWHERE}@127.0.0.1:1/0")
    assert missing.message == "the secret ${NOT_SET_ANYWHERE} is not set"


def test_a_store_that_does_not_let_us_in_is_a_fault(tmp_path: Path) -> None:
    if binary("redis") is None:
        pytest.skip("no redis server is installed")
    with Server("redis", tmp_path, ["--requirepass", "locked"]) as closed:
        (fault,) = store_faults("cache.store", closed.url)
    assert "NOAUTH" in fault.message or "Authentication" in fault.message
