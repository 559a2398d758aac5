"""Response cache, C13, C14, C17, C18: any stored answer is replayed to any kind of client."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from bench.engine import Script, ScriptedEngine, ToolCall
from tests.integration.stack import SMALL, Stack, chat, gateway, tiers
from tests.integration.wire import Answer, ask

CHAT = "/v1/chat/completions"
USAGE = {"include_usage": True}
ONE = "how do I reset my password"


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(SMALL) as running:
        yield running


@pytest.fixture
async def stack(engine: ScriptedEngine) -> AsyncIterator[Stack]:
    async with gateway(tiers(engine)) as running:
        yield running


async def post(stack: Stack, body: dict[str, Any], **headers: str) -> Answer:
    return await ask(stack.url, CHAT, body, **headers)


def layer(answer: Answer) -> str | None:
    assert answer.status == 200
    return answer.header("x-forebay-cache")


@pytest.mark.parametrize("stored", [False, True], ids=["JSON stored", "SSE stored"])
@pytest.mark.parametrize(
    "script",
    [
        Script(),
        Script(reasoning="First I think. 🦫", text="Then I say it."),
        Script(
            tool_calls=(
                ToolCall(name="a", arguments='{"x":  1, "é": "\\u00e9"}'),
                ToolCall(name="b", arguments="not json", id="call-7"),
            )
        ),
    ],
    ids=["text", "reasoning", "tool calls"],
)
@pytest.mark.parametrize("n", [1, 3])
async def test_c13_c14_c17_c18_any_stored_answer_is_replayed_to_any_client(
    stack: Stack, engine: ScriptedEngine, stored: bool, script: Script, n: int
) -> None:
    """C13, C14, C17, C18: JSON and SSE in, JSON and SSE out; ids, names and argument bytes kept; usage as asked."""
    engine.next.append(script)
    fields: dict[str, Any] = {"n": n, "logprobs": True}
    first = await post(stack, chat(ONE, stream=stored, **fields))
    whole = await post(stack, chat(ONE, **fields))
    streamed = await post(stack, chat(ONE, stream=True, **fields))
    metered = await post(stack, chat(ONE, stream=True, stream_options=USAGE, **fields))
    assert [layer(answer) for answer in (first, whole, streamed, metered)] == ["miss", *["hit-exact"] * 3]
    assert len(engine.requests) == 1
    reference = (
        await ask(engine.url, CHAT, {**chat(ONE, script=script.model_dump(mode="json"), **fields), "model": SMALL})
    ).json
    for said, wanted in zip(whole.json["choices"], reference["choices"], strict=True):
        assert said["finish_reason"] == wanted["finish_reason"]
        for name in ("content", "reasoning", "tool_calls"):
            assert (said["message"].get(name) or None) == (wanted["message"].get(name) or None)
        assert ((said["logprobs"] or {}).get("content") or None) == (wanted["logprobs"]["content"] or None)
    assert whole.json["usage"]["completion_tokens"] == reference["usage"]["completion_tokens"]
    check_stream(streamed, whole.json, usage=False)
    check_stream(metered, whole.json, usage=True)


def check_stream(answer: Answer, whole: dict[str, Any], *, usage: bool) -> None:
    """A replayed stream is what an engine would have sent: role, content, finish, usage where asked, [DONE]."""
    assert (answer.header("content-type") or "").startswith("text/event-stream")
    *chunks, done = answer.events
    assert done == b"[DONE]"
    if usage:
        last = chunks.pop()
        assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert all(chunk.get("usage") is None for chunk in chunks)
    assert all(chunk["object"] == "chat.completion.chunk" and chunk["choices"] for chunk in chunks)
    for choice in whole["choices"]:
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert parts[0]["delta"]["role"] == "assistant"
        assert [part["finish_reason"] for part in parts] == [*[None] * (len(parts) - 1), choice["finish_reason"]]
        message = choice["message"]
        said = "".join(part["delta"].get("content") or "" for part in parts)
        assert said == (message.get("content") or "")
        calls = [call for part in parts for call in part["delta"].get("tool_calls") or ()]
        assert [call["index"] for call in calls] == list(range(len(calls)))
        assert [{k: v for k, v in call.items() if k != "index"} for call in calls] == (message.get("tool_calls") or [])


async def test_c13_the_official_client_reads_a_replayed_stream(stack: Stack) -> None:
    """C13, C18 with the openai package."""
    async with openai.AsyncOpenAI(base_url=stack.url + "/v1", api_key="k", max_retries=0) as client:
        asked: Any = {"model": "small", "messages": [{"role": "user", "content": ONE}]}
        plain = await client.chat.completions.create(**asked)
        raw = await client.chat.completions.with_raw_response.create(**asked, stream=True, stream_options=USAGE)
        assert raw.headers["x-forebay-cache"] == "hit-exact"
        chunks = [chunk async for chunk in raw.parse()]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == plain.choices[0].message.content
    assert (chunks[-1].choices, chunks[-1].usage) == ([], plain.usage)


@pytest.mark.parametrize("stored", [False, True], ids=["JSON stored", "SSE stored"])
async def test_c13_c14_text_completions_are_replayed_too(stack: Stack, engine: ScriptedEngine, stored: bool) -> None:
    """C13, C14 for /v1/completions."""
    body = {"model": "small", "prompt": "once upon a time", "n": 2, "logprobs": 1}
    path = "/v1/completions"
    first = await ask(stack.url, path, {**body, "stream": stored})
    whole = await ask(stack.url, path, body)
    streamed = await ask(stack.url, path, {**body, "stream": True, "stream_options": USAGE})
    assert [layer(answer) for answer in (first, whole, streamed)] == ["miss", "hit-exact", "hit-exact"]
    reference = (await ask(engine.url, path, {**body, "model": SMALL})).json
    *chunks, usage, done = streamed.events
    assert (usage["choices"], usage["usage"], done) == ([], whole.json["usage"], b"[DONE]")
    for at in (0, 1):
        assert whole.json["choices"][at]["text"] == reference["choices"][at]["text"]
        assert whole.json["choices"][at]["logprobs"] == reference["choices"][at]["logprobs"]
        parts = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == at]
        assert "".join(part["text"] for part in parts) == reference["choices"][at]["text"]
        assert parts[-1]["finish_reason"] == "stop"
