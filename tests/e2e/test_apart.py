"""Real vLLM through the gateway: a tier whose prefill and decode are apart, beside one engine that does both.

Both have the same random weights (tests/e2e/tiny.py), so the one's answers are the other's. Blocks go over NIXL.
"""

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Home
from tests.e2e.live import Live
from tests.e2e.tiny import WORDS, tiny_adapter, tiny_model
from tests.e2e.waiting import until

# Five engines one after the other on two cores: minutes.
pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(1800)]

APART, WHOLE, ADAPTER = "apart", "whole", "tuned"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
# Tokens of a block, of the least prompt that is prefilled apart, and of a step of the whole engine.
BLOCK, LEAST, STEP = 32, 64, 256
SOURCES = "vllm_prompt_tokens_by_source_total"
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["unit"],
            "additionalProperties": False,
        },
    },
}


def configuration(weights: str, adapter: str) -> dict[str, Any]:
    common = {"source": weights, "timeout": {"first_token": "5m", "idle": "5m"}}
    engine = {"block_size": BLOCK, "kv_cache_memory_bytes": 128 * 1024**2}
    speculation = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    return {
        "cache": {"exact": {"enabled": False}, "semantic": {"enabled": False}},
        "tiers": {
            "small": {
                **common,
                "model": APART,
                "engine": {**engine, "enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
                "disaggregation": {"min_prompt_tokens": LEAST, "prefill_deadline": "30s"},
            },
            "frontier": {
                **common,
                "model": WHOLE,
                "adapters": {ADAPTER: adapter},
                "engine": {
                    **engine,
                    "max_num_batched_tokens": STEP,
                    "max_lora_rank": 8,
                    "speculative_config": speculation,
                },
            },
        },
    }


@pytest.fixture(scope="module")
def live(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("apart")
    weights, adapter = tiny_model(folder / "weights"), tiny_adapter(folder / "adapter")
    with Live.started(folder, configuration(str(weights), str(adapter))) as live:
        yield live


def words(count: int, seed: str) -> str:
    """Words that no other seed begins with; a word is about two tokens."""
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def said(seed: str, count: int = 60) -> list[dict[str, str]]:
    return [{"role": "user", "content": words(count, seed)}]


@dataclass(frozen=True)
class Tokens:
    """Prompt tokens by where they came from: the prefill group's and the decode group's."""

    prefill_computed: float
    decode_computed: float
    decode_read: float

    @classmethod
    def of(cls, live: Live) -> "Tokens":
        samples = live.samples(SOURCES, model_name=APART)
        reading = {s.labels["ReplicaId"] for s in samples if s.labels["source"] == "external_kv_transfer"}

        def count(source: str, *, decode: bool) -> float:
            return sum(
                s.value
                for s in samples
                if s.labels["source"] == source and (s.labels["ReplicaId"] in reading) == decode
            )

        return cls(
            count("local_compute", decode=False),
            count("local_compute", decode=True),
            count("external_kv_transfer", decode=True),
        )

    def since(self, before: "Tokens") -> "Tokens":
        return Tokens(
            self.prefill_computed - before.prefill_computed,
            self.decode_computed - before.decode_computed,
            self.decode_read - before.decode_read,
        )


async def answers(live: Live, model: str, prompts: Sequence[str], at_once: int = 4) -> list[httpx.Response]:
    """Each prompt's greedy answer of 8 tokens, with the likeliest tokens' log-probabilities."""
    room = asyncio.Semaphore(at_once)
    async with live.client() as client:

        async def one(prompt: str) -> httpx.Response:
            body = {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 1}
            async with room:
                return await client.post(TEXT, json=body)

        return list(await asyncio.gather(*map(one, prompts)))


async def check_answers(live: Live, lengths: Sequence[int]) -> None:
    """Greedy answers to prompts of so many words are the same in both layouts, and the decode side has read every long
    one and computed none."""
    prompts = [words(length, f"answers {length}") for length in lengths]
    whole = await answers(live, WHOLE, prompts)
    before = Tokens.of(live)
    split = await answers(live, APART, prompts)
    assert {answer.status_code for answer in [*whole, *split]} == {200}
    counts = [answer.json()["usage"]["prompt_tokens"] for answer in split]
    texts = [[answer.json()["choices"][0]["text"] for answer in side] for side in (split, whole)]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > len(prompts) / 2, "answers depend on the prompt"
    modes = [answer.headers["x-forebay-prefill"] for answer in split]
    assert modes == ["remote" if count >= LEAST else "local" for count in counts]
    long, short = (sum(count for count in counts if (count >= LEAST) is side) for side in (True, False))
    # Every token is counted once: the prefill group never saw a short prompt, the decode group computed no long one.
    expected = Tokens(prefill_computed=long, decode_computed=short, decode_read=long)
    until(lambda: Tokens.of(live).since(before) == expected)


async def test_answers_are_those_of_one_engine_and_no_long_prompt_is_computed_twice(live: Live) -> None:
    await check_answers(live, [1, 2, 15, 31, 32, 33, 48, 64, 100, 260, 500, 760])


def test_a_stream_is_split_and_its_cached_tokens_are_those_of_the_prefill_side(live: Live) -> None:
    body: dict[str, Any] = {"messages": said("stream"), "max_tokens": 6, "temperature": 0}
    whole = live.ask(CHAT, WHOLE, **body).json()["choices"][0]["message"]["content"]
    answer = live.ask(CHAT, APART, **body, stream=True, stream_options={"include_usage": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-forebay-prefill"] == "remote"
    events = events_of(answer)
    pieces = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]
    assert "".join(pieces) == whole
    usage = events[-1]["usage"]
    assert usage["prompt_tokens"] > LEAST
    assert usage["completion_tokens"] == 6
    # The decode side has computed none of them and would call all cached.
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def test_what_clients_may_ask_for_is_answered_and_split_where_it_can_be(live: Live) -> None:
    tools: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 120, "temperature": 0}
    called = live.ask(CHAT, APART, messages=said("tools"), **tools)
    (call,) = called.json()["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["unit"] in ("celsius", "fahrenheit")
    scored = live.ask(CHAT, APART, messages=said("scored"), max_tokens=3, min_tokens=3, logprobs=True, top_logprobs=2)
    rows = scored.json()["choices"][0]["logprobs"]["content"]
    assert [len(row["top_logprobs"]) for row in rows] == [2, 2, 2]
    assert {called.headers["x-forebay-prefill"], scored.headers["x-forebay-prefill"]} == {"remote"}
    several = live.ask(CHAT, APART, messages=said("several"), max_tokens=3, n=2, seed=1)
    assert [choice["index"] for choice in several.json()["choices"]] == [0, 1]
    assert several.headers["x-forebay-prefill"] == "local"
    refused = live.ask(TEXT, APART, prompt=words(1500, "long"), max_tokens=1)
    assert (refused.status_code, "maximum context length" in refused.text) == (400, True)


@pytest.mark.parametrize("model", [APART, WHOLE])
def test_other_routes_of_the_engine_answer_streamed_and_not(live: Live, model: str) -> None:
    counted = live.metric("forebay_prefill_total", mode="local", reason="route")
    before = Tokens.of(live)
    asked = words(60, f"routes {model}")
    whole = live.ask("/v1/responses", model, input=asked, max_output_tokens=4, temperature=0).json()
    assert whole["output"][0]["content"][0]["text"]
    streamed = events_of(live.ask("/v1/responses", model, input=asked, max_output_tokens=4, temperature=0, stream=True))
    assert streamed[0]["type"] == "response.created"
    assert streamed[-1]["response"]["usage"]["output_tokens"] == whole["usage"]["output_tokens"] == 4
    body: dict[str, Any] = {"messages": said(f"messages {model}"), "max_tokens": 4, "temperature": 0}
    message = live.ask("/v1/messages", model, **body).json()
    assert (message["type"], message["stop_reason"]) == ("message", "max_tokens")
    pieces = events_of(live.ask("/v1/messages", model, **body, stream=True))
    texts = [piece["delta"].get("text", "") for piece in pieces if piece["type"] == "content_block_delta"]
    assert "".join(texts) == message["content"][0]["text"]
    routed = 4 if model == APART else 0
    until(lambda: live.metric("forebay_prefill_total", mode="local", reason="route") == counted + routed)
    assert Tokens.of(live).since(before).prefill_computed == 0


def events_of(answer: httpx.Response) -> list[Any]:
    """The data of a stream's events."""
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


async def test_clients_that_leave_at_any_moment_leave_no_block_behind(live: Live) -> None:
    await check_leaving(live, 12)


async def check_leaving(live: Live, count: int) -> None:
    """So many requests, each given up a little later than the one before, at last while it generates."""
    left = 0
    async with live.client() as client:

        async def one(number: int) -> bool:
            body = {"model": APART, "prompt": words(400, f"leaving {number}"), "max_tokens": 400, "ignore_eos": True}
            try:
                async with asyncio.timeout(0.2 * number):
                    await client.post(TEXT, json=body)
            except TimeoutError:
                return True
            return False

        left = sum(await asyncio.gather(*map(one, range(count))))
    assert left > count / 2
    # An engine that keeps blocks for somebody goes on saying so; an idle one says nothing. A lease takes 30 s to end.
    idle(live, within=25)
    assert live.metric("forebay_kv_orphaned_blocks") == 0


def idle(live: Live, within: float) -> None:
    """Wait until both sides have let go of every block."""
    until(lambda: live.metric("vllm_kv_cache_usage_perc", model_name=APART) == 0, within)
    assert live.samples("forebay_kv_orphaned_blocks"), "the gauge is there"


async def test_no_request_is_lost_with_the_prefill_replica_and_its_successor_is_used(live: Live) -> None:
    await check_killing(live)


async def check_killing(live: Live) -> list[httpx.Response]:
    """The only prefill replica is killed under load; every answer until a successor prefills again."""
    (victim,) = live.replicas(f"small:prefill:{APART}")
    got: list[httpx.Response] = []
    killed, back = asyncio.Event(), asyncio.Event()

    async def worker(client: httpx.AsyncClient, name: int) -> None:
        number = 0
        while not back.is_set():
            number += 1
            body = {"model": APART, "prompt": words(60, f"killing {name} {number}"), "max_tokens": 4}
            answer = await client.post(TEXT, json=body)
            assert answer.status_code == 200, answer.text
            got.append(answer)
            fell_back = any(answer.headers["x-forebay-prefill"] == "fallback" for answer in got)
            if not killed.is_set() and len(got) >= 8:
                victim.kill()
                killed.set()
            elif fell_back and answer.headers["x-forebay-prefill"] == "remote":
                back.set()

    # Past the gateway, whose probes may find a machine of two cores too slow while an engine starts on it.
    async with live.client("small") as client, asyncio.timeout(900):
        await asyncio.gather(*(worker(client, name) for name in range(3)))
    (successor,) = live.replicas(f"small:prefill:{APART}")
    assert successor.pid != victim.pid
    return got
