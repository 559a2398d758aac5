"""Resident memory of `forebay serve`."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil

from bench.overhead import free_port

# Words of the questions that are asked before memory is read: short ones, and one that fills the embedder's window.
LENGTHS = (5, 10, 20, 60, 150, 240)
PATIENCE = 180.0


def resident(*, embedder: bool) -> float:
    """MB (10^6 bytes) of a gateway process that has answered questions of all lengths, in front of no tier at all."""
    with tempfile.TemporaryDirectory(prefix="forebay-memory-") as name:
        folder, port = Path(name), free_port()
        tiers = {"small": {"model": "small-model", "urls": [f"http://127.0.0.1:{free_port()}"]}}
        config = {"gateway": {"port": port}, "cache": {"semantic": {"enabled": embedder}}, "tiers": tiers}
        path = folder / "forebay.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        command = [sys.executable, "-m", "forebay", "serve", "--config", str(path)]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stderr=log)  # noqa: S603  # our own command
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url, "ready" if embedder else "off", process)
            for words in LENGTHS:
                messages = [{"role": "user", "content": "harbour " * words}]
                httpx.post(f"{url}/v1/chat/completions", json={"model": "small", "messages": messages}, timeout=30)
            return psutil.Process(process.pid).memory_info().rss / 1e6
        finally:
            process.terminate()
            process.wait(15)


def _wait(url: str, state: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/ready", timeout=5).json()["embedder"] == state:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise RuntimeError("the gateway did not come up")
