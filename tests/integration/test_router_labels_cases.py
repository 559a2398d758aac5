"""Labels from production and feedback, over real sockets: at no cost of a client, in the file that training reads."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from bench.engine import Script, ScriptedEngine
from core.config import validate
from core.errors import ConfigError
from router.labels import read_labels
from tests.integration.stack import Stack, gateway, tiers, until
from tests.integration.wire import Answer, ask, is_envelope

CHAT = "/v1/chat/completions"


def document(engine: ScriptedEngine, frontier: ScriptedEngine, path: Path | None, rate: float = 1.0) -> dict[str, Any]:
    labels = {"path": str(path), "rate": rate} if path is not None else {}
    return {**tiers(engine, frontier=frontier), "router": {"labels": labels}}


def auto(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "auto", "messages": [{"role": "user", "content": text}], **fields}


async def post(stack: Stack, body: dict[str, Any], **headers: str) -> Answer:
    return await ask(stack.url, CHAT, body, **headers)


def rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


async def feedback(stack: Stack, **body: Any) -> Any:
    return await stack.client.post("/v1/feedback", json=body)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_small_tiers_answer_is_compared_in_the_background(
    engine: ScriptedEngine, frontier: ScriptedEngine, tmp_path: Path, stream: bool
) -> None:
    path = tmp_path / "labels.jsonl"
    engine.defaults, frontier.defaults = Script(text="It is Paris."), Script(text="Nobody can tell you that")
    async with gateway(document(engine, frontier, path)) as stack:
        answer = await post(stack, auto("hi", stream=stream), x_request_id="r1")
        assert answer.status == 200
        await until(lambda: len(rows(path)) == 1)
        [row] = rows(path)
        assert (row["source"], row["request_id"], row["weak"], row["strong"]) == ("comparison", "r1", 0.0, 1.0)
        assert row["messages"] == auto("hi")["messages"]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        asked = frontier.requests[-1]
        assert asked.json.get("stream") is None
        assert asked.headers["x-request-id"] == "r1-compared"
        assert await stack.metric("forebay_router_misrouted_total", direction="too_small") == 1
        assert await stack.metric("forebay_tokens_total", tier="frontier", kind="output") > 0
        # It is no request of a client.
        assert await stack.metric("forebay_requests_total", tier="frontier") == 0
    assert [(one.prompt, one.weak, one.strong) for one in read_labels(path)] == [("hi", 0.0, 1.0)]


async def test_what_agrees_is_not_counted_as_misrouted(
    engine: ScriptedEngine, frontier: ScriptedEngine, tmp_path: Path
) -> None:
    path = tmp_path / "labels.jsonl"
    engine.defaults = frontier.defaults = Script(text="It is Paris.")
    async with gateway(document(engine, frontier, path)) as stack:
        await post(stack, auto("hi"))
        await until(lambda: len(rows(path)) == 1)
        assert rows(path)[0]["weak"] == 1.0
        assert await stack.metric("forebay_router_misrouted_total") == 0


async def test_only_free_choices_of_the_small_tier_are_compared(
    engine: ScriptedEngine, frontier: ScriptedEngine, tmp_path: Path
) -> None:
    path = tmp_path / "labels.jsonl"
    async with gateway(document(engine, frontier, path)) as stack:
        await post(stack, {**auto("forced"), "model": "small"})
        await post(stack, auto("cut off", max_tokens=2))
        await post(stack, {**auto("other"), "model": "frontier"})
        await post(stack, auto("a word"))
        await post(stack, auto("a word"))  # from the cache
        await until(lambda: len(rows(path)) == 1)
        await stack.idle()
        assert [row["messages"][0]["content"] for row in rows(path)] == ["a word"]
        assert len(frontier.requests) == 2


async def test_a_comparison_delays_nobody_and_none_begins_where_the_tier_is_busy(
    engine: ScriptedEngine, frontier: ScriptedEngine, tmp_path: Path
) -> None:
    path = tmp_path / "labels.jsonl"
    config = document(engine, frontier, path)
    config["tiers"]["frontier"]["queue"] = {"max_inflight": 1}
    frontier.next.append(Script(hang=True))
    async with gateway(config) as stack:
        assert (await post(stack, auto("first"))).status == 200
        await until(lambda: len(frontier.requests) == 1)
        # One comparison hangs: answers go on, and nothing more is asked.
        for n in range(20):
            assert (await post(stack, auto(f"more {n}"))).status == 200
        assert len(frontier.requests) == 1
        assert rows(path) == []


async def test_a_comparison_gives_its_place_to_a_client_who_comes_to_wait(
    engine: ScriptedEngine, frontier: ScriptedEngine, tmp_path: Path
) -> None:
    path = tmp_path / "labels.jsonl"
    config = document(engine, frontier, path)
    config["tiers"]["frontier"]["queue"] = {"max_inflight": 1}
    frontier.next.append(Script(hang=True))
    async with gateway(config) as stack:
        await post(stack, auto("a word"))
        await until(lambda: len(frontier.requests) == 1)
        answer = await post(stack, {**auto("urgent"), "model": "frontier"})
        assert (answer.status, len(frontier.requests)) == (200, 2)
        assert rows(path) == []
        # The next one is compared all the same.
        await until(lambda: stack.process.services.tiers["frontier"].admission.inflight == 0)
        await post(stack, auto("next"))
        await until(lambda: len(rows(path)) == 1)


async def test_a_frontier_tier_that_fails_ends_nothing(
    engine: ScriptedEngine, frontier: ScriptedEngine, tmp_path: Path
) -> None:
    path = tmp_path / "labels.jsonl"
    frontier.next.append(Script(status=500))
    async with gateway(document(engine, frontier, path)) as stack:
        await post(stack, auto("one"))
        await until(lambda: len(frontier.requests) == 1)
        await until(lambda: stack.process.services.tiers["frontier"].admission.inflight == 0)
        await post(stack, auto("two"))
        await until(lambda: len(rows(path)) == 1)


async def test_feedback_finds_its_decision_and_becomes_a_label(
    engine: ScriptedEngine, frontier: ScriptedEngine, tmp_path: Path
) -> None:
    path = tmp_path / "labels.jsonl"
    async with gateway(document(engine, frontier, path, rate=0.0)) as stack:
        await post(stack, auto("hi"), x_request_id="small-1")
        await post(stack, {**auto("hi"), "model": "frontier"}, x_request_id="big-1")
        first = await feedback(stack, request_id="small-1", score=0.2, comment="wrong")
        assert first.json() == {"request_id": "small-1", "tier": "small", "verdict": "bad", "repeated": False}
        assert first.headers["x-request-id"]
        assert (await feedback(stack, request_id="small-1", score=0.9)).json()["repeated"] is True
        assert (await feedback(stack, request_id="big-1", score=1)).json()["tier"] == "frontier"
        assert await stack.metric("forebay_feedback_total", tier="small", verdict="bad") == 1
        assert await stack.metric("forebay_feedback_total", tier="frontier", verdict="good") == 1
        assert [row["score"] for row in rows(path)] == [0.2, 1]
        assert rows(path)[0]["comment"] == "wrong"
    assert [(one.prompt, one.weak, one.strong) for one in read_labels(path)] == [("hi", 0.2, 1.0)]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"request_id": "nobody", "score": 1}, 404),
        ({"request_id": "r", "score": 2}, 400),
        ({"request_id": "r", "score": True}, 400),
        ({"request_id": "", "score": 1}, 400),
        ({"score": 1}, 400),
        ({"request_id": "r"}, 400),
        ({"request_id": "r", "score": 1, "comment": "x" * 3000}, 400),
    ],
)
async def test_feedback_that_cannot_be_taken_is_an_envelope(
    engine: ScriptedEngine, frontier: ScriptedEngine, body: Any, status: int
) -> None:
    async with gateway(document(engine, frontier, None)) as stack:
        answer = await feedback(stack, **body)
        assert answer.status_code == status
        assert is_envelope(answer.json())


async def test_a_tier_that_is_never_chosen_is_told_by_ready(engine: ScriptedEngine, frontier: ScriptedEngine) -> None:
    config = document(engine, frontier, None)
    config["router"]["threshold"] = 1.0
    async with gateway(config) as stack:
        for n in range(205):
            await post(stack, auto(f"hi {n}"))
        ready = await stack.client.get("/ready")
        assert ready.status_code == 200
        assert any("frontier" in one and "not chosen" in one for one in ready.json()["degraded"])
        assert await stack.metric("forebay_router_drift") > 0.25


def test_a_rate_without_a_file_or_a_second_tier_is_refused() -> None:
    both = {"small": {"model": "a"}, "frontier": {"model": "b"}}
    with pytest.raises(ConfigError, match="needs a path"):
        validate({"tiers": both, "router": {"labels": {"rate": 0.1}}})
    with pytest.raises(ConfigError, match="need both tiers"):
        validate({"tiers": {"small": {"model": "a"}}, "router": {"labels": {"rate": 0.1, "path": "x"}}})
