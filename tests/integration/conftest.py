"""Engines that most of these tests put behind a gateway; a module that needs them otherwise has its own."""

from collections.abc import AsyncIterator

import pytest

from bench.engine import ScriptedEngine
from tests.integration.stack import FRONTIER, SMALL


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    """The engine of the small tier."""
    async with ScriptedEngine(SMALL) as running:
        yield running


@pytest.fixture
async def second() -> AsyncIterator[ScriptedEngine]:
    """Another engine of the small tier."""
    async with ScriptedEngine(SMALL) as running:
        yield running


@pytest.fixture
async def frontier() -> AsyncIterator[ScriptedEngine]:
    """The engine of the frontier tier."""
    async with ScriptedEngine(FRONTIER) as running:
        yield running
