"""The official client against the gateway: chat and completions, streamed and not, misses and hits."""

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio

from bench.engine import Script, ScriptedEngine
from tests.integration.stack import FRONTIER, SMALL, Stack, gateway, tiers

ASK = [{"role": "user", "content": "What is the capital of France?"}]


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(SMALL) as running:
        yield running


@pytest_asyncio.fixture
async def stack(engine: ScriptedEngine) -> AsyncIterator[Stack]:
    async with gateway(tiers(engine)) as running:
        yield running


@pytest_asyncio.fixture
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="sk-client", max_retries=0) as made:
        yield made


async def test_a_chat_answer_is_the_engines_and_the_same_question_is_an_exact_hit(
    client: openai.AsyncOpenAI, engine: ScriptedEngine, stack: Stack
) -> None:
    first = await client.chat.completions.with_raw_response.create(model="small", messages=ASK)
    again = await client.chat.completions.with_raw_response.create(model=SMALL, messages=ASK)
    assert (first.headers["x-forebay-cache"], first.headers["x-forebay-tier"]) == ("miss", "small")
    assert (again.headers["x-forebay-cache"], again.headers["x-forebay-tier"]) == ("hit-exact", "none")
    assert again.headers["age"] == "0"
    assert again.headers["x-forebay-cache-id"]
    assert first.parse() == again.parse()
    assert len(engine.requests) == 1
    assert engine.requests[0].json["model"] == SMALL
    assert await stack.metric("forebay_saved_tokens_total", source="exact") == first.parse().usage.total_tokens


async def test_a_streamed_chat_is_stored_and_replayed_to_both_kinds_of_client(
    client: openai.AsyncOpenAI, engine: ScriptedEngine
) -> None:
    stream = await client.chat.completions.create(model="small", messages=ASK, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    stream = await client.chat.completions.create(
        model="small", messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    assert stream.response.headers["x-forebay-cache"] == "hit-exact"
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    whole = await client.chat.completions.create(model="small", messages=ASK)
    assert whole.choices[0].message.content == text
    assert len(engine.requests) == 1


async def test_completions_stream_and_not(client: openai.AsyncOpenAI, engine: ScriptedEngine) -> None:
    whole = await client.completions.create(model="small", prompt="Once upon a time")
    stream = await client.completions.create(model="small", prompt="Once upon a time", stream=True)
    assert stream.response.headers["x-forebay-cache"] == "hit-exact"
    assert "".join([chunk.choices[0].text async for chunk in stream]) == whole.choices[0].text
    stream = await client.completions.create(model="small", prompt="Another time", stream=True)
    assert stream.response.headers["x-forebay-cache"] == "miss"
    assert "".join([chunk.choices[0].text async for chunk in stream]).startswith("Answer")


def sync_answers(url: str) -> tuple[str, str, str]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="sk-client", max_retries=0) as client:
        whole = client.chat.completions.create(model="auto", messages=[{"role": "user", "content": "one"}])
        with client.chat.completions.create(model="auto", messages=ASK, stream=True) as stream:
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        text = client.completions.create(model="auto", prompt="two")
        return whole.choices[0].message.content or "", streamed, text.choices[0].text


async def test_the_synchronous_client_works_too(stack: Stack) -> None:
    answers = await asyncio.to_thread(sync_answers, stack.url)
    assert all(answer.startswith("Answer") for answer in answers)


async def test_models_are_every_name_a_client_may_ask_for(client: openai.AsyncOpenAI) -> None:
    assert {card.id async for card in client.models.list()} == {"auto", "small", SMALL}
    assert (await client.models.retrieve(SMALL)).id == SMALL
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("nothing")
    assert caught.value.code == "model_not_found"


async def test_an_unknown_model_is_a_404_that_names_the_parameter(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="gpt-9", messages=ASK)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_logprobs_tools_and_several_choices_pass_unchanged(
    client: openai.AsyncOpenAI, engine: ScriptedEngine
) -> None:
    answer = await client.chat.completions.create(
        model="small", messages=ASK, n=2, logprobs=True, top_logprobs=1, seed=7, extra_body={"top_k": 3}
    )
    assert len(answer.choices) == 2
    assert answer.choices[0].logprobs is not None
    seen = engine.requests[0].json
    assert (seen["n"], seen["seed"], seen["top_k"], seen["top_logprobs"]) == (2, 7, 3, 1)


async def test_both_tiers_are_reached_by_name_and_by_header(engine: ScriptedEngine) -> None:
    async with ScriptedEngine(FRONTIER) as big, gateway(tiers(engine, frontier=big)) as stack:
        client = openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="x", max_retries=0)
        async with client:
            for model, header, tier in (
                ("frontier", None, "frontier"),
                (FRONTIER, None, "frontier"),
                ("auto", "frontier", "frontier"),
                ("small", "small", "small"),
            ):
                headers = {"x-forebay-tier": header} if header else {}
                answer = await client.chat.completions.with_raw_response.create(
                    model=model,
                    messages=ASK,
                    extra_headers={**headers, "x-forebay-cache": "off"},
                )
                assert (answer.headers["x-forebay-tier"], answer.headers["x-forebay-cache"]) == (tier, "bypass")
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(
                    model="small", messages=ASK, extra_headers={"x-forebay-tier": "frontier"}
                )
        assert [request.json["model"] for request in big.requests] == [FRONTIER] * 3


async def test_an_engine_error_reaches_the_client_as_the_engine_said_it(
    client: openai.AsyncOpenAI, engine: ScriptedEngine
) -> None:
    engine.next.append(
        Script(
            status=400,
            error={"error": {"message": "too long", "type": "BadRequestError", "param": "messages", "code": 400}},
        )
    )
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="small", messages=ASK)
    assert caught.value.body == {"message": "too long", "type": "BadRequestError", "param": "messages", "code": 400}
