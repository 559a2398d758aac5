"""The ear takes out what only the gateway asked for, however the stream is cut, and judges by what it heard."""

import asyncio
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.clock import SystemClock
from core.config.records import Cascade, Timeout
from core.request import InferenceRequest
from gateway.account import Account
from gateway.ear import LEAST, Ear, Unsure
from gateway.interrupt import Interruptible
from gateway.patience import Patience
from gateway.timers import Timers
from gateway.upstream.base import Reply

SSE = [(b"content-type", b"text/event-stream")]
JSON = [(b"content-type", b"application/json"), (b"content-length", b"999")]


class Canned(Reply):
    """A reply whose body comes in given pieces."""

    status = 200

    def __init__(self, pieces: list[bytes], headers: list[tuple[bytes, bytes]]) -> None:
        self._pieces, self.headers = list(pieces), headers
        self.read_pieces = 0

    async def read(self) -> bytes:
        self.read_pieces += 1
        return self._pieces.pop(0) if self._pieces else b""

    async def finish(self, limit: float) -> None:
        self._pieces.clear()

    def close(self) -> None:
        self._pieces.clear()


def event(text: str | None, logprob: float | None, *, finish: str | None = None, usage: int | None = None) -> bytes:
    delta = {} if text is None else {"content": text}
    logprobs = None if logprob is None else {"content": [{"token": text, "logprob": logprob}]}
    chunk: dict[str, Any] = {"choices": [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]}
    if usage is not None:
        chunk["usage"] = {"prompt_tokens": 5, "completion_tokens": usage}
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def ear(account: Account | None = None, threshold: float | None = -1.0, stream: bool = True, **fields: Any) -> Ear:
    request = InferenceRequest("chat", {"model": "auto", "messages": [], "stream": stream, **fields})
    kept = account or Account("r", "POST", "/v1/chat/completions", 0.0)
    return Ear(request, Cascade(enabled=True, tokens=2), SystemClock(), lambda: threshold, kept)


async def heard(ear: Ear, reply: Canned) -> bytes:
    """Everything that passes."""
    async with Interruptible() as block:
        patience = Patience(block, Timeout(), SystemClock(), Timers())
        patience.begin()
        try:
            passed = await ear.hear(reply, patience)
            parts = []
            while piece := await passed.read():
                parts.append(piece)
        finally:
            patience.end()
        return b"".join(parts)


def run(ear: Ear, pieces: list[bytes], headers: list[tuple[bytes, bytes]] = SSE) -> bytes:
    return asyncio.run(heard(ear, Canned(pieces, headers)))


STREAM = [
    event("", None, usage=0),
    event("naïve 🦫", -0.5, usage=1),
    event(" yes", -0.7, usage=2),
    event(" no", -9.0, usage=3),
    event(None, None, finish="stop", usage=3),
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3}}\n\n',
    b"data: [DONE]\n\n",
]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 700), max_size=12))
def test_however_a_stream_is_cut_the_same_clean_events_pass(sizes: list[int]) -> None:
    raw, pieces = b"".join(STREAM), []
    for size in sizes:
        pieces.append(raw[:size])
        raw = raw[size:]
    listening = ear()
    passed = run(listening, [piece for piece in [*pieces, raw] if piece])
    events = [orjson.loads(line[6:]) for line in passed.split(b"\n\n") if line.startswith(b"data: {")]
    assert passed.endswith(b"data: [DONE]\n\n")
    assert all(choice["logprobs"] is None for one in events for choice in one["choices"])
    assert ["usage" in one for one in events] == [False] * 5 + [True]
    assert (
        "".join(choice["delta"].get("content") or "" for one in events for choice in one["choices"])
        == "naïve 🦫 yes no"
    )
    # Two tokens decide: the third, however unlikely, does not count.
    assert listening.confidence == pytest.approx(-0.6)
    assert listening.verdict == "kept"


def test_an_end_without_a_blank_line_passes() -> None:
    assert run(ear(), [*STREAM[:-1], b"data: [DONE]"]).endswith(b"\n\ndata: [DONE]")


def test_a_cut_off_event_does_not_pass() -> None:
    assert b"logprob" not in run(ear(), [*STREAM[:2], STREAM[2][:-10]]).replace(b'"logprobs":null', b"")


def test_unsure_is_raised_before_anything_else_is_read() -> None:
    reply = Canned([event("a", -3.0, usage=1), event("b", -3.0, usage=2), event("c", -3.0, usage=3)], SSE)
    account = Account("r", "POST", "/v1/chat/completions", 0.0)
    listening = ear(account)
    with pytest.raises(Unsure):
        asyncio.run(heard(listening, reply))
    assert reply.read_pieces == 2
    assert account.confidence == -3.0
    assert listening.usage is not None
    assert (listening.usage.input, listening.usage.output) == (5, 2)


def test_without_log_probabilities_the_answer_is_kept() -> None:
    listening = ear()
    run(listening, [event("a", None), event(None, None, finish="stop"), b"data: [DONE]\n\n"])
    assert (listening.verdict, listening.confidence) == ("unknown", None)


def test_an_impossible_token_is_not_all_that_counts() -> None:
    listening = ear(threshold=None)
    run(listening, [event("a", -9999.0), event("b", 0.0), event(None, None, finish="stop")])
    assert listening.confidence == LEAST / 2


@pytest.mark.parametrize("stream", [True, False])
def test_a_whole_answer_is_cleaned_and_keeps_its_usage(stream: bool) -> None:
    body = {
        "choices": [
            {
                "index": 0,
                "message": {"content": "x"},
                "logprobs": {"content": [{"logprob": -0.2}]},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1},
    }
    listening = ear(stream=stream)
    passed = orjson.loads(run(listening, [orjson.dumps(body)], JSON))
    assert passed["choices"][0]["logprobs"] is None
    assert passed["usage"] == body["usage"]
    assert listening.confidence == -0.2


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"error":{"message":"x"}}', b'{"choices":[1]}', b'{"choices":{}}'])
def test_what_is_no_answer_passes_as_it_is(raw: bytes) -> None:
    listening = ear(stream=False)
    assert run(listening, [raw], JSON) == raw
    assert listening.verdict == "unknown"


@pytest.mark.parametrize(
    ("fields", "logprobs", "options"),
    [
        ({}, True, {"include_usage": True, "continuous_usage_stats": True}),
        ({"logprobs": False}, True, {"include_usage": True, "continuous_usage_stats": True}),
        ({"logprobs": True, "top_logprobs": 3}, True, {"include_usage": True, "continuous_usage_stats": True}),
        ({"stream": False}, True, None),
    ],
)
def test_the_small_tier_is_asked_for_log_probabilities(fields: Any, logprobs: bool, options: Any) -> None:
    body = ear(**{"stream": True, **fields}).asking().body
    assert body["logprobs"] is logprobs
    assert body.get("stream_options") == options
    assert body.get("top_logprobs") == fields.get("top_logprobs")
