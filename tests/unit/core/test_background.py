"""Tasks that end with their owner."""

import asyncio

import pytest

from core.background import Background


async def test_closing_cancels_what_runs_and_waits_for_its_end() -> None:
    ended = []

    async def work(name: str) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    background = Background()
    tasks = [background.start(work(name), name) for name in "ab"]
    await asyncio.sleep(0)
    assert len(background) == 2
    await background.aclose()
    assert sorted(ended) == ["a", "b"]
    assert all(task.cancelled() for task in tasks)
    assert not background


async def test_a_task_counts_no_more_from_its_last_step_on() -> None:
    background = Background()

    async def work() -> None:
        return

    async def owner() -> int:
        # Runs right behind `work`, before asyncio tells anybody that it has ended.
        return len(background)

    background.start(work(), "work")
    assert await asyncio.create_task(owner()) == 0


async def test_settled_waits_also_for_what_is_begun_meanwhile() -> None:
    background, done = Background(), []

    async def last() -> None:
        await asyncio.sleep(0)
        done.append("last")

    async def first() -> None:
        background.start(last(), "last")

    background.start(first(), "first")
    await background.settled()
    assert done == ["last"]


async def test_what_a_task_raises_is_its_own_and_does_not_keep_others_from_ending() -> None:
    background = Background()

    async def broken() -> None:
        raise ValueError("broken")

    task = background.start(broken(), "broken")
    other = background.start(asyncio.sleep(3600), "other")
    await asyncio.sleep(0)
    await background.aclose()
    assert other.cancelled()
    with pytest.raises(ValueError, match="broken"):
        await task
