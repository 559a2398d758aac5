"""Replicas of a tier come and go with the load, and are replaced by others in place: no request fails."""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.tiny import tiny_model
from tests.e2e.waiting import until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

MODEL = "m"


def document(weights: Path, sequences: int) -> dict[str, Any]:
    engine = {"max_num_seqs": sequences, "kv_cache_memory_bytes": 64 * 1024**2}
    replicas = {"min": 1, "max": 2, "target_ongoing_requests": 2}
    small = {"model": MODEL, "source": str(weights), "engine": engine, "replicas": replicas}
    return {"tiers": {"small": {**small, "timeout": {"total": "2m"}}}}


class Cluster:
    """The cluster's process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.url = self._line()["urls"]["small"]

    def tell(self, line: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._line()

    def status(self) -> tuple[str, Counter[str]]:
        """What Serve says of the tier, and its replicas by state."""
        small = self.tell("status")["small"]
        return small["status"], Counter(next(iter(small["replicas"].values()), {}))

    def _line(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def cluster(weights: Path) -> Iterator[Cluster]:
    command = [sys.executable, "-m", "tests.soak.cluster", json.dumps(document(weights, 4))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Cluster(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


@asynccontextmanager
async def load(cluster: Cluster, clients: int, got: Counter[str]) -> Any:
    """So many clients, one request after another each; `got` counts how they ended."""
    over = asyncio.Event()

    async def client(number: int) -> None:
        async with httpx.AsyncClient(timeout=300) as http:
            while not over.is_set():
                body = {"model": MODEL, "prompt": f"client {number}", "max_tokens": 16, "ignore_eos": True}
                try:
                    answer = await http.post(f"{cluster.url}/v1/completions", json=body)
                    got[str(answer.status_code)] += 1
                except httpx.HTTPError as error:
                    got[type(error).__name__] += 1

    async with asyncio.TaskGroup() as tasks:
        for number in range(clients):
            tasks.create_task(client(number))
        try:
            yield
        finally:
            over.set()


async def reached(cluster: Cluster, running: int) -> None:
    """Wait until the tier runs with so many replicas and no other."""
    await asyncio.to_thread(until, lambda: cluster.status() == ("RUNNING", Counter({"RUNNING": running})), within=1500)


async def test_replicas_follow_load_and_an_update_under_load_fails_no_request(cluster: Cluster, weights: Path) -> None:
    got: Counter[str] = Counter()
    async with load(cluster, 6, got):
        await reached(cluster, 2)
    up = got.total()
    async with load(cluster, 6, got):
        await asyncio.to_thread(cluster.tell, json.dumps(document(weights, 5)))
        await asyncio.to_thread(until, lambda: cluster.status()[0] != "RUNNING")
        await reached(cluster, 2)
    updated = got.total()
    async with load(cluster, 1, got):
        await reached(cluster, 1)
    phases = f"{up} while a replica came, {updated - up} during the update, {got.total() - updated} as one went"
    sys.stdout.write(f"answers: {phases}\n")
    assert set(got) == {"200"}
