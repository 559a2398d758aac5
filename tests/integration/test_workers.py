"""`gateway.workers: 2` as processes: one address, one set of numbers, and nobody notices when one of them dies."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import psutil

from bench.engine import Script, ScriptedEngine
from tests.integration.served import Served, serving, start
from tests.integration.stack import chat, tiers
from tests.integration.wire import Answer, ask

CHAT = "/v1/chat/completions"
ADMIN = {"authorization": "Bearer admin"}


def document(*engines: ScriptedEngine, **sections: Any) -> dict[str, Any]:
    keys = [{"name": "k", "tenant": "t", "env": "CLIENT"}, {"name": "a", "tenant": "t", "env": "ADMIN", "admin": True}]
    return {
        **tiers(*engines),
        "gateway": {"port": 0, "workers": 2, "drain": "20s"},
        "auth": {"keys": keys},
        "cache": {"semantic": {"enabled": False}},
        **sections,
    }


def workers_of(served: Served) -> list[psutil.Process]:
    return psutil.Process(served.process.pid).children()


async def post(served: Served, text: str, **fields: Any) -> Answer:
    """One request on a connection of its own, so that either worker may get it."""
    return await ask(served.url, CHAT, chat(text, **fields), authorization="Bearer client")


async def on_both(served: Served, text: str) -> list[Answer]:
    """Ask until both workers have answered this question from their own cache."""
    answers = [await post(served, text)]
    while sum(answer.header("x-forebay-cache") == "miss" for answer in answers) < 2:
        answers.append(await post(served, text))
    return answers


async def metrics(served: Served, name: str) -> float:
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=10) as client:
        text = (await client.get("/metrics")).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.partition("{")[0] == name)


async def test_one_address_one_set_of_numbers_and_one_cache_to_erase(engine: ScriptedEngine, tmp_path: Path) -> None:
    async with serving(tmp_path, document(engine), CLIENT="client", ADMIN="admin") as served:
        answers = await on_both(served, "q")
        assert len(workers_of(served)) == 2
        assert await metrics(served, "forebay_requests_total") == len(answers)
        assert await metrics(served, "forebay_cache_entries") == 2
        async with httpx.AsyncClient(base_url=served.url, headers=ADMIN, trust_env=False, timeout=10) as admin:
            state = (await admin.get("/admin/state")).json()
            assert {state["worker"], *map(int, state["workers"])} == {0, 1}
            assert (await admin.get("/admin/cache/stats")).json()["exact"] == 2
            entry = answers[-1].header("x-forebay-cache-id") or ""
            if entry:
                assert (await admin.delete(f"/admin/cache/entries/{entry}")).status_code == 200
                assert (await admin.delete(f"/admin/cache/entries/{entry}")).status_code == 404
            await on_both(served, "again")
            assert (await admin.post("/admin/cache/purge")).json()["purged"] >= 2
            assert await metrics(served, "forebay_cache_entries") == 0


async def test_feedback_finds_the_worker_that_answered(engine: ScriptedEngine, tmp_path: Path) -> None:
    async with serving(tmp_path, document(engine), CLIENT="client", ADMIN="admin") as served:
        await on_both(served, "q")
        for number in range(8):
            request_id = (await post(served, f"q {number}")).header("x-request-id")
            body = {"request_id": request_id, "score": 1.0}
            answer = await ask(served.url, "/v1/feedback", body, authorization="Bearer client")
            assert answer.status == 200
            assert answer.json["repeated"] is False
        unknown = await ask(served.url, "/v1/feedback", {"request_id": "x", "score": 0}, authorization="Bearer client")
        assert unknown.status == 404
        assert await metrics(served, "forebay_feedback_total") == 8


async def test_a_worker_that_dies_is_replaced_and_its_counters_stay(engine: ScriptedEngine, tmp_path: Path) -> None:
    async with serving(tmp_path, document(engine), CLIENT="client", ADMIN="admin") as served:
        asked = len(await on_both(served, "q"))
        # What a worker has counted is written down every second.
        async with asyncio.timeout(20):
            while sum(await recorded(served)) < asked:  # noqa: ASYNC110  # in another process
                await asyncio.sleep(0.1)
        before = {process.pid for process in workers_of(served)}
        os.kill(next(iter(before)), signal.SIGKILL)
        assert "worker" in await served.line("is started again")
        # Nobody is refused meanwhile: the supervisor holds the socket.
        answers = [await post(served, f"then {number}") for number in range(10)]
        assert {answer.status for answer in answers} == {200}
        async with asyncio.timeout(20):
            while len(alive := {process.pid for process in workers_of(served)}) < 2:  # noqa: ASYNC110  # in another process
                await asyncio.sleep(0.05)
        assert len(alive & before) == 1
        assert await metrics(served, "forebay_requests_total") == asked + 10


async def recorded(served: Served) -> list[float]:
    """The requests that each worker has written down, beside the socket that it listens on."""
    wires = [wire for process in workers_of(served) for wire in process.net_connections(kind="unix")]
    folder = next(Path(str(wire.laddr)).parent for wire in wires if str(wire.laddr).endswith(".sock"))
    totals = []
    for path in folder.glob("*.metrics"):
        rows = json.loads(path.read_bytes())["forebay_requests_total"]
        totals.append(sum(value for _, value in rows))
    return totals


async def test_sigterm_lets_the_streams_of_all_workers_finish(engine: ScriptedEngine, tmp_path: Path) -> None:
    engine.defaults = Script(text="word " * 20, itl=0.1)
    async with serving(tmp_path, document(engine), CLIENT="client", ADMIN="admin") as served:
        family = workers_of(served)
        streams = [asyncio.create_task(post(served, f"s {number}", stream=True)) for number in range(30)]
        await engine.until(lambda: engine.running == 30, within=20)
        served.process.send_signal(signal.SIGTERM)
        answers = await asyncio.gather(*streams)
        assert [answer.events[-1] for answer in answers] == [b"[DONE]"] * 30
        assert await served.rest() == 0
        assert len(served.requests) == 30
        assert not any(process.is_running() for process in family)
        assert "Traceback" not in "".join(served.lines)


async def test_ctrl_c_in_a_terminal_reaches_all_and_still_drains(engine: ScriptedEngine, tmp_path: Path) -> None:
    engine.defaults = Script(text="word " * 20, itl=0.05)
    async with serving(tmp_path, document(engine), CLIENT="client", ADMIN="admin") as served:
        streams = [asyncio.create_task(post(served, f"s {number}", stream=True)) for number in range(4)]
        await engine.until(lambda: engine.running == 4, within=20)
        for process in (psutil.Process(served.process.pid), *workers_of(served)):
            process.send_signal(signal.SIGINT)
        answers = await asyncio.gather(*streams)
        assert [answer.events[-1] for answer in answers] == [b"[DONE]"] * 4
        assert await served.rest() == 0


async def test_sighup_reaches_every_worker_and_a_bad_file_is_said_once(
    engine: ScriptedEngine, second: ScriptedEngine, tmp_path: Path
) -> None:
    async with serving(tmp_path, document(engine), CLIENT="client", ADMIN="admin") as served:
        path = tmp_path / "forebay.yaml"
        path.write_text(json.dumps(document(engine, router={"threshold": 7})))
        served.process.send_signal(signal.SIGHUP)
        assert "router.threshold" in await served.line("not reloaded")
        path.write_text(json.dumps(document(second)))
        served.process.send_signal(signal.SIGHUP)
        await served.line("configuration reloaded: tiers.small.urls")
        async with httpx.AsyncClient(base_url=served.url, headers=ADMIN, trust_env=False, timeout=10) as admin:
            async with asyncio.timeout(20):
                while {second.url} != replicas_in((await admin.get("/admin/state")).json()):  # noqa: ASYNC110  # in another process
                    await asyncio.sleep(0.05)
        for process in workers_of(served):
            process.kill()
        # Those that take their places start with what was taken over.
        await served.line("is started again")
        await served.line("is started again")
        assert (await post(served, "q")).status == 200
        assert not engine.requests
        assert sum("not reloaded" in line for line in served.lines) == 1


def replicas_in(state: dict[str, Any]) -> set[str]:
    workers = [state, *state["workers"].values()]
    return {row["url"] for worker in workers for row in worker["tiers"]["small"]["replicas"]}


async def test_workers_end_when_their_supervisor_is_killed(engine: ScriptedEngine, tmp_path: Path) -> None:
    async with serving(tmp_path, document(engine), CLIENT="client", ADMIN="admin") as served:
        family = workers_of(served)
        served.process.kill()
        gone, alive = await asyncio.to_thread(psutil.wait_procs, family, 20)
        assert len(gone) == 2
        assert not alive


async def test_what_keeps_a_worker_from_starting_is_said_once_with_its_key(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    served = await start(tmp_path, document(engine, router={"classifier": str(tmp_path / "missing.json")}), CLIENT="c")
    assert await served.rest() == 2
    said = [line for line in served.lines if line.startswith("forebay: ")]
    assert len(said) >= 1
    assert any("auth.keys[1].env" in line or "router.classifier" in line for line in said)
    assert "Traceback" not in "".join(served.lines)
