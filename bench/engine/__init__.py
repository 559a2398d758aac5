"""The scripted engine: a small real HTTP/1.1 server in vLLM's dialect, for tests and measurements.

In a test:

    async with ScriptedEngine("m") as engine:
        engine.next.append(Script(status=503, headers={"retry-after": "1"}))
        ...  # point a client or a gateway at engine.url
        await engine.until(lambda: engine.requests[-1].state == "aborted")

From a shell: `python -m bench.engine --model m --port 0` prints `{"url": ..., "pid": ...}` and serves until it is
interrupted; `GET /control` shows what it saw, `POST /control` changes what it does.
"""

from bench.engine.record import Seen
from bench.engine.script import Script, ToolCall
from bench.engine.server import Orders, ScriptedEngine

__all__ = ["Orders", "Script", "ScriptedEngine", "Seen", "ToolCall"]
