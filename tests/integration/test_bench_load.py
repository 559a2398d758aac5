"""`forebay bench` over real sockets against the scripted engine."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from bench.engine import Script, ScriptedEngine

ROOT = Path(__file__).resolve().parents[2]
# The last token's text and the role, finish, usage and end events are no tokens.
TOKENS = 6


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[ScriptedEngine]:
    with (tmp_path / "log").open("wb", buffering=0) as log:
        async with ScriptedEngine("m", defaults=Script(ttft=0.02, itl=0.004, spread=0.4)) as running:
            running.log = log
            yield running


async def start(*words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "forebay", "bench", *words, cwd=ROOT,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip


async def bench(*words: str, code: int | None = None) -> dict:
    process = await start(*words, "--json")
    out, err = await process.communicate()
    assert out, err.decode()
    if code is not None:
        assert process.returncode == code, err.decode()
    return json.loads(out)


def load(engine: ScriptedEngine, *words: str) -> tuple[str, ...]:
    return (
        "--url",
        f"{engine.url}/v1",
        "--model",
        "m",
        "--output-tokens",
        str(TOKENS),
        "--prompt-tokens",
        "30",
        *words,
    )


async def test_every_request_is_sent_once_and_reported_as_the_engine_logged_it(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    lines = tmp_path / "requests.jsonl"
    found = await bench(*load(engine, "--rate", "50", "--duration", "3s", "--requests-out", str(lines)))
    rows = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert len(rows) == found["requests"] > 100
    assert found["errors"] == 0
    # Which of the engine's requests is which is in no header: both sorted, the nearest fit.
    logged = np.sort([row["last"] - row["first"] for row in rows])
    seen = np.sort([row["last_s"] - row["first_s"] for row in map(json.loads, lines.read_text().splitlines())])
    # Machines stand still now and then, in the engine and here: most requests must fit.
    assert np.median(np.abs(seen - logged)) < 0.002
    assert found["tpot"]["p50"] == pytest.approx(float(np.median(logged)) / (TOKENS - 1), abs=0.002)
    assert all(row["tokens"] == TOKENS for row in rows)
    assert found["tokens"]["source"] == "usage"
    assert found["littles_law_ratio"] == pytest.approx(1.0, abs=0.1)


async def test_a_stopped_generator_makes_the_run_void(engine: ScriptedEngine) -> None:
    process = await start(*load(engine, "--rate", "50", "--duration", "4s", "--json"))
    await engine.until(lambda: len(engine.requests) > 20, within=60.0)
    # The command's own child sends; it is the one with connections to the engine.
    children = psutil.Process(process.pid).children(recursive=True)
    senders = [
        child for child in children if any(c.raddr and c.raddr.port == engine.port for c in child.net_connections())
    ]
    before = len(engine.requests)
    os.kill(senders[0].pid, signal.SIGSTOP)
    stopped_at = asyncio.get_running_loop().time()
    # The schedule goes on without its sender: some time must pass, and nothing tells how much but the clock.
    await engine.until(lambda: engine.running == 0, within=60.0)
    with pytest.raises(TimeoutError):
        await engine.until(lambda: len(engine.requests) > 10**6, within=0.5)
    assert asyncio.get_running_loop().time() - stopped_at >= 0.5
    os.kill(senders[0].pid, signal.SIGCONT)
    out, err = await process.communicate()
    found = json.loads(out)
    assert len(engine.requests) > before
    assert process.returncode == 1
    assert not found["valid"]
    assert b"INVALID" in err
    assert found["lateness"]["max_s"] > 0.2


async def test_a_closed_loop_keeps_its_clients_busy_and_no_more(engine: ScriptedEngine) -> None:
    most = 0

    def watch() -> bool:
        nonlocal most
        most = max(most, engine.running)
        return len(engine.requests) >= 60 and engine.running == 0

    waiting = asyncio.ensure_future(engine.until(watch, within=60.0))
    found = await bench(*load(engine, "--concurrency", "5", "--requests", "60"))
    await waiting
    assert (found["requests"], most) == (60, 5)


async def test_errors_are_counted_by_kind(engine: ScriptedEngine) -> None:
    faults = (Script(status=503), Script(cut_after_tokens=2), Script(error_event_after=1), Script(status=429))
    engine.next.extend(faults)
    found = await bench(*load(engine, "--concurrency", "2", "--requests", "20"))
    counted = {name: count for name, count in found["outcomes"].items() if name != "done"}
    assert counted == {"http_503": 1, "reset": 1, "stream_error": 1, "http_429": 1}
    assert (found["errors"], found["outcomes"]["done"], found["success"]) == (4, 16, 0.8)


async def test_a_server_that_is_not_there_is_one_line(engine: ScriptedEngine) -> None:
    await engine.stop_listening()
    process = await start("--url", engine.url, "--model", "m", "--rate", "5", "--requests", "3")
    out, err = await process.communicate()
    assert (process.returncode, out) == (1, b"")
    assert err.count(b"\n") == 1


async def test_turns_carry_the_answers_before_them(engine: ScriptedEngine) -> None:
    found = await bench(*load(engine, "--concurrency", "2", "--requests", "4", "--turns", "3"))
    assert found["requests"] == 12
    lengths = sorted(len(seen.json["messages"]) for seen in engine.requests)
    assert lengths == [1] * 4 + [3] * 4 + [5] * 4
    last = next(seen for seen in engine.requests if len(seen.json["messages"]) == 5)
    assert "Answer" in str(last.json["messages"][1])
    assert [one["name"] for one in found["by_turn"]] == ["turn 1", "turn 2", "turn 3"]


async def test_several_processes_send_one_schedule(engine: ScriptedEngine) -> None:
    found = await bench(*load(engine, "--rate", "40", "--requests", "40", "--processes", "2", "--salt", "1"))
    assert (found["requests"], found["lateness"]["processes"]) == (40, 2)
    prompts = [json.dumps(seen.json["messages"]) for seen in engine.requests]
    assert len(set(prompts)) == 40


async def test_a_limit_in_flight_is_kept_and_its_wait_is_measured(engine: ScriptedEngine, tmp_path: Path) -> None:
    lines = tmp_path / "requests.jsonl"
    words = ("--rate", "200", "--requests", "40", "--max-in-flight", "2", "--requests-out", str(lines))
    found = await bench(*load(engine, *words))
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    # Two at a time, 40 ms each by the script: the last of 40 that are due within 0.2 s waits for over half a second.
    assert found["ttft"]["max"] > 0.3
    assert found["lateness"]["max_s"] == 0.0
    begun = sorted(row["begun_s"] for row in rows)
    ended = sorted(row["ended_s"] for row in rows)
    assert all(begin >= end for begin, end in zip(begun[2:], ended, strict=False))


async def test_whole_answers_have_an_end_and_no_first_token(engine: ScriptedEngine) -> None:
    found = await bench(*load(engine, "--concurrency", "2", "--requests", "6", "--no-stream"))
    assert found["ttft"]["p50"] is None
    assert found["e2e"]["p50"] > 0.02
    assert found["tokens"]["output_mean"] == TOKENS


async def test_files_are_written_and_can_be_compared(engine: ScriptedEngine, tmp_path: Path) -> None:
    page, csv, a, b = (tmp_path / name for name in ("r.html", "r.csv", "a.json", "b.json"))
    words = ("--rate", "60", "--requests", "120", "--slo-ttft", "1s")
    await bench(*load(engine, *words, "--out", str(a), "--html", str(page), "--csv", str(csv)))
    engine.defaults = Script(ttft=0.2, itl=0.004, spread=0.4)
    await bench(*load(engine, *words, "--out", str(b)))
    text = page.read_text()
    assert text.count("<svg") >= 6
    assert "http" not in text.replace(engine.url, "").replace("http_", "")
    assert csv.read_text().startswith("part,metric,requests,mean")
    process = await start("compare", str(a), str(b), "--json")
    out, _ = await process.communicate()
    rows = {(row["part"], row["figure"]): row for row in json.loads(out)["rows"]}
    assert rows["all", "ttft p50"]["verdict"] == "worse"
    assert rows["all", "ttft p50"]["ci95"][0] > 0


async def test_a_sweep_goes_beyond_what_the_server_keeps_up_with() -> None:
    # Four at a time, 50 ms each: 80 per second and no more.
    async with ScriptedEngine("m", defaults=Script(ttft=0.05), max_running=4) as engine:
        found = await bench(
            "--url", engine.url, "--model", "m", "--output-tokens", "1", "--rates", "10,200", "--duration", "2s"
        )
    assert [row["rate"] for row in found["sweep"]] == [10, 200]
    assert not found["sweep"][1]["kept"]
    assert found["sweep"][1]["throughput_rps"] < 100


async def test_agree_tells_the_same_from_the_different(engine: ScriptedEngine) -> None:
    async with ScriptedEngine("m") as other:
        same = await bench("agree", "--url", engine.url, "--other", other.url, "--requests", "8")
        other.defaults = Script(text="something else entirely")
        different = await bench(
            "agree", "--url", engine.url, "--other", other.url, "--requests", "8", "--least", "0.5", code=1
        )
    assert (same["exact"], same["self"]["exact"], same["differs_beyond_itself"]) == (1.0, 1.0, False)
    assert (different["exact"], different["differs_beyond_itself"]) == (0.0, True)
    assert different["similarity"] < 0.5


async def test_fit_finds_the_engines_times(tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    async with ScriptedEngine("m", defaults=Script(ttft=0.05, itl=0.02)) as engine:
        found = await bench(
            "fit", "--url", engine.url, "--batches", "1,2,4", "--contexts", "8,64", "--prompts", "8,64",
            "--steps", "10", "--rounds", "1", "--out", str(file), "--engine", "max_num_seqs=4", code=0,
        )  # fmt: skip
    assert found["decode"]["fixed_s"] == pytest.approx(0.02, rel=0.3)
    assert found["prefill"]["fixed_s"] == pytest.approx(0.05, rel=0.3)
    assert found["engine"]["max_num_seqs"] == 4
    assert json.loads(file.read_text()) == found
