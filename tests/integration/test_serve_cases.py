"""`forebay serve` as a process: what it says, what it logs, and how it ends."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.engine import Script, ScriptedEngine
from tests.integration.stack import SMALL, chat, tiers
from tests.integration.wire import ask

CHAT = "/v1/chat/completions"


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(SMALL) as running:
        yield running


class Served:
    """The running process; its lines are read as they come."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self.url = ""

    async def line(self, part: str) -> str:
        """The next line of stderr with this text in it."""
        assert self.process.stderr is not None
        async with asyncio.timeout(60):
            while line := (await self.process.stderr.readline()).decode():
                self.lines.append(line)
                if part in line:
                    return line
        raise AssertionError(f"ended without {part!r}: {self.lines}")

    async def rest(self) -> int:
        """The exit code, after the last line."""
        assert self.process.stderr is not None
        async with asyncio.timeout(30):
            self.lines += (await self.process.stderr.read()).decode().splitlines()
            return await self.process.wait()

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The request lines so far."""
        found = [json.loads(line) for line in self.lines if line.startswith("{")]
        return [line for line in found if line["event"] == "request"]


async def start(path: Path, document: dict[str, Any], **environ: str) -> Served:
    config = path / "forebay.yaml"
    config.write_text(json.dumps({"cache": {"semantic": {"enabled": False}}, **document}), encoding="utf-8")
    command = [sys.executable, "-m", "forebay", "serve", "--config", str(config)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY__")}
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**clean, **environ}
    )
    return Served(process)


@asynccontextmanager
async def serving(path: Path, document: dict[str, Any], **environ: str) -> AsyncIterator[Served]:
    served = await start(path, {"gateway": {"port": 0}, **document}, **environ)
    try:
        line = await served.line("gateway at http://")
        served.url = line.split("gateway at ")[1].split(",")[0]
        yield served
    finally:
        if served.process.returncode is None:
            served.process.kill()
        await served.rest()


async def test_sigterm_lets_streams_finish_and_every_request_has_one_line(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    """R1's kind: nothing is lost on the way down, and nothing secret is in the log."""
    document = {
        **tiers(engine, api_key="${TIER_SECRET}"),
        "auth": {"keys": [{"name": "k", "tenant": "t", "env": "CLIENT_SECRET"}]},
    }
    engine.defaults = Script(text="the-answer " * 20, itl=0.05)
    bearer = {"authorization": "Bearer client-secret"}
    async with serving(tmp_path, document, TIER_SECRET="tier-secret", CLIENT_SECRET="client-secret") as served:
        streams = [
            asyncio.create_task(ask(served.url, CHAT, chat(f"the-prompt {n}", stream=True), **bearer))
            for n in range(20)
        ]
        await engine.until(lambda: engine.running == 20, within=20)
        served.process.send_signal(signal.SIGTERM)
        answers = await asyncio.gather(*streams)
        assert all(answer.events[-1] == b"[DONE]" for answer in answers)
        assert await served.rest() == 0
        assert [line["status"] for line in served.requests] == [200] * 20
        assert {line["key"] for line in served.requests} == {"k"}
        text = "".join(served.lines)
        assert not [word for word in ("secret", "the-prompt", "the-answer", "Traceback") if word in text]


async def test_a_second_signal_ends_it_at_once(engine: ScriptedEngine, tmp_path: Path) -> None:
    engine.defaults = Script(tokens=10_000, itl=0.05)
    async with serving(tmp_path, tiers(engine)) as served:
        stream = asyncio.create_task(ask(served.url, CHAT, chat("x", stream=True)))
        await engine.until(lambda: engine.running == 1, within=20)
        served.process.send_signal(signal.SIGINT)
        served.process.send_signal(signal.SIGTERM)
        await served.rest()
        await asyncio.gather(stream, return_exceptions=True)
        await engine.until(lambda: engine.running == 0)
        assert "Traceback" not in "".join(served.lines)
