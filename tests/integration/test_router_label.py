"""`forebay router label` against two engines: a file that training, measuring and calibrating read."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bench.engine import Script, ScriptedEngine
from forebay.main import main
from router.labels import read_labels


@pytest.fixture
async def weak() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine("weak-model") as running:
        yield running


@pytest.fixture
async def strong() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine("strong-model") as running:
        yield running


def prompts(path: Path, count: int, **fields: Any) -> Path:
    rows = [{"prompt": f"question {n}", "task": "t", **fields} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


async def label(weak: ScriptedEngine, strong: ScriptedEngine, source: Path, out: Path, *more: str) -> int:
    argv = ["router", "label", "--weak", weak.url, "--strong", f"{strong.url}/v1"]
    return await asyncio.to_thread(main, [*argv, "--prompts", str(source), "--out", str(out), *more])


def rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


async def test_both_models_are_asked_and_the_file_can_be_read(
    weak: ScriptedEngine, strong: ScriptedEngine, tmp_path: Path
) -> None:
    out = tmp_path / "labels.jsonl"
    strong.defaults = Script(text="The answer is 42")
    weak.defaults = Script(text="It must be 42 surely 7", logprob=-0.5)
    assert await label(weak, strong, prompts(tmp_path / "p.jsonl", 5, answer="42"), out, "--tokens", "2") == 0
    found = rows(out)
    assert {row["prompt"] for row in found} == {f"question {n}" for n in range(5)}
    assert {(row["weak"], row["strong"], row["scorer"], row["weak_model"]) for row in found} == {
        (0.0, 1.0, "exact", "weak-model")
    }
    assert found[0]["confidence"] == {"first": -0.5, "all": -0.5, "tokens": 6, "first_tokens": 2}
    assert "weak_answer" not in found[0]
    assert [(one.weak, one.strong, one.group) for one in read_labels(out)] == [(0.0, 1.0, "t")] * 5
    assert all(request.json["logprobs"] is True for request in weak.requests if request.body)
    assert all("logprobs" not in request.json for request in strong.requests if request.body)


async def test_a_run_goes_on_where_it_ended(weak: ScriptedEngine, strong: ScriptedEngine, tmp_path: Path) -> None:
    source, out = prompts(tmp_path / "p.jsonl", 6), tmp_path / "labels.jsonl"
    assert await label(weak, strong, source, out, "--limit", "2", "--scorer", "agreement") == 0
    with out.open("a", encoding="utf-8") as file:
        file.write('{"id": "cut off in the mid')
    before = len([one for one in weak.requests if one.body])
    assert await label(weak, strong, source, out, "--scorer", "agreement", "--keep-answers") == 0
    assert len(rows(out)) == 6
    assert len({row["id"] for row in rows(out)}) == 6
    assert len([one for one in weak.requests if one.body]) == before + 4
    assert "weak-model" in rows(out)[-1]["weak_answer"]
    assert 0 < rows(out)[-1]["weak"] < rows(out)[-1]["strong"] == 1


async def test_never_more_than_the_given_number_at_one_time(
    weak: ScriptedEngine, strong: ScriptedEngine, tmp_path: Path
) -> None:
    weak.defaults = Script(ttft=0.02)
    out = tmp_path / "l.jsonl"
    assert await label(weak, strong, prompts(tmp_path / "p.jsonl", 9), out, "--concurrency", "3") == 0
    spans = [(one.arrived, one.ended) for one in weak.requests if one.body]
    most = max(sum(a <= start and (b is None or b > start) for a, b in spans) for start, _ in spans)
    assert most <= 3


async def test_a_prompt_that_fails_is_left_for_the_next_run(
    weak: ScriptedEngine, strong: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = prompts(tmp_path / "p.jsonl", 3), tmp_path / "labels.jsonl"
    weak.next.append(Script())  # the question which model there is takes the first script of none
    weak.next.append(Script(status=400))
    assert await label(weak, strong, source, out, "--json", "--concurrency", "1") == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["failed"] == 1
    assert "400" in told.err
    assert await label(weak, strong, source, out) == 0
    assert len(rows(out)) == 3


async def test_a_judge_sees_both_answers_in_either_place(
    weak: ScriptedEngine, strong: ScriptedEngine, tmp_path: Path
) -> None:
    async with ScriptedEngine("judge-model") as judge:
        judge.defaults = Script(text='{"a": 3, "b": 9}')
        out = tmp_path / "labels.jsonl"
        source = prompts(tmp_path / "p.jsonl", 12)
        assert await label(weak, strong, source, out, "--scorer", "judge", "--judge", judge.url) == 0
        assert {(row["weak"], row["strong"]) for row in rows(out)} == {(0.3, 0.9), (0.9, 0.3)}
        asked = [one.json["messages"][0]["content"] for one in judge.requests if one.body]
        assert all("weak-model" in text and "strong-model" in text for text in asked)


async def test_the_cascades_threshold_comes_from_the_file(
    weak: ScriptedEngine, strong: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "p.jsonl", tmp_path / "labels.jsonl"
    lines = []
    for n in range(20):
        script = {"logprob": -(n + 1) / 10, "text": "right" if n < 14 else "wrong"}
        lines.append({"messages": [{"role": "user", "content": f"q {n}", "script": script}], "answer": "right"})
    source.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    # The frontier engine reads the same scripts, so it gets its own answers by the order of asking.
    strong.defaults = Script(text="right")
    assert await label(weak, strong, source, out) == 0
    fixed = [{**row, "strong": 1.0} for row in rows(out)]
    out.write_text("".join(json.dumps(row) + "\n" for row in fixed), encoding="utf-8")
    capsys.readouterr()
    argv = ["router", "calibrate", "--cascade", "--data", str(out), "--frontier-share", "0.3", "--json"]
    assert main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["frontier_share"] == 0.3
    assert found["threshold"] == pytest.approx(-1.45)
    assert found["quality"] == 1 > found["random_quality"]
    assert found["tokens"] == 16


@pytest.mark.parametrize("more", [["--concurrency", "0"], ["--weak-key-env", "NOT_THERE_AT_ALL"]])
def test_bad_usage_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]) -> None:
    source = prompts(tmp_path / "p.jsonl", 1)
    argv = [
        "router",
        "label",
        "--weak",
        "http://127.0.0.1:1",
        "--strong",
        "http://127.0.0.1:1",
        "--prompts",
        str(source),
    ]
    assert main([*argv, "--out", str(tmp_path / "l.jsonl"), *more]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_server_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = prompts(tmp_path / "p.jsonl", 1)
    argv = [
        "router",
        "label",
        "--weak",
        "http://127.0.0.1:1",
        "--strong",
        "http://127.0.0.1:1",
        "--prompts",
        str(source),
    ]
    assert main([*argv, "--out", str(tmp_path / "l.jsonl")]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
