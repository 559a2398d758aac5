"""Prefill and decode apart at length: what tests/e2e/test_apart.py looks at briefly."""

import sys
from collections.abc import Iterator

import pytest

from tests.e2e.live import Live
from tests.e2e.test_apart import check_answers, check_killing, check_leaving, configuration
from tests.e2e.tiny import tiny_adapter, tiny_model

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

DEADLINE = 30.0
# What a machine of two cores may add by being busy with the engine that is started.
SLACK = 15.0


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("apart")
    weights, adapter = tiny_model(folder / "weights"), tiny_adapter(folder / "adapter")
    with Live.started(folder, configuration(str(weights), str(adapter))) as live:
        yield live


async def test_fifty_prompts_of_1_to_1500_tokens(live: Live) -> None:
    # In words, of about two tokens each.
    lengths = [1, 2, *range(14, 36), *range(46, 66, 2), *range(80, 761, 40)]
    assert len(lengths) >= 50
    await check_answers(live, lengths)


async def test_clients_that_leave_at_any_moment(live: Live) -> None:
    await check_leaving(live, 60)


async def test_the_prefill_replica_is_killed_under_load_twice(live: Live) -> None:
    for _ in range(2):
        got = await check_killing(live)
        slowest = max(answer.elapsed.total_seconds() for answer in got)
        sys.stdout.write(f"{len(got)} answers, the slowest after {slowest:.1f} s; the deadline is {DEADLINE:.0f} s\n")
        assert slowest < DEADLINE + SLACK
