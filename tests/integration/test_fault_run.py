"""The fault run and the leak run, short: every client gets what it must, and nothing is left behind."""

import pytest

from bench import leaks
from bench.faults.__main__ import run
from bench.faults.cases import MIX


@pytest.mark.timeout(180)
async def test_every_fault_shows_as_it_should_and_sigterm_breaks_none_of_200_streams() -> None:
    report = await run(seconds=5, clients=32, streams=200, seed=11)
    assert report["wrong"] == []
    assert report["missed"] == []
    assert report["drain"]["streams"] == 200
    assert report["requests"] > 200
    assert len(report["cases"]) >= len(MIX)


@pytest.mark.timeout(180)
async def test_nothing_is_kept_of_requests_that_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    # Memory needs more requests to be told apart from noise; tasks, descriptors and gauges do not.
    monkeypatch.setattr(leaks, "PER_REQUEST", float("inf"))
    monkeypatch.setattr(leaks, "STOPS", 4)
    monkeypatch.setattr(leaks, "WARM", 1)
    report = await leaks.run(requests=1200, clients=32, seed=11)
    assert report["wrong"] == []
    assert report["missed"] == []
