"""Streaming and proxying, S4, S10, S11, S13: whatever the bytes, the chunk boundaries and the place of a cut."""

import asyncio
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.engine import Script, ScriptedEngine
from tests.integration.stack import SMALL, Stack, chat, gateway, tiers
from tests.integration.wire import Answer, ask, is_envelope

CHAT = "/v1/chat/completions"
USAGE = {"include_usage": True}


def stream(text: str, **fields: Any) -> dict[str, Any]:
    return chat(text, stream=True, **fields)


# A gateway and an engine on a loop of their own: Hypothesis calls plain functions, many times.


class Kept:
    """The running pair, and a way to run a coroutine beside it."""

    def __init__(self, runner: asyncio.Runner, stack: Stack, engine: ScriptedEngine) -> None:
        self.stack, self.engine, self._runner = stack, engine, runner

    def ask(self, script: Script, **fields: Any) -> Answer:
        """One streamed request that is not cached."""
        self.engine.next.append(script)
        return self._runner.run(self._ask(stream("x", **fields)))

    async def _ask(self, body: dict[str, Any]) -> Answer:
        return await ask(self.stack.url, CHAT, body, x_request_id="r", x_forebay_cache="off")

    def direct(self, script: Script, **fields: Any) -> Answer:
        """The same, asked of the engine itself."""
        self.engine.next.append(script)
        body = {**stream("x", **fields), "model": SMALL}
        return self._runner.run(ask(self.engine.url, CHAT, body, x_request_id="r"))


@pytest.fixture(scope="module")
def kept() -> Iterator[Kept]:
    with asyncio.Runner() as runner:
        engine = ScriptedEngine(SMALL)
        runner.run(engine.__aenter__())
        running = gateway(tiers(engine))
        stack = runner.run(running.__aenter__())
        yield Kept(runner, stack, engine)
        runner.run(running.__aexit__(None, None, None))
        runner.run(engine.__aexit__(None, None, None))


MANY = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
# Without a pause the gateway would read several pieces as one, and where they end would not show.
APART = 0.0002
PIECES = st.lists(st.integers(1, 60), min_size=1, max_size=6).map(tuple)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("🦫é€\r\n 漢"), max_size=20)


def chunk(content: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return orjson.dumps({"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice]})


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Any legal stream of server-sent events that is a complete answer, odd line ends, fields and comments included."""
    end = draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    blocks = [b"\xef\xbb\xbf"] if draw(st.booleans()) else []
    for text in draw(st.lists(TEXTS, min_size=1, max_size=6)):
        if draw(st.booleans()):
            blocks.append(b": " + draw(st.sampled_from([b"ping", "comment 🦫".encode(), b""])) + end + end)
        fields = draw(st.sampled_from([b"", b"event: message" + end, b"id: 7" + end, b"retry: 10" + end, b"odd" + end]))
        space = draw(st.sampled_from([b"", b" "]))
        blocks.append(fields + b"data:" + space + chunk(text) + end + end)
    blocks.append(b"data: " + chunk("", "stop") + end + end)
    blocks.append(b"data: [DONE]" + end + end)
    return b"".join(blocks)


@MANY
@given(streams(), PIECES)
def test_s4_bytes_out_are_bytes_in_whatever_the_chunk_boundaries(
    kept: Kept, body: bytes, pieces: tuple[int, ...]
) -> None:
    """S4."""
    answer = kept.ask(Script(body=body, pieces=pieces, piece_delay=APART))
    assert (answer.status, answer.whole) == (200, True)
    # With the CR of the last blank line the stream is over: where its LF comes apart, it is not waited for.
    assert answer.body == body or (body.endswith(b"[DONE]\r\n\r\n") and answer.body == body[:-1])


@settings(MANY, max_examples=12)
@given(PIECES, st.sampled_from(["chunked", "length", "close"]), st.booleans(), st.integers(1, 2))
def test_s4_s13_framing_encoding_and_boundaries_of_the_engine_do_not_show(
    kept: Kept, pieces: tuple[int, ...], framing: Any, zipped: bool, n: int
) -> None:
    """S4, S13: length and encoding are recomputed, the events are the engine's."""
    plain = kept.direct(Script(), n=n, stream_options=USAGE)
    script = Script(pieces=pieces, piece_delay=APART, framing=framing, gzip=zipped, reasoning="hm 🦫")
    direct = kept.direct(Script(reasoning="hm 🦫"), n=n, stream_options=USAGE)
    answer = kept.ask(script, n=n, stream_options=USAGE)
    assert answer.body == direct.body != plain.body
    assert answer.header("transfer-encoding") == "chunked"
    assert answer.header("content-length") is None
    assert answer.header("content-encoding") is None


@MANY
@given(st.integers(0, 6), st.integers(0, 6), PIECES | st.just(()))
def test_s10_s11_where_chunks_end_does_not_change_how_an_error_is_told(
    kept: Kept, tokens: int, extra: int, pieces: tuple[int, ...]
) -> None:
    """S10, S11: an error before any content is a status, after it one event; the content before it is all there."""
    script = Script(tokens=tokens + extra + 1, error_event_after=tokens, pieces=pieces, piece_delay=APART)
    answer = kept.ask(script, stream_options=USAGE)
    if tokens == 0:
        assert (answer.status, answer.header("content-type")) == (500, "application/json")
        assert is_envelope(answer.json)
        return
    assert (answer.status, answer.whole) == (200, True)
    *before, last = answer.events
    assert is_envelope(last)
    reference = kept.direct(script.model_copy(update={"pieces": (), "piece_delay": 0.0}), stream_options=USAGE).events
    assert before == reference[:-2]
    assert all(event["choices"][0]["finish_reason"] is None for event in before)


@MANY
@given(st.integers(0, 2500), PIECES | st.just(()), st.sampled_from(["close", "reset", "shut"]))
def test_s11_a_cut_at_any_byte_ends_in_one_readable_error(
    kept: Kept, place: int, pieces: tuple[int, ...], cut: Any
) -> None:
    """S11: whole events up to the cut, one error event, no retry after content, no made-up finish reason."""
    before = len(kept.engine.requests)
    whole = kept.direct(Script(tokens=9), stream_options=USAGE)
    answer = kept.ask(
        Script(tokens=9, cut_after_bytes=place, cut=cut, pieces=pieces, piece_delay=APART), stream_options=USAGE
    )
    calls = len(kept.engine.requests) - before - 1
    if answer.header("content-type") == "application/json":
        # Nothing was said, so it was tried again, and the second try had no script to break it.
        assert (answer.status, is_envelope(answer.json)) == (502, True)
        return
    if b'"error"' not in answer.body:
        assert calls == 2 or answer.body == whole.body
        return
    assert calls == 1
    assert answer.whole
    *events, last = answer.events
    assert is_envelope(last)
    assert events == whole.events[: len(events)]
    assert b"[DONE]" not in answer.body
