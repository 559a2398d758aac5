"""Both tiers answer through the gateway with the official client, and stop when nobody listens."""

import socket
from urllib.parse import urlsplit

import httpx
import orjson
import psutil
import pytest

from core.config import TIER_NAMES
from tests.e2e.conftest import Running
from tests.e2e.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

LONG = 1500
RUNNING, GENERATED = "num_requests_running", "generation_tokens_total"


def chat(text: str, **fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def story(tier: str, *, stream: bool) -> dict[str, object]:
    """A request that goes on for minutes. Never the same again: an answer from the cache would not run."""
    return chat("Tell a story.", model=tier, stream=stream, max_tokens=LONG, min_tokens=LONG, ignore_eos=True)


@pytest.mark.parametrize("tier", TIER_NAMES)
def test_a_tier_streams_an_answer_that_ends_by_itself_with_usage(running: Running, tier: str) -> None:
    stream = running.client().chat.completions.create(
        model=tier,
        messages=[{"role": "user", "content": f"What is the capital of France? ({tier})"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    usage = chunks[-1].usage
    assert reasons == ["stop"]
    assert len(text.split()) >= 3
    assert usage is not None
    assert usage.completion_tokens > 3
    assert sum(bool(chunk.choices) for chunk in chunks) > 3, "it came in one piece"
    assert {chunk.model for chunk in chunks} == {running.tiers[tier]["model"]}


@pytest.mark.parametrize("tier", TIER_NAMES)
def test_a_question_that_is_too_hard_gets_a_short_answer_too(running: Running, tier: str) -> None:
    hard = "Prove that the square root of 2 is irrational, step by step, and then list ten recipes for pancakes."
    completion = running.client().chat.completions.create(model=tier, messages=[{"role": "user", "content": hard}])
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.completion_tokens < 200


def test_an_answer_follows_a_json_schema(running: Running) -> None:
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["age"],
        "additionalProperties": False,
    }
    answer = httpx.post(
        f"{running.url}/v1/chat/completions",
        json=chat(
            "How old is the boy? JSON.",
            model="small",
            max_tokens=200,
            response_format={"type": "json_schema", "json_schema": {"name": "age", "schema": schema}},
        ),
        timeout=300,
    ).json()
    assert set(orjson.loads(answer["choices"][0]["message"]["content"])) == {"age"}


@pytest.mark.parametrize("tier", TIER_NAMES)
def test_closing_a_stream_stops_generation_on_the_engine(running: Running, tier: str) -> None:
    before = running.engine_metric(GENERATED, tier)
    body = story(tier, stream=True)
    with httpx.stream("POST", f"{running.url}/v1/chat/completions", json=body, timeout=300) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        for _ in range(6):
            next(lines)
        until(lambda: running.engine_metric(RUNNING, tier) == 1)
    until(lambda: running.engine_metric(RUNNING, tier) == 0)
    assert running.engine_metric(GENERATED, tier) - before < LONG


@pytest.mark.parametrize("tier", TIER_NAMES)
def test_leaving_without_the_answer_stops_generation_on_the_engine(running: Running, tier: str) -> None:
    before = running.engine_metric(GENERATED, tier)
    raw = orjson.dumps(story(tier, stream=False))
    address = urlsplit(running.url)
    with socket.create_connection((address.hostname or "", address.port or 0)) as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-length: {len(raw)}\r\n\r\n"
        connection.sendall(head.encode() + raw)
        until(lambda: running.engine_metric(RUNNING, tier) == 1)
    until(lambda: running.engine_metric(RUNNING, tier) == 0)
    assert running.engine_metric(GENERATED, tier) - before < LONG


def test_nothing_listens_to_the_network_but_what_asks_for_a_token(running: Running) -> None:
    family = [psutil.Process(running.pid), *psutil.Process(running.pid).children(recursive=True)]
    open_to_all = {
        process.name()
        for process in family
        for connection in process.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr.ip.removeprefix("::ffff:") not in ("127.0.0.1", "::1")
    }
    # Serve opens the port between replicas everywhere; Ray's token guards it.
    assert {name[:16] for name in open_to_all} <= {"ray::ServeReplic"}
    assert any("ray::ServeReplic" in process.name() for process in family)


def test_a_second_one_says_that_one_runs(running: Running) -> None:
    second = running.home.forebay("up", "--detach")
    assert second.returncode == 1
    assert f"already running at {running.url}" in second.stderr
