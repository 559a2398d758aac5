"""`forebay top` against a running gateway."""

import asyncio
import json
import os
import pty
import signal
import sys
from asyncio.subprocess import PIPE

from bench.engine import ScriptedEngine
from tests.integration.stack import Stack, chat, gateway, tiers
from tests.integration.test_console import asked, keys


async def top(stack: Stack, *words: str, **environ: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "forebay", "top", "--url", f"{stack.url}/v1", *words]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env=os.environ | environ)
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_it_says_once_what_there_is_where_nobody_looks(engine: ScriptedEngine) -> None:
    async with gateway({**tiers(engine), **keys(admin=True)}) as stack:
        for text in ("q", "q", "r"):
            await stack.client.post("/v1/chat/completions", json=chat(text), headers={"authorization": "Bearer admin"})
        code, out, _ = await top(stack, "--json", FOREBAY_API_KEY="admin")
        found = json.loads(out)
        assert (code, found["last_minute"]["requests"]) == (0, 3)
        assert found["last_minute"]["exact"] == 1 / 3
        assert [row["cache"] for row in found["decisions"]] == ["miss", "hit-exact", "miss"]
        assert found["tiers"]["small"]["servers"][0]["health"] == "up"
        code, out, _ = await top(stack, FOREBAY_API_KEY="admin")
        assert code == 0
        assert "hit-exact" in out
        code, out, err = await top(stack, "--json", FOREBAY_API_KEY="")
        assert (code, out) == (1, "")
        assert "403" in err
        assert "FOREBAY_API_KEY" in err


async def test_without_a_gateway_it_says_so(engine: ScriptedEngine) -> None:
    async with gateway(tiers(engine)) as stack:
        pass
    code, _, err = await top(stack)
    assert code == 1
    assert "no gateway answers" in err
    assert "Traceback" not in err


async def test_on_a_terminal_it_follows_until_ctrl_c(engine: ScriptedEngine) -> None:
    async with gateway(tiers(engine)) as stack:
        ours, theirs = pty.openpty()
        said = bytearray()
        more = asyncio.Event()

        def read() -> None:
            said.extend(os.read(ours, 65536))
            more.set()

        async def shows(text: bytes) -> None:
            while text not in said:
                await more.wait()
                more.clear()

        loop = asyncio.get_running_loop()
        os.set_blocking(ours, False)
        loop.add_reader(ours, read)
        command = [sys.executable, "-m", "forebay", "top", "--url", stack.url]
        environ = os.environ | {"TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
        process = await asyncio.create_subprocess_exec(*command, stdout=theirs, stderr=theirs, env=environ)
        try:
            async with asyncio.timeout(60):
                await shows(b"live")
                await asked(stack, "q")
                await shows(b"/v1/chat/completions")
                process.send_signal(signal.SIGINT)
                assert await process.wait() == 130
        finally:
            loop.remove_reader(ours)
            if process.returncode is None:
                process.kill()
                await process.wait()
            os.close(ours)
            os.close(theirs)
        assert b"Traceback" not in said
