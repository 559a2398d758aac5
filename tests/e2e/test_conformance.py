"""The official client and two load generators of others, through the gateway to real vLLM.

One `forebay up` of its own: one tier that may call tools. GuideLLM runs where FOREBAY_GUIDELLM names its command; it
brings a torch of its own, so it has an environment of its own (`python -m venv V && V/bin/pip install guidellm`).
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
import yaml
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from deploy.weights import PACKAGED, ensure
from tests.e2e.conftest import Home

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

MODEL = "smollm2-135m"
ASK: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
            "required": ["unit"],
            "additionalProperties": False,
        },
    },
}
CHOICE: Any = {"type": "function", "function": {"name": "weather"}}
# Never from the cache: what is tested here is the way to the engine and back.
FRESH = {"x-forebay-cache": "off"}


@pytest.fixture(scope="module")
def url(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The gateway's address, without /v1, while its tier runs."""
    folder = tmp_path_factory.mktemp("conformance")
    tier = {
        "model": MODEL,
        "source": PACKAGED,
        "engine": {
            "logits_processors": ["deploy.brevity:Brevity"],
            "additional_config": {"brevity": 32},
            "enable_auto_tool_choice": True,
            "tool_call_parser": "hermes",
        },
        "capabilities": ["text", "tools", "json"],
        "queue": {"max_inflight": 8, "max_waiting": 256, "max_wait": "5m"},
        "timeout": {"first_token": "5m", "idle": "2m"},
    }
    path = folder / "forebay.yaml"
    path.write_text(yaml.safe_dump({"tiers": {"small": tier}}))
    own = Home(folder)
    up = own.forebay("up", "--config", str(path), "--detach", "--json")
    try:
        assert up.returncode == 0, up.stderr
        yield json.loads(up.stdout)["url"]
    finally:
        own.forebay("down")


@pytest.fixture
def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=600, default_headers=FRESH)


def test_models_are_listed_and_found(client: OpenAI) -> None:
    assert {"auto", "small", MODEL} <= {model.id for model in client.models.list()}
    assert client.models.retrieve(MODEL).id == MODEL


def test_chat_and_several_choices(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="small", messages=ASK, n=2, temperature=0.8, seed=1, max_tokens=40)
    assert whole.model == MODEL
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert all(choice.finish_reason in ("stop", "length") and choice.message.content for choice in whole.choices)
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


@pytest.mark.parametrize("usage", [True, False])
def test_a_stream_has_one_end_and_usage_only_where_it_was_asked_for(client: OpenAI, usage: bool) -> None:
    options: Any = {"stream_options": {"include_usage": True}} if usage else {}
    chunks = list(client.chat.completions.create(model=MODEL, messages=ASK, stream=True, **options))
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert reasons == ["stop"]
    assert [bool(chunk.usage) for chunk in chunks] == [False] * (len(chunks) - 1) + [usage]
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def test_the_clients_own_accumulator_reads_the_stream(client: OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=ASK) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content
    assert final.choices[0].finish_reason == "stop"


def test_a_stored_answer_is_the_same_to_the_client(url: str) -> None:
    cached = OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=600)
    first = cached.chat.completions.create(model=MODEL, messages=ASK)
    again = cached.chat.completions.with_raw_response.create(model=MODEL, messages=ASK)
    assert again.headers["x-forebay-cache"] == "hit-exact"
    assert again.parse() == first


def test_a_tool_is_called_and_its_result_answered(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=ASK, tools=[WEATHER], tool_choice=CHOICE)
    (call,) = whole.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["unit"] in ("celsius", "fahrenheit")
    asked = client.chat.completions.create(
        model=MODEL,
        messages=[
            *ASK,
            {"role": "assistant", "content": "", "tool_calls": [call.model_dump()]},  # type: ignore[list-item,misc]
            {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"},
        ],
    )
    assert asked.choices[0].message.content


def test_a_streamed_tool_call_adds_up_to_valid_arguments(client: OpenAI) -> None:
    stream = client.chat.completions.create(model=MODEL, messages=ASK, tools=[WEATHER], tool_choice=CHOICE, stream=True)
    calls = [call for chunk in stream for choice in chunk.choices for call in choice.delta.tool_calls or []]
    assert [call.function.name for call in calls if call.function and call.function.name] == ["weather"]
    arguments = "".join(call.function.arguments or "" for call in calls if call.function)
    assert json.loads(arguments)["unit"] in ("celsius", "fahrenheit")


class Age(BaseModel):
    """What the engine is to fill in."""

    unit: Literal["years", "months"]
    known: bool


def test_structured_output_is_parsed_by_the_client(client: OpenAI) -> None:
    parsed = client.chat.completions.parse(model=MODEL, messages=ASK, response_format=Age, max_tokens=60)
    assert isinstance(parsed.choices[0].message.parsed, Age)


def test_log_probabilities_come_for_every_token(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=ASK, logprobs=True, top_logprobs=2)
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert whole.usage is not None
    # The end of the sequence is a token without text.
    assert 0 <= whole.usage.completion_tokens - len(logprobs.content) <= 1
    assert all(token.logprob <= 0 and len(token.top_logprobs) >= 2 for token in logprobs.content)
    stream = client.chat.completions.create(model=MODEL, messages=ASK, logprobs=True, top_logprobs=1, stream=True)
    rows = [choice.logprobs for chunk in stream for choice in chunk.choices if choice.logprobs]
    assert sum(len(row.content or ()) for row in rows) == len(logprobs.content)
    text = client.completions.create(model=MODEL, prompt="Paris is", logprobs=1, max_tokens=4)
    assert text.choices[0].logprobs is not None
    assert len(text.choices[0].logprobs.tokens or ()) == 4


def test_text_completions_and_responses(client: OpenAI) -> None:
    text = client.completions.create(model="small", prompt=["One, two,", "A, b,"], max_tokens=5)
    assert [choice.index for choice in text.choices] == [0, 1]
    chunks = list(client.completions.create(model=MODEL, prompt="One, two,", max_tokens=5, stream=True))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == text.choices[0].text
    answer = client.responses.create(model=MODEL, input="Say hello.", max_output_tokens=16)
    assert answer.output
    types = [event.type for event in client.responses.create(model=MODEL, input="Say hello.", stream=True)]
    assert types[0] == "response.created"
    assert types[-1] == "response.completed"


async def test_the_async_client_gets_many_answers_at_once(url: str) -> None:
    async with AsyncOpenAI(
        base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=600, default_headers=FRESH
    ) as client:

        async def streamed() -> str:
            stream = await client.chat.completions.create(model=MODEL, messages=ASK, stream=True)
            return "".join([choice.delta.content or "" async for chunk in stream for choice in chunk.choices])

        async def whole() -> str:
            answer = await client.chat.completions.create(model=MODEL, messages=ASK)
            return answer.choices[0].message.content or ""

        texts = await asyncio.gather(*(streamed() for _ in range(6)), *(whole() for _ in range(6)))
    # Greedy decoding: a question has one answer, whichever way it comes.
    assert len(set(texts)) == 1


@pytest.mark.parametrize(
    ("fields", "error", "status"),
    [
        ({"model": "nobody"}, openai.NotFoundError, 404),
        ({"temperature": -1}, openai.BadRequestError, 400),
        ({"messages": []}, openai.BadRequestError, 400),
        ({"messages": [{"role": "user", "content": "long " * 20_000}]}, openai.BadRequestError, 400),
        ({"max_tokens": 10_000_000}, openai.BadRequestError, 400),
        ({"extra_headers": {"x-forebay-tier": "frontier"}}, openai.BadRequestError, 400),
        ({"extra_body": {"kv_transfer_params": {"do_remote_prefill": True}}}, openai.BadRequestError, 400),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_clients_own_classes(
    client: OpenAI, fields: dict[str, Any], error: type[openai.APIStatusError], status: int, stream: bool
) -> None:
    with pytest.raises(error) as caught:
        client.chat.completions.create(**{"model": MODEL, "messages": ASK, "stream": stream, **fields})
    assert caught.value.status_code == status
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["message"]
    assert {"message", "type", "param", "code"} <= caught.value.body.keys()


def test_what_leaves_in_the_middle_and_what_is_too_slow_ends_as_the_client_expects(client: OpenAI) -> None:
    with client.chat.completions.create(model=MODEL, messages=ASK, stream=True) as stream:
        next(iter(stream))
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.001).chat.completions.create(model=MODEL, messages=ASK)
    # The gateway and the engine are as well as before.
    assert client.chat.completions.create(model=MODEL, messages=ASK).choices[0].message.content


def test_vllm_bench_serve_runs_without_errors(url: str, tmp_path: Path) -> None:
    tokenizer = ensure(lambda _: None)
    for backend, endpoint in (("openai-chat", "/v1/chat/completions"), ("openai", "/v1/completions")):
        words = ["bench", "serve", "--backend", backend, "--base-url", url, "--endpoint", endpoint, "--model", MODEL]
        words += ["--tokenizer", str(tokenizer), "--dataset-name", "random", "--random-input-len", "40"]
        words += ["--random-output-len", "12", "--num-prompts", "24", "--max-concurrency", "6", "--disable-tqdm"]
        words += ["--save-result", "--result-dir", str(tmp_path), "--result-filename", f"{backend}.json"]
        done = subprocess.run(
            [str(Path(sys.executable).with_name("vllm")), *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        result = json.loads((tmp_path / f"{backend}.json").read_text())
        assert (result["completed"], result.get("failed", 0)) == (24, 0), done.stdout
        assert result["mean_ttft_ms"] > 0


def test_guidellm_runs_without_errors(url: str, tmp_path: Path) -> None:
    command = os.environ.get("FOREBAY_GUIDELLM") or shutil.which("guidellm")
    if command is None:
        pytest.skip("no guidellm: FOREBAY_GUIDELLM names its command")
    tokenizer = ensure(lambda _: None)
    output = tmp_path / "guidellm.json"
    words = ["run", "--backend", f"kind=openai_http,target={url},model={MODEL}", "--disable-console"]
    words += ["--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=16"]
    words += ["--tokenizer", f"kind=huggingface_auto,model={tokenizer}", "--output", f"kind=json,path={output}"]
    words += ["--data", "kind=synthetic_text,prompt_tokens=40,output_tokens=12"]
    done = subprocess.run([command, *words], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (benchmark,) = json.loads(output.read_text())["benchmarks"]
    made = benchmark["scheduler_metrics"]["requests_made"]
    assert (made["successful"], made["errored"], made["incomplete"]) == (16, 0, 0)
