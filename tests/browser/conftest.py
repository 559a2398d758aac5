"""A browser for the tests of a module, and engines behind their gateways; without a browser they are skipped."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bench.browser import Browser, program
from bench.engine import Script, ScriptedEngine
from tests.integration.stack import FRONTIER, SMALL


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser() -> AsyncIterator[Browser]:
    """A running browser."""
    if program() is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium-headless-shell)")
    async with Browser() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def engine() -> AsyncIterator[ScriptedEngine]:
    """The engine of the small tier."""
    async with ScriptedEngine(SMALL, defaults=Script(text="a short answer")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def frontier() -> AsyncIterator[ScriptedEngine]:
    """The engine of the frontier tier."""
    async with ScriptedEngine(FRONTIER, defaults=Script(text="a longer answer than that")) as running:
        yield running
