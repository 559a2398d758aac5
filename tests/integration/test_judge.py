"""The judge: a yes or no of the small tier where the guard is unsure, and a refusal wherever it does not come."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import gateway.judge as module
import gateway.services
from bench.engine import Script, ScriptedEngine
from cache.verdict import Feature, Side, Verdict
from forebay.opinions import judge_at
from tests.integration.stack import SMALL, RawClient, Stack, chat, tiers, until
from tests.integration.stack import gateway as serve
from tests.integration.wire import Answer, ask

CHAT = "/v1/chat/completions"
YES, NO = Script(text="yes"), Script(text="no")


class Scripted:
    """A verifier that reads its verdict in the question."""

    def note(self, text: str) -> None:
        pass

    def verify(self, asked: Side, stored: Side) -> Verdict:
        if "identical" in asked.text:
            return Verdict(served=True, said="identical")
        if "rule" in asked.text:
            return Verdict(served=False, said="numbers")
        score = float(asked.text.split("score=")[1].split()[0])
        return Verdict(score >= 0.27, "frame", score, unsure=abs(score - 0.27) <= 0.15)

    def features(self, asked: Side, stored: Side) -> list[Feature]:
        return []


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.services, "guard_for", lambda _: Scripted())


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(SMALL) as running:
        yield running


@asynccontextmanager
async def judging(engine: ScriptedEngine, judge: str | None = "small", **settings: Any) -> AsyncIterator[Stack]:
    semantic = {"enabled": True, "threshold": 0.9, "guard": True, "deadline": "5s", "judge": judge}
    async with serve({**tiers(engine, **settings), "cache": {"semantic": semantic}}, semantic=True) as stack:
        await ask(stack.url, CHAT, chat(one("score=1.0")))
        engine.requests.clear()
        yield stack


def one(verdict: str) -> str:
    return f"how do I reset my password {verdict}"


def other(verdict: str) -> str:
    """Another order of the same words; the encoder hears no difference."""
    return " ".join(reversed(one("score=1.0").split())).replace("score=1.0", verdict)


async def post(stack: Stack, text: str, **headers: str) -> Answer:
    answer = await ask(stack.url, CHAT, chat(text), x_forebay_debug="1", **headers)
    assert answer.status == 200
    return answer


@pytest.fixture
def _one_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words of the verdict do not change the vector."""
    from tests.integration.stack import WordEncoder

    plain = WordEncoder._vector
    monkeypatch.setattr(
        WordEncoder, "_vector", lambda self, text: plain(self, " ".join(w for w in text.split() if w.isalpha()))
    )


pytestmark = pytest.mark.usefixtures("_one_vector")


@pytest.mark.parametrize(
    ("score", "script", "cache", "guard"),
    [
        (0.2, YES, "hit-semantic", "served:judge"),
        (0.2, NO, "miss", "refused:judge"),
        (0.4, YES, "hit-semantic", "served:judge"),
        (0.4, NO, "miss", "refused:judge"),
        (0.2, Script(text="y"), "hit-semantic", "served:judge"),
        (0.2, Script(text="maybe"), "miss", "refused:judge_error"),
        (0.4, Script(status=400), "miss", "refused:judge_error"),
        (0.4, Script(body=b"[]"), "miss", "refused:judge_error"),
    ],
)
async def test_where_the_guard_is_unsure_the_judge_decides_and_its_failure_refuses(
    engine: ScriptedEngine, score: float, script: Script, cache: str, guard: str
) -> None:
    async with judging(engine) as stack:
        engine.next.append(script)
        answer = await post(stack, other(f"score={score}"), x_request_id="doubted")
        assert (answer.header("x-forebay-cache"), answer.header("x-forebay-guard")) == (cache, guard)
        sent = engine.requests[0].json
        assert (sent["max_tokens"], sent["temperature"], sent["model"]) == (1, 0, SMALL)
        assert sent["structured_outputs"] == {"choice": ["yes", "no"]}
        assert len(engine.requests) == (1 if cache == "hit-semantic" else 2)
        result = "hit" if cache == "hit-semantic" else "guarded"
        assert await stack.metric("forebay_cache_lookups_total", layer="semantic", result=result) == 1
        assert (await stack.line("doubted"))["guard"] == guard
        await stack.idle()


@pytest.mark.parametrize("verdict", ["rule", "identical", "score=0.05", "score=0.9"])
async def test_rules_and_clear_scores_are_never_put_to_the_judge(engine: ScriptedEngine, verdict: str) -> None:
    async with judging(engine) as stack:
        answer = await post(stack, other(verdict))
        served = verdict in ("identical", "score=0.9")
        assert answer.header("x-forebay-cache") == ("hit-semantic" if served else "miss")
        assert len(engine.requests) == (0 if served else 1)
        assert all("structured_outputs" not in request.json for request in engine.requests)


async def test_without_a_judge_the_guard_decides_alone(engine: ScriptedEngine) -> None:
    async with judging(engine, judge=None) as stack:
        assert (await post(stack, other("score=0.4"))).header("x-forebay-cache") == "hit-semantic"
        assert (await post(stack, other("score=0.2"))).header("x-forebay-cache") == "miss"
        assert len(engine.requests) == 1


async def test_an_opinion_is_remembered_and_explained(engine: ScriptedEngine) -> None:
    async with judging(engine) as stack:

        async def explained() -> Any:
            answer = await stack.client.post("/v1/explain", json=chat(other("score=0.2")))
            return answer.json()["cache"]["semantic"]["judge"]

        assert await explained() == "would be asked"
        assert not engine.requests
        engine.next.append(YES)
        for _ in range(3):
            assert (await post(stack, other("score=0.2"))).header("x-forebay-cache") == "hit-semantic"
        assert len(engine.requests) == 1
        assert await explained() == "yes"
        assert await stack.metric("forebay_cache_judge_total", verdict="yes") == 1
        assert await stack.metric("forebay_cache_judge_total", verdict="remembered") == 2


async def test_a_late_judge_costs_its_deadline_and_is_then_left_alone(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DEADLINE", 0.05)
    monkeypatch.setattr(module, "FAILURES", 2)
    async with judging(engine) as stack:
        for number in range(4):
            if number < 2:
                engine.next.append(Script(hang=True))
            text = other(f"score=0.2{number}")
            assert (await post(stack, text)).header("x-forebay-cache") == "miss"
        assert await stack.metric("forebay_cache_judge_total", verdict="late") == 2
        assert await stack.metric("forebay_cache_judge_total", verdict="stopped") == 2
        assert sum("structured_outputs" in request.json for request in engine.requests) == 2
        monkeypatch.setattr(stack.process.services.judge, "_resumes", 0.0)
        engine.next.append(YES)
        assert (await post(stack, other("score=0.25"))).header("x-forebay-cache") == "hit-semantic"
        await stack.idle()


async def test_a_busy_tier_is_not_asked(engine: ScriptedEngine) -> None:
    async with judging(engine, queue={"max_inflight": 2}) as stack:
        engine.next.append(Script(hang=True))
        busy = await RawClient.post(stack.url, CHAT, chat("something else entirely"))
        await engine.until(lambda: len(engine.requests) == 1)
        answer = await post(stack, other("score=0.4"))
        assert (answer.header("x-forebay-cache"), answer.header("x-forebay-guard")) == ("miss", "refused:judge_busy")
        await busy.leave()
        await until(lambda: stack.process.services.load.running == 0)


async def test_the_same_judge_is_asked_for_measuring(engine: ScriptedEngine) -> None:
    engine.next.extend([YES, NO, Script(status=500), Script(text="perhaps")])

    def opinions() -> list[bool | None]:
        with judge_at(f"{engine.url}/v1", SMALL) as opinion:
            return [opinion("a", "b") for _ in range(4)]

    assert await asyncio.to_thread(opinions) == [True, False, None, None]
