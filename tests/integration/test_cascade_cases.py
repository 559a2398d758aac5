"""The cascade over real sockets: one clean answer, from the tier that deserved to give it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from bench.engine import Script, ScriptedEngine
from core.config import validate
from core.errors import ConfigError
from gateway.upstream.base import ConnectTimeout
from gateway.upstream.connection import Connection
from gateway.upstream.http1 import Http1Upstream
from tests.integration.stack import FRONTIER, SMALL, Stack, gateway, tiers, until
from tests.integration.wire import Answer, ask, text_of

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SURE, UNSURE = -0.1, -3.0


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(SMALL, keep=2000) as running:
        yield running


@pytest.fixture
async def frontier() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(FRONTIER) as running:
        yield running


def cascaded(engine: ScriptedEngine, frontier: ScriptedEngine, **settings: Any) -> dict[str, Any]:
    cascade = {"enabled": True, "threshold": -1.0, "tokens": 4, **settings}
    return {**tiers(engine, frontier=frontier), "router": {"cascade": cascade}}


def auto(
    text: str, logprob: float | None = None, script: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    told = {**({} if logprob is None else {"logprob": logprob}), **(script or {})}
    message = {"role": "user", "content": text, **({"script": told} if told else {})}
    return {"model": "auto", "messages": [message], **fields}


async def post(stack: Stack, body: dict[str, Any], path: str = CHAT, **headers: str) -> Answer:
    return await ask(stack.url, path, body, x_forebay_debug="1", **headers)


def said(answer: Answer) -> str:
    """The answer's text, streamed or not."""
    if answer.header("content-type") == "application/json":
        content = answer.json["choices"][0]["message"]["content"]
        assert isinstance(content, str)
        return content
    return text_of(answer.events)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_sure_answer_is_kept_and_shows_no_trace(
    engine: ScriptedEngine, frontier: ScriptedEngine, stream: bool
) -> None:
    async with gateway(cascaded(engine, frontier)) as stack:
        kept = await post(stack, auto("hi", SURE, stream=stream))
        plain = await post(stack, {**auto("hi", SURE, stream=stream), "model": "small"})
        assert kept.status == 200
        assert kept.whole
        assert said(kept) == said(plain) != ""
        assert b"-0.1" not in kept.body
        assert b'"usage"' not in kept.body or not stream
        assert kept.header("x-forebay-tier") == "small"
        assert kept.header("x-forebay-confidence") == "-0.1000"
        assert not frontier.requests
        # Only what the cascade decides is asked for log-probabilities.
        assert [request.json.get("logprobs") for request in engine.requests] == [True, None]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unsure_answer_is_given_up_for_the_frontier_tiers(
    engine: ScriptedEngine, frontier: ScriptedEngine, stream: bool
) -> None:
    async with gateway(cascaded(engine, frontier)) as stack:
        answer = await post(stack, auto("hi", UNSURE, stream=stream), x_request_id="r1")
        assert answer.status == 200
        assert FRONTIER in said(answer)
        assert SMALL.encode() not in answer.body
        assert b'"logprob"' not in answer.body
        assert answer.header("x-forebay-tier") == "frontier"
        assert answer.header("x-forebay-route-reason") == "escalated"
        assert float(answer.header("x-forebay-confidence") or 0) == UNSURE
        assert frontier.requests[-1].json.get("logprobs") is None
        line = await stack.line("r1")
        assert (line["tier"], line["route_reason"], line["confidence"]) == ("frontier", "escalated", UNSURE)
        assert line["output_tokens"] is None or line["output_tokens"] > 0
        assert await stack.metric("forebay_router_decisions_total", tier="frontier", reason="escalated") == 1
        assert await stack.metric("forebay_router_decisions_total", tier="small") == 0
        assert await stack.metric("forebay_tokens_total", tier="small", kind="output") >= 4
        assert await stack.metric("forebay_tokens_total", tier="small", kind="input") > 0
        assert await stack.metric("forebay_tokens_total", tier="frontier", kind="output") == line["output_tokens"]
        assert await stack.metric("forebay_cascade_held_seconds_count", verdict="escalated") == 1
        await stack.idle()


async def test_what_is_given_up_is_taken_from_the_savings(engine: ScriptedEngine, frontier: ScriptedEngine) -> None:
    document = cascaded(engine, frontier)
    for name, price in (("small", 1.0), ("frontier", 5.0)):
        document["tiers"][name]["price"] = {"input": price, "output": price}
    async with gateway(document) as stack:

        async def counted(name: str, **labels: str) -> float:
            return await stack.metric(name, **labels)

        first = await post(stack, auto("hi", SURE))
        saved = 4e-6 * first.json["usage"]["total_tokens"]
        assert await counted("forebay_saved_cost_total", source="router") == pytest.approx(saved)
        kinds = ("input", "output")
        before = sum([await counted("forebay_tokens_total", tier="small", kind=kind) for kind in kinds])
        assert (await post(stack, auto("hello", UNSURE))).header("x-forebay-tier") == "frontier"
        lost = 1e-6 * (sum([await counted("forebay_tokens_total", tier="small", kind=kind) for kind in kinds]) - before)
        assert lost > 0
        assert await counted("forebay_saved_cost_total", source="router") == pytest.approx(saved)
        third = await post(stack, auto("hey", SURE))
        saved += 4e-6 * third.json["usage"]["total_tokens"] - lost
        assert await counted("forebay_saved_cost_total", source="router") == pytest.approx(saved)


async def test_a_client_that_asked_gets_log_probabilities_and_usage(
    engine: ScriptedEngine, frontier: ScriptedEngine
) -> None:
    async with gateway(cascaded(engine, frontier)) as stack:
        wanted = {"stream": True, "logprobs": True, "stream_options": {"include_usage": True}}
        events = (await post(stack, auto("hi", SURE, **wanted))).events
        assert any(event["choices"] and event["choices"][0]["logprobs"] for event in events[:-1])
        assert [bool(event.get("usage")) for event in events[:-1]] == [False] * (len(events) - 2) + [True]
        whole = (await post(stack, auto("hello", SURE, logprobs=True))).json
        assert whole["choices"][0]["logprobs"]["content"]
        assert whole["usage"]["completion_tokens"] > 0


async def test_the_whole_answer_can_be_the_measure(engine: ScriptedEngine, frontier: ScriptedEngine) -> None:
    async with gateway(cascaded(engine, frontier, tokens=None)) as stack:
        engine.next.append(Script(logprob=UNSURE, tokens=40, itl=0.001))
        answer = await post(stack, auto("hi", stream=True))
        assert SMALL.encode() not in answer.body
        assert answer.header("x-forebay-tier") == "frontier"
        assert engine.requests[-1].tokens == 40


@pytest.mark.parametrize("logprob", [SURE, UNSURE])
async def test_a_slow_small_tier_holds_a_stream_back_for_the_deadline_only(
    engine: ScriptedEngine, frontier: ScriptedEngine, logprob: float
) -> None:
    async with gateway(cascaded(engine, frontier, tokens=1000, deadline="60ms")) as stack:
        answer = await post(stack, auto("hi", script={"logprob": logprob, "tokens": 30, "itl": 0.01}, stream=True))
        assert answer.header("x-forebay-tier") == ("small" if logprob == SURE else "frontier")
        held = await stack.metric("forebay_cascade_held_seconds_count")
        assert held == 1
        if logprob == UNSURE:
            await until(lambda: engine.requests[-1].state == "aborted")
            assert engine.requests[-1].tokens < 30


@pytest.mark.parametrize("fault", [Script(status=503), Script(status=400), Script(error_event_after=0)])
async def test_where_the_frontier_tier_cannot_the_small_one_answers(
    engine: ScriptedEngine, frontier: ScriptedEngine, fault: Script
) -> None:
    async with gateway(cascaded(engine, frontier)) as stack:
        frontier.next.append(fault)
        body = auto("hi", stream=True)
        engine.next.append(Script(logprob=UNSURE))
        answer = await post(stack, body)
        assert answer.status == 200
        assert SMALL in said(answer)
        assert answer.header("x-forebay-tier") == "small"
        assert len(engine.requests) == 2
        assert await stack.metric("forebay_router_decisions_total", tier="frontier") == 0
        assert await stack.metric("forebay_router_decisions_total", tier="small") == 1
        await stack.idle()


async def test_where_no_connection_to_the_frontier_tier_comes_the_small_one_answers(
    engine: ScriptedEngine, frontier: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = Http1Upstream._connect

    async def hanging(self: Http1Upstream, address: tuple[str, int], limit: float) -> Connection:
        if frontier.url.endswith(f":{address[1]}"):
            raise ConnectTimeout(f"no connection within {limit:g} s")
        return await connect(self, address, limit)

    monkeypatch.setattr(Http1Upstream, "_connect", hanging)
    async with gateway(cascaded(engine, frontier)) as stack:
        answer = await post(stack, auto("hi", UNSURE))
        assert (answer.status, answer.header("x-forebay-tier")) == (200, "small")


async def test_text_completions_are_judged_too(engine: ScriptedEngine, frontier: ScriptedEngine) -> None:
    async with gateway(cascaded(engine, frontier)) as stack:
        for stream in (False, True):
            for logprob, tier in ((SURE, "small"), (UNSURE, "frontier")):
                engine.next.append(Script(logprob=logprob))
                body = {"model": "auto", "prompt": f"hi {stream} {logprob}", "stream": stream}
                answer = await post(stack, body, TEXT)
                assert answer.header("x-forebay-tier") == tier
                assert b"token_logprobs" not in answer.body


async def test_without_a_threshold_the_lowest_quarter_is_escalated(
    engine: ScriptedEngine, frontier: ScriptedEngine
) -> None:
    async with gateway(cascaded(engine, frontier, threshold=None)) as stack:
        values = [-0.1 * (number % 10 + 1) for number in range(120)]
        answers = [await post(stack, auto(f"hi {n}", value)) for n, value in enumerate(values)]
        escalated = [
            value for value, a in zip(values, answers, strict=True) if a.header("x-forebay-tier") == "frontier"
        ]
        assert 0.1 * len(values) <= len(escalated) <= 0.4 * len(values)
        assert max(escalated) <= -0.7


async def test_a_stored_answer_carries_no_log_probabilities(engine: ScriptedEngine, frontier: ScriptedEngine) -> None:
    async with gateway(cascaded(engine, frontier)) as stack:
        for stream in (False, True):
            body = auto(f"hi {stream}", SURE, stream=stream)
            first, second = await post(stack, body), await post(stack, body)
            assert second.header("x-forebay-cache") == "hit-exact"
            assert said(first) == said(second)
            assert b'"logprob"' not in second.body


async def test_a_conversation_stays_where_it_was_escalated_to(engine: ScriptedEngine, frontier: ScriptedEngine) -> None:
    async with gateway(cascaded(engine, frontier)) as stack:
        body = auto("hi", UNSURE)
        answer = await post(stack, body)
        history = [*body["messages"], {"role": "assistant", "content": said(answer)}]
        again = await post(stack, {"model": "auto", "messages": [*history, {"role": "user", "content": "and you?"}]})
        assert again.header("x-forebay-route-reason") == "sticky"
        assert again.header("x-forebay-tier") == "frontier"


async def test_explain_says_that_the_small_tiers_answer_may_be_given_up(
    engine: ScriptedEngine, frontier: ScriptedEngine
) -> None:
    async with gateway(cascaded(engine, frontier)) as stack:
        found = (await stack.client.post("/v1/explain", json=auto("hi"))).json()["router"]
        assert found["tier"] == "small"
        assert found["cascade"] == {"threshold": -1.0, "tokens": 4, "below": "frontier (escalated)"}
        forced = (await stack.client.post("/v1/explain", json={**auto("hi"), "model": "small"})).json()["router"]
        assert "cascade" not in forced


def test_a_cascade_needs_two_tiers() -> None:
    with pytest.raises(ConfigError, match="need both tiers"):
        validate({"tiers": {"small": {"model": "m"}}, "router": {"cascade": {"enabled": True}}})
