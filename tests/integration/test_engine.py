"""The scripted engine is what it says it is: vLLM's dialect, and every nastiness exactly as scripted."""

import asyncio
import base64
import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest

from bench.engine import Orders, Script, ScriptedEngine, ToolCall

ASK: Any = [{"role": "user", "content": "What is 2+2?"}]


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine("m") as running:
        yield running


@pytest.fixture
async def client(engine: ScriptedEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=engine.url + "/v1", api_key="k", max_retries=0) as made:
        yield made


def chat(stream: bool = False, **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": ASK, "stream": stream, **fields}).encode()


async def raw(engine: ScriptedEngine, body: bytes, path: str = "/v1/chat/completions") -> bytes:
    """Everything the server sends until it closes; ConnectionResetError passes through."""
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    lines = ["host: x", "x-request-id: r", "connection: close", f"content-length: {len(body)}"]
    writer.write("\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode() + body)
    try:
        return await asyncio.wait_for(reader.read(), 5)
    finally:
        writer.close()


def dechunk(response: bytes) -> tuple[bytes, list[bytes], bool]:
    """Head, chunks (the last may be short), and whether the body ended as it should."""
    head, _, rest = response.partition(b"\r\n\r\n")
    chunks = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        if int(size, 16) == 0:
            return head, chunks, rest == b"\r\n"
        chunks.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return head, chunks, False


def data(body: bytes) -> list[Any]:
    events = [line.removeprefix(b"data: ") for line in body.split(b"\n\n") if line]
    return [event if event == b"[DONE]" else json.loads(event) for event in events]


async def test_answers_are_a_function_of_the_prompt(client: openai.AsyncOpenAI) -> None:
    async def ask(text: str) -> str:
        answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
        return answer.choices[0].message.content or ""

    first, again, other = await ask("one"), await ask("one"), await ask("two")
    assert first == again != other
    assert {len(char.encode()) for char in first} == {1, 2, 3, 4}


async def test_a_streamed_answer_says_what_the_plain_one_says(client: openai.AsyncOpenAI) -> None:
    plain = await client.chat.completions.create(model="m", messages=ASK)
    stream = await client.chat.completions.create(
        model="m",
        messages=ASK,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == plain.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-2:] == [None, "stop"]
    assert (chunks[-1].choices, chunks[-1].usage) == ([], plain.usage)


async def test_usage_chunk_only_when_asked(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
    assert all(chunk.choices and chunk.usage is None for chunk in [chunk async for chunk in stream])


async def test_limits_cut_the_answer_with_reason_length(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="m", messages=ASK, max_completion_tokens=3, max_tokens=9)
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 3)
    exact = await client.completions.create(model="m", prompt="p", max_tokens=50, extra_body={"ignore_eos": True})
    assert exact.usage is not None
    assert (exact.usage.completion_tokens, exact.choices[0].finish_reason) == (50, "length")


async def test_n_choices_logprobs_and_stop(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="m", messages=ASK, n=3, logprobs=True)
    texts = [choice.message.content for choice in answer.choices]
    assert len(set(texts)) == 3
    assert "".join(row.token for row in answer.choices[1].logprobs.content) == texts[1]
    stream = await client.chat.completions.create(model="m", messages=ASK, n=3, stream=True)
    streamed = ["", "", ""]
    async for chunk in stream:
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts
    stopped = await client.chat.completions.create(model="m", messages=ASK, stop=[" of"])
    assert stopped.choices[0].message.content == texts[0].split(" of")[0]
    assert stopped.choices[0].model_extra["stop_reason"] == " of"


async def test_tool_calls_and_reasoning_are_the_same_streamed_and_not(
    engine: ScriptedEngine, client: openai.AsyncOpenAI
) -> None:
    arguments = '{"city": "Köln", "days": [1, 2]}'
    engine.defaults = Script(reasoning="Let me think.", tool_calls=(ToolCall(name="weather", arguments=arguments),))
    plain = (await client.chat.completions.create(model="m", messages=ASK)).choices[0]
    assert plain.finish_reason == "tool_calls"
    assert plain.message.model_extra is not None
    assert plain.message.model_extra["reasoning"] == "Let me think."
    assert plain.message.tool_calls is not None
    stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
    pieces, name, reasoning = "", None, ""
    async for chunk in stream:
        reasoning += chunk.choices[0].delta.model_extra.get("reasoning") or ""
        for call in chunk.choices[0].delta.tool_calls or []:
            pieces, name = pieces + call.function.arguments, name or call.id
    assert (pieces, name, reasoning) == (arguments, plain.message.tool_calls[0].id, "Let me think.")


@pytest.mark.parametrize(
    ("fields", "status", "kind"),
    [
        ({"model": "other"}, 404, "NotFoundError"),
        ({"messages": []}, 400, "BadRequestError"),
        ({"max_tokens": 0}, 400, "BadRequestError"),
        ({"stream_options": {"include_usage": True}}, 400, "BadRequestError"),
        ({"script": {"nonsense": 1}}, 400, "BadRequestError"),
        ({"script": {"status": 503, "headers": {"Retry-After": "7"}}}, 503, "Service Unavailable"),
    ],
)
async def test_refusals_have_vllms_shape(
    engine: ScriptedEngine, fields: dict[str, Any], status: int, kind: str
) -> None:
    async with (
        aiohttp.ClientSession() as http,
        http.post(engine.url + "/v1/chat/completions", data=chat(**fields)) as response,
    ):
        error = (await response.json())["error"]
        assert (response.status, error["code"], error["type"]) == (status, status, kind)
        assert isinstance(error["message"], str)


async def test_scripts_come_from_header_body_message_queue_and_default(
    engine: ScriptedEngine, client: openai.AsyncOpenAI
) -> None:
    engine.defaults = Script(text="default")
    engine.next.append(Script(text="queued"))

    async def ask(**more: Any) -> str | None:
        answer = await client.chat.completions.create(model="m", **{"messages": ASK, **more})
        return answer.choices[0].message.content

    assert await ask(extra_headers={"x-script": '{"text": "header"}'}) == "header"
    assert await ask(extra_body={"script": {"text": "body"}}) == "body"
    assert await ask(messages=[{"role": "user", "content": "x", "script": {"text": "message"}}]) == "message"
    assert [await ask(), await ask()] == ["queued", "default"]


async def test_models_health_version_and_unknown_routes(engine: ScriptedEngine) -> None:
    async with aiohttp.ClientSession(engine.url) as http:
        async with http.get("/v1/models") as response:
            assert [row["id"] for row in (await response.json())["data"]] == ["m"]
        async with http.get("/health") as response:
            assert (response.status, await response.read()) == (200, b"")
        engine.obey(Orders(health=503))
        async with http.get("/health") as response:
            assert response.status == 503
        async with http.get("/version") as response:
            assert await response.json() == {"version": "0.29.0"}
        async with http.get("/nothing") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (404, 404)
    assert [probe.path for probe in engine.probes] == ["/v1/models", "/health", "/health"]


async def test_other_routes_answer(client: openai.AsyncOpenAI, engine: ScriptedEngine) -> None:
    vectors = await client.embeddings.create(model="m", input=["a", "b", "a"], encoding_format="float")
    assert vectors.data[0].embedding == vectors.data[2].embedding != vectors.data[1].embedding
    plain = await client.responses.create(model="m", input="hello")
    events = [event async for event in await client.responses.create(model="m", input="hello", stream=True)]
    assert events[0].type == "response.created"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta").strip() == (
        plain.output_text
    )
    async with aiohttp.ClientSession() as http, http.post(engine.url + "/v1/score", json={"a": 1}) as response:
        assert await response.json() == {"object": "echo", "path": "/v1/score", "body": {"a": 1}}
    async with aiohttp.ClientSession() as http, http.post(engine.url + "/v1/unheard-of", json={"a": 1}) as response:
        assert (response.status, (await response.json())["error"]["message"]) == (404, "Not Found")


async def test_a_required_key_is_required_of_v1_only() -> None:
    async with ScriptedEngine("m", api_key="s3cret") as engine, aiohttp.ClientSession(engine.url) as http:
        async with http.get("/v1/models") as response:
            assert (response.status, await response.json()) == (401, {"error": "Unauthorized"})
        async with http.get("/health") as response:
            assert response.status == 200
        async with http.get("/v1/models", headers={"authorization": "Bearer s3cret"}) as response:
            assert response.status == 200


async def test_metrics_count_what_ran_and_what_was_aborted(engine: ScriptedEngine) -> None:
    async with aiohttp.ClientSession(engine.url) as http:
        async with http.post("/v1/chat/completions", data=chat(max_tokens=3)) as response:
            assert response.status == 200
        async with http.post(
            "/v1/chat/completions", data=chat(stream=True, script={"tokens": 9, "itl": 60})
        ) as response:
            await response.content.readuntil(b"\n\n")
            async with http.get("/metrics") as metrics:
                assert 'vllm:num_requests_running{engine="0",model_name="m"} 1' in await metrics.text()
            response.close()
        await engine.until(lambda: engine.requests[-1].state == "aborted")
        async with http.get("/metrics") as metrics:
            text = await metrics.text()
    assert 'vllm:num_requests_running{engine="0",model_name="m"} 0' in text
    assert 'finished_reason="abort",model_name="m"} 1' in text
    assert 'finished_reason="length",model_name="m"} 1' in text
    assert 'http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"} 2' in text


async def test_a_client_that_leaves_aborts_a_plain_request_too(engine: ScriptedEngine) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    body = chat(script={"hang": True})
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    await engine.until(lambda: bool(engine.requests) and engine.requests[-1].state == "running")
    writer.close()
    await engine.until(lambda: engine.requests[-1].state == "aborted")
    assert (engine.running, engine.requests[-1].status) == (0, None)


async def test_cut_within_a_chunk_leaves_the_promised_bytes_out(engine: ScriptedEngine) -> None:
    _, whole, ended = dechunk(await raw(engine, chat(stream=True)))
    assert ended
    place = b"".join(whole).index("🦫".encode()) + 2
    _, chunks, ended = dechunk(await raw(engine, chat(stream=True, script={"cut_after_bytes": place})))
    assert not ended
    body = b"".join(chunks)
    assert body == b"".join(whole)[:place]
    with pytest.raises(UnicodeDecodeError):
        body.decode()


async def test_cut_after_tokens_falls_between_chunks(engine: ScriptedEngine) -> None:
    _, chunks, ended = dechunk(await raw(engine, chat(stream=True, script={"cut_after_tokens": 2})))
    assert not ended
    assert [event["choices"][0]["delta"].get("content") for event in data(b"".join(chunks))] == [
        "",
        "Answer",
        " " + (data(b"".join(chunks))[2]["choices"][0]["delta"]["content"].strip()),
    ]
    assert engine.requests[-1].state == "cut"


async def test_reset_is_an_rst(engine: ScriptedEngine) -> None:
    with pytest.raises(ConnectionResetError):
        await raw(engine, chat(script={"cut_after_bytes": 0, "cut": "reset"}))


async def test_stall_and_shut_keep_the_connection(engine: ScriptedEngine) -> None:
    for how, ends in (("stall", False), ("shut", True)):
        reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
        body = chat(stream=True, script={"cut_after_tokens": 1, "cut": how})
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await reader.readuntil(b'"Answer"')
        await engine.until(lambda: engine.requests[-1].state == "cut")
        assert engine.requests[-1].open
        if ends:
            await reader.read()
            assert engine.requests[-1].open
        writer.close()
        await engine.until(lambda: not engine.requests[-1].open)
        assert engine.requests[-1].state == "cut"


@pytest.mark.parametrize("pieces", [[1], [3, 1, 7], [4096]])
async def test_pieces_change_the_chunks_and_not_the_bytes(engine: ScriptedEngine, pieces: list[int]) -> None:
    _, whole, _ = dechunk(await raw(engine, chat(stream=True)))
    _, chunks, ended = dechunk(await raw(engine, chat(stream=True, script={"pieces": pieces})))
    assert ended
    assert b"".join(chunks) == b"".join(whole)
    assert [len(chunk) for chunk in chunks[:-1]] == [pieces[at % len(pieces)] for at in range(len(chunks) - 1)]


async def test_framings_and_gzip_carry_the_same_body(engine: ScriptedEngine) -> None:
    headers = {"x-request-id": "r", "accept-encoding": "identity"}
    bodies = set()
    async with aiohttp.ClientSession(engine.url, auto_decompress=False, headers=headers) as http:
        for framing in ("chunked", "length", "close"):
            for zipped in (False, True):
                script = {"framing": framing, "gzip": zipped}
                async with http.post("/v1/chat/completions", data=chat(stream=True, script=script)) as response:
                    assert ("content-length" in response.headers) == (framing == "length")
                    assert response.headers.get("content-encoding") == ("gzip" if zipped else None)
                    body = await response.read()
                    bodies.add(gzip.decompress(body) if zipped else body)
    assert len(bodies) == 1


async def test_error_events_and_unfinished_streams(engine: ScriptedEngine) -> None:
    async def events(script: dict[str, Any]) -> list[Any]:
        return data(b"".join(dechunk(await raw(engine, chat(stream=True, script=script)))[1]))

    first = await events({"error_event_after": 0})
    assert first == [
        {"error": {"message": "scripted error", "type": "InternalServerError", "param": None, "code": 500}},
        b"[DONE]",
    ]
    later = await events({"error_event_after": 2})
    assert len(later) == 5
    assert "error" in later[3]
    assert (await events({"end": "no_done"}))[-1]["choices"][0]["finish_reason"] == "stop"
    unfinished = await events({"end": "no_finish"})
    assert all(event["choices"][0]["finish_reason"] is None for event in unfinished)


async def test_a_scripted_body_goes_out_byte_for_byte(engine: ScriptedEngine) -> None:
    wanted = b"data: \xf0\x9f\x00 not json"
    response = await raw(engine, chat(stream=True, script={"body": base64.b64encode(wanted).decode()}))
    assert b"".join(dechunk(response)[1]) == wanted
    response = await raw(engine, chat(script={"body": base64.b64encode(b"{}").decode(), "status": 201}))
    assert response.startswith(b"HTTP/1.1 201 Created\r\n")
    assert response.endswith(b"\r\n\r\n{}")


async def test_requests_past_the_capacity_wait_in_line() -> None:
    async with ScriptedEngine("m", max_running=1) as engine, aiohttp.ClientSession(engine.url) as http:
        first = await http.post("/v1/chat/completions", data=chat(stream=True, script={"tokens": 2, "itl": 60}))
        left = asyncio.create_task(http.post("/v1/chat/completions", data=chat()))
        await engine.until(lambda: engine.waiting == 1)
        second = asyncio.create_task(http.post("/v1/chat/completions", data=chat()))
        await engine.until(lambda: engine.waiting == 2)
        left.cancel()
        await engine.until(lambda: engine.waiting == 1)
        first.close()
        assert (await second).status == 200
        assert [seen.state for seen in engine.requests] == ["aborted", "aborted", "done"]
        assert (engine.running, engine.waiting) == (0, 0)


async def test_a_stopped_engine_refuses_and_comes_back_on_its_port(engine: ScriptedEngine) -> None:
    async with aiohttp.ClientSession(engine.url) as http:
        await engine.stop_listening()
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get("/health")
        await engine.listen()
        async with http.get("/health") as response:
            assert response.status == 200


async def test_pipelined_requests_are_answered_in_order(engine: ScriptedEngine) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    writer.write(
        b"GET /version HTTP/1.1\r\nhost: x\r\n\r\nGET /nothing HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    )
    both = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert both.index(b"200 OK") < both.index(b"404 Not Found")


def test_the_command_serves_obeys_and_stops() -> None:
    command = [sys.executable, "-m", "bench.engine", "--model", "a", "--model", "b", "--script", '{"text": "hi"}']
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        started = json.loads(process.stdout.readline())
        assert started["models"] == ["a", "b"]
        client = openai.OpenAI(base_url=started["url"] + "/v1", api_key="k", max_retries=0)
        with client:
            asked: Any = {"model": "b", "messages": ASK}
            assert client.chat.completions.create(**asked).choices[0].message.content == "hi"
            orders = Orders(defaults=Script(text="yo")).model_dump(mode="json", exclude_defaults=True)
            state: Any = client.post("../control", cast_to=object, body=orders)
            assert [row["state"] for row in state["requests"]] == ["done"]
            assert client.chat.completions.create(**asked).choices[0].message.content == "yo"
        os.kill(started["pid"], signal.SIGTERM)
        assert process.wait(10) == 0
