"""`forebay serve` as a process of a test: its lines, its address, its end."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any


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
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, env={**clean, **environ}
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
