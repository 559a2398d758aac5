"""Response cache: one test or more per case seen in the field, over real sockets, with a tiny deterministic encoder."""

import asyncio
import hashlib
import itertools
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import openai
import orjson
import pytest

from bench.engine import Script, ScriptedEngine
from tests.integration.stack import FRONTIER, SMALL, Stack, chat, gateway, tiers
from tests.integration.wire import Answer, ask

CHAT = "/v1/chat/completions"
USAGE = {"include_usage": True}
# The same words in another order: similarity 1 for the tests' encoder, another question for the exact layer.
ONE, OTHER = "how do I reset my password", "my password how do I reset"


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(SMALL) as running:
        yield running


@pytest.fixture
async def stack(engine: ScriptedEngine) -> AsyncIterator[Stack]:
    async with semantic(engine) as running:
        yield running


def semantic(*engines: ScriptedEngine, **more: Any) -> AbstractAsyncContextManager[Stack]:
    """A gateway with both layers and without a guard, which the tests' encoder would only confuse."""
    layer = {"enabled": True, "threshold": 0.9, "guard": False, "deadline": "5s"}
    return gateway({**tiers(*engines), "cache": {"semantic": layer}, **more}, semantic=True)


async def post(stack: Stack, body: dict[str, Any], **headers: str) -> Answer:
    return await ask(stack.url, CHAT, body, **headers)


def layer(answer: Answer) -> str | None:
    assert answer.status == 200
    return answer.header("x-forebay-cache")


KEYS = {name: f"{name}-key" for name in ("alice", "bob", "admin")}


def auth() -> dict[str, Any]:
    keys = [
        {"name": name, "tenant": name, "sha256": hashlib.sha256(key.encode()).hexdigest(), "admin": name == "admin"}
        for name, key in KEYS.items()
    ]
    return {"auth": {"keys": keys}}


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name]}"}


CHANGES: list[dict[str, Any]] = [
    {"max_tokens": 64},
    {"max_tokens": 256},
    {"max_completion_tokens": 64},
    {"temperature": 0},
    {"temperature": 1},
    {"top_p": 0.5},
    {"stop": ["x"]},
    {"n": 2},
    {"seed": 7},
    {"logit_bias": {"50256": -100}},
    {"logprobs": True},
    {"presence_penalty": 0.1},
    {"response_format": {"type": "json_object"}},
    {"num_ctx": 2048},
    {"top_k": 5},
    {"guided_json": {"type": "object"}},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"something_of_tomorrow": True},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
async def test_c1_c2_c3_every_field_that_may_change_the_answer_is_part_of_the_question(
    stack: Stack, engine: ScriptedEngine, change: dict[str, Any]
) -> None:
    """C1, C2, C3: exact and semantic alike; an omitted field is its own value; equal fields hit."""
    assert layer(await post(stack, chat(ONE))) == "miss"
    assert layer(await post(stack, chat(ONE, **change), x_forebay_cache="exact")) == "miss"
    assert layer(await post(stack, chat(OTHER, **change))) == "miss"
    assert len(engine.requests) == 3
    assert layer(await post(stack, chat(ONE, **change))) == "hit-exact"
    assert layer(await post(stack, chat(ONE))) == "hit-exact"
    assert len(engine.requests) == 3


async def test_what_does_not_change_the_answer_is_not_part_of_the_question(stack: Stack) -> None:
    """How the answer travels, who the end user is, and by which name the model is called."""
    assert layer(await post(stack, chat(ONE))) == "miss"
    for same in ({"stream": True}, {"stream": True, "stream_options": USAGE}, {"user": "u1"}, {"model": SMALL}):
        assert layer(await post(stack, {**chat(ONE), **same})) == "hit-exact"


async def test_c4_other_routes_are_never_answered_from_the_cache(stack: Stack, engine: ScriptedEngine) -> None:
    """C4: /v1/responses and embeddings always reach the engine; stateful chat requests are kept exact only."""
    for path, body in (
        ("/v1/responses", {"model": "small", "input": "hi"}),
        ("/v1/embeddings", {"model": "small", "input": "hi"}),
    ):
        for _ in range(2):
            answer = await ask(stack.url, path, body)
            assert (answer.status, answer.header("x-forebay-cache")) == (200, "bypass")
    assert len(engine.requests) == 4


async def test_c6_order_of_keys_does_not_matter_and_order_of_arrays_does(stack: Stack, engine: ScriptedEngine) -> None:
    """C6: an identical request with tools hits, with its JSON keys in any order."""
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a", "b"]}}
    body = chat(ONE, tools=[{"type": "function", "function": function}], temperature=0.5)
    turned = orjson.loads(orjson.dumps(reversed_keys(body)))
    assert list(turned) == list(body)[::-1]
    assert [layer(await post(stack, body)), layer(await post(stack, turned))] == ["miss", "hit-exact"]
    function["parameters"]["required"].reverse()  # type: ignore[index]
    assert layer(await post(stack, body)) == "miss"


def reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return [reversed_keys(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("scope", ["tenant", "global"])
async def test_c7_c8_a_tenants_answers_are_its_own_unless_the_operator_says_otherwise(
    engine: ScriptedEngine, scope: str
) -> None:
    """C7, C8: the tenant is a wall before any vector is compared; no header of a client opens it."""
    cache = {"scope": scope, "semantic": {"enabled": True, "threshold": 0.9, "guard": False, "deadline": "5s"}}
    async with gateway({**tiers(engine), **auth(), "cache": cache}, semantic=True) as stack:
        assert layer(await post(stack, chat(ONE), **bearer("alice"))) == "miss"
        assert layer(await post(stack, chat(OTHER), **bearer("alice"))) == "hit-semantic"
        bold = {"x-forebay-threshold": "0", "x-forebay-cache-key": "alice", "x-tenant": "alice"}
        reworded = layer(await post(stack, chat("password my reset I do how"), **bearer("bob"), **bold))
        assert reworded == ("miss" if scope == "tenant" else "hit-semantic")
        same = layer(await post(stack, chat(ONE), **bearer("bob"), **bold, x_forebay_cache="exact"))
        assert same == ("miss" if scope == "tenant" else "hit-exact")


async def test_c8_c21_a_client_may_only_raise_the_threshold(stack: Stack) -> None:
    """C8, C21: raising it never adds a hit, lowering it has no effect; the score is a cosine."""
    assert layer(await post(stack, chat("one two three four five six seven eight nine ten"))) == "miss"
    asked = "one two three four five six seven eight nine other"
    debug = {"x-forebay-debug": "1", "x-forebay-cache": "on"}
    low = await post(stack, chat(asked), x_forebay_threshold="0.1", **debug)
    assert (layer(low), low.header("x-forebay-similarity")) == ("hit-semantic", "0.9000")
    results = [layer(await post(stack, chat(asked), x_forebay_threshold=str(t / 1000))) for t in range(880, 1000, 20)]
    assert results[:2] == ["hit-semantic", "hit-semantic"]
    assert results == sorted(results, key=lambda found: found != "hit-semantic")
    assert layer(await post(stack, chat(asked + " x y z"))) == "miss"


async def test_c8_a_threshold_that_is_none_is_refused(stack: Stack) -> None:
    """C8."""
    for value in ("1.5", "-1", "nan", "high"):
        answer = await post(stack, chat(ONE), x_forebay_threshold=value)
        assert (answer.status, answer.json["error"]["param"]) == (400, "x-forebay-threshold")


NOT_STORED = {
    "C11 no choices": Script(body=orjson.dumps({"id": "x", "object": "chat.completion", "choices": []})),
    "C11 no object": Script(body=b"[]"),
    "C11 no finish reason": Script(
        body=orjson.dumps({"object": "chat.completion", "choices": [{"index": 0, "message": {"content": "hi"}}]})
    ),
    "truncated": Script(tokens=9, finish_reason="length"),
    "filtered": Script(finish_reason="content_filter"),
    "empty": Script(text=""),
    "not JSON": Script(body=b"<html>", headers={"content-type": "text/html"}),
}


@pytest.mark.parametrize("script", [pytest.param(script, id=name) for name, script in NOT_STORED.items()])
async def test_c11_what_is_no_complete_answer_is_passed_on_and_not_stored(
    stack: Stack, engine: ScriptedEngine, script: Script
) -> None:
    """C11: also truncated, filtered and empty answers."""
    engine.next.append(script)
    first = await post(stack, chat(ONE))
    assert layer(first) == "miss"
    assert script.body is None or first.body == script.body
    for text in (OTHER, ONE):
        assert layer(await post(stack, chat(text))) != "hit-exact"
    assert len(engine.requests) >= 2
    assert engine.requests[1].json["messages"][0]["content"] == OTHER  # type: ignore[index,call-overload]


CUT = {
    "C15 cut": Script(tokens=9, cut_after_tokens=5),
    "C15 no [DONE]": Script(end="no_done"),
    "C15 no finish reason": Script(end="no_finish"),
    "error event": Script(tokens=9, error_event_after=5),
}


@pytest.mark.parametrize("script", [pytest.param(script, id=name) for name, script in CUT.items()])
async def test_c15_an_incomplete_stream_is_not_stored(stack: Stack, engine: ScriptedEngine, script: Script) -> None:
    """C15."""
    engine.next.append(script)
    await post(stack, chat(ONE, stream=True))
    reason = "error" if script.error_event_after else "incomplete_stream"
    assert await stack.metric("forebay_cache_writes_skipped_total", reason=reason) == 1
    assert layer(await post(stack, chat(ONE, stream=True))) == "miss"
    assert layer(await post(stack, chat(ONE, stream=True))) == "hit-exact"


async def test_an_answer_that_the_client_left_is_not_stored(stack: Stack, engine: ScriptedEngine) -> None:
    """C15's kind."""
    client = openai.AsyncOpenAI(base_url=stack.url + "/v1", api_key="k", max_retries=0)
    async with client:
        engine.next.append(Script(tokens=100, itl=0.05))
        asked: Any = {"model": "small", "messages": [{"role": "user", "content": ONE}], "stream": True}
        answer = await client.chat.completions.create(**asked)
        await anext(aiter(answer))
        await answer.close()
    await stack.idle()
    assert layer(await post(stack, chat(ONE))) == "miss"


async def test_c19_a_streamed_hit_is_logged_counted_and_marked_as_any_other(stack: Stack) -> None:
    """C19."""
    await post(stack, chat(ONE))
    plain = await post(stack, chat(ONE), x_request_id="plain")
    streamed = await post(stack, chat(ONE, stream=True), x_request_id="streamed")
    for answer in (plain, streamed):
        assert layer(answer) == "hit-exact"
        assert answer.header("x-forebay-tier") == "none"
        assert int(answer.header("age") or -1) >= 0
    assert plain.header("x-forebay-cache-id") == streamed.header("x-forebay-cache-id")
    lines = [await stack.line(name) for name in ("plain", "streamed")]
    shown = [{name: line[name] for name in ("event", "route", "status", "tier", "cache", "reason")} for line in lines]
    assert shown[0] == shown[1]
    assert lines[0].keys() == lines[1].keys()
    assert await stack.metric("forebay_requests_total", cache="hit-exact", tier="none", status="200") == 2
    assert await stack.metric("forebay_cache_lookups_total", layer="exact", result="hit") == 2


AGENT: dict[str, list[dict[str, Any]]] = {
    "tool result": [
        {"role": "user", "content": ONE},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "42"},
    ],
    "history": [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": ONE},
    ],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ONE}],
}


@pytest.mark.parametrize("kind", AGENT)
async def test_c24_only_the_last_user_text_may_differ(stack: Stack, engine: ScriptedEngine, kind: str) -> None:
    """C24: another tool result, history or system prompt is another question; exactly the same one still hits."""
    messages = AGENT[kind]
    changed = orjson.loads(orjson.dumps(messages))
    changed[-1 if kind == "tool result" else 0]["content"] += "!"
    found = [
        layer(await post(stack, {"model": "small", "messages": m})) for m in (messages, changed, messages, changed)
    ]
    assert found[2:] == ["hit-exact", "hit-exact"]
    assert "hit-semantic" not in found
    assert len(engine.requests) == 2


async def test_c24_requests_with_tools_have_no_semantic_layer(stack: Stack, engine: ScriptedEngine) -> None:
    """C24."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    await post(stack, chat(ONE, tools=tools))
    assert layer(await post(stack, chat(OTHER, tools=tools))) == "miss"
    assert layer(await post(stack, chat(ONE, tools=tools))) == "hit-exact"
    assert stack.encoder.texts == []


async def test_c25_an_embedder_that_hangs_costs_its_deadline_and_nothing_else(engine: ScriptedEngine) -> None:
    """C25: the request is served, the lookup counted as a timeout; when the embedder is back, so is the layer."""
    async with semantic(engine, cache={"semantic": {"enabled": True, "deadline": "50ms", "guard": False}}) as stack:
        gate = threading.Event()
        encode = stack.encoder.encode
        stack.encoder.encode = lambda texts: encode(texts) if gate.wait(20) else []  # type: ignore[method-assign]
        try:
            answers = await asyncio.gather(*(post(stack, chat(f"question {number}")) for number in range(20)))
        finally:
            gate.set()
        assert {answer.status for answer in answers} == {200}
        assert await stack.metric("forebay_cache_lookups_total", layer="semantic", result="timeout") == 20
        # The embedder is left alone for a while, then tried again.
        async with asyncio.timeout(20):
            for attempt in itertools.count():
                await post(stack, chat(ONE, seed=attempt))
                if layer(await post(stack, chat(OTHER, seed=attempt))) == "hit-semantic":
                    break
                await asyncio.sleep(0.1)


async def test_c27_a_miss_embeds_its_text_exactly_once(stack: Stack) -> None:
    """C27: for lookup, store and classifier together; an exact hit embeds nothing."""
    assert layer(await post(stack, chat(ONE))) == "miss"
    assert layer(await post(stack, chat(ONE))) == "hit-exact"
    assert stack.encoder.texts == [ONE]


async def test_c27_cache_and_classifier_share_one_embedding(engine: ScriptedEngine) -> None:
    """C27."""
    async with ScriptedEngine(FRONTIER) as frontier, gateway(tiers(engine, frontier=frontier), semantic=True) as stack:
        for text in (ONE, OTHER):
            assert (await post(stack, {**chat(text), "model": "auto"})).status == 200
        assert sorted(stack.encoder.texts) == sorted([ONE, OTHER])


async def test_c29_an_entry_named_by_its_hit_can_be_deleted(engine: ScriptedEngine) -> None:
    """C29: by an administrator only; the same request is then a miss, in both layers."""
    async with semantic(engine, **auth()) as stack:
        for _ in range(2):
            hit = await post(stack, chat(ONE), **bearer("alice"))
        entry = f"/admin/cache/entries/{hit.header('x-forebay-cache-id')}"
        for name, status in (("alice", 403), ("admin", 200), ("admin", 404)):
            assert (await stack.client.delete(entry, headers=bearer(name))).status_code == status
        assert layer(await post(stack, chat(OTHER), **bearer("alice"))) == "miss"
        assert layer(await post(stack, chat(ONE), **bearer("alice"))) == "hit-semantic"


@pytest.mark.parametrize(
    "headers",
    [
        {"cache_control": "no-cache"},
        {"x_forebay_cache": "refresh"},
        {"x_stainless_retry_count": "1"},
        {"cache_control": "max-age=0"},
    ],
    ids=str,
)
async def test_c31_a_client_that_wants_a_fresh_answer_gets_one_and_everyone_after_it(
    stack: Stack, engine: ScriptedEngine, headers: dict[str, str]
) -> None:
    """C31: lookup is skipped, and the new answer replaces the old one."""
    engine.next.append(Script(text="a bad answer"))
    assert layer(await post(stack, chat(ONE))) == "miss"
    assert layer(await post(stack, chat(ONE), x_stainless_retry_count="0")) == "hit-exact"
    fresh = await post(stack, chat(ONE), **headers)
    assert layer(fresh) in ("miss", "bypass")
    for text in (ONE, OTHER):
        after = await post(stack, chat(text))
        assert layer(after) in ("hit-exact", "hit-semantic")
        assert after.json["choices"][0]["message"]["content"] == fresh.json["choices"][0]["message"]["content"]
    assert len(engine.requests) == 2


@pytest.mark.parametrize("headers", [{"cache_control": "no-store"}, {"x_forebay_cache": "off"}], ids=str)
async def test_c31_no_store_neither_reads_nor_writes(
    stack: Stack, engine: ScriptedEngine, headers: dict[str, str]
) -> None:
    """C31's kind."""
    assert layer(await post(stack, chat(ONE), **headers)) == "bypass"
    assert layer(await post(stack, chat(ONE))) == "miss"
    assert layer(await post(stack, chat(ONE), **headers)) == "bypass"
    assert len(engine.requests) == 3


async def test_c31_the_official_clients_retry_is_not_served_the_same_answer_again(
    stack: Stack, engine: ScriptedEngine
) -> None:
    """C31 with the openai package, which retries by itself and says so."""
    engine.next.extend([Script(status=500), Script(text="good")])
    async with openai.AsyncOpenAI(base_url=stack.url + "/v1", api_key="k", max_retries=2) as client:
        asked: Any = {"model": "small", "messages": [{"role": "user", "content": ONE}]}
        answer = await client.chat.completions.create(**asked)
    assert answer.choices[0].message.content == "good"
    assert layer(await post(stack, chat(ONE))) == "hit-exact"
