"""Serves the scripted engine: `python -m bench.engine --model m --port 0 --script '{"itl": 0.02}'`."""

import argparse
import asyncio
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import orjson
import uvloop
from pydantic import ValidationError

from bench.engine.script import Script
from bench.engine.server import ScriptedEngine
from core import garbage


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="TCP port; 0 takes a free one")
    parser.add_argument("--model", action="append", help="served model name; may be given more than once")
    parser.add_argument("--api-key", help="key that /v1 routes require")
    parser.add_argument("--max-running", type=int, help="requests that run at one time; the rest wait")
    parser.add_argument("--script", default="{}", help="default script as JSON; fields as in bench/engine/script.py")
    parser.add_argument("--acceptance", type=float, help="share of drafted tokens that are accepted; none are drafted")
    parser.add_argument("--keep", type=int, default=1000, help="requests that are remembered")
    parser.add_argument("--log", type=Path, help="file for a line per request: when it came, first and last token")
    return parser.parse_args()


async def _serve(given: argparse.Namespace, script: Script) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with ExitStack() as stack:
        log = stack.enter_context(given.log.open("wb", buffering=0)) if given.log is not None else None
        engine = ScriptedEngine(
            *(given.model or ()),
            api_key=given.api_key,
            max_running=given.max_running,
            defaults=script,
            port=given.port,
            keep=given.keep,
            acceptance=given.acceptance,
        )
        engine.log = log
        async with engine:
            line = orjson.dumps({"url": engine.url, "pid": os.getpid(), "models": list(engine.models)})
            print(line.decode(), flush=True)
            garbage.settle()
            await stop.wait()


def main() -> int:
    """Serves until SIGINT or SIGTERM."""
    given = _arguments()
    try:
        script = Script.model_validate_json(given.script)
    except ValidationError as error:
        print(f"--script: {error}", file=sys.stderr)
        return 2
    uvloop.run(_serve(given, script))
    return 0


if __name__ == "__main__":
    sys.exit(main())
