"""What an event of a stream is, and how many tokens an answer says it has."""

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.answer import StreamAssembler
from gateway.metering import Look, StreamMeter, Usage, usage_of


def chunk(**fields: object) -> bytes:
    return orjson.dumps({"id": "x", **fields})


def delta(finish: str | None = None, index: int = 0, **fields: object) -> bytes:
    return chunk(choices=[{"index": index, "delta": fields, "finish_reason": finish}])


@pytest.mark.parametrize(
    ("data", "look"),
    [
        (None, Look.QUIET),
        (delta(role="assistant", content=""), Look.QUIET),
        (delta(content="a"), Look.CONTENT),
        (delta(reasoning="a"), Look.CONTENT),
        (delta(tool_calls=[{"index": 0}]), Look.CONTENT),
        (delta(finish="stop"), Look.CONTENT),
        (chunk(choices=[{"index": 0, "text": "a"}]), Look.CONTENT),
        (chunk(choices=[{"index": 0, "text": ""}]), Look.QUIET),
        (chunk(choices=[], usage={"prompt_tokens": 1, "completion_tokens": 2}), Look.USAGE),
        (chunk(usage={"prompt_tokens": 1, "completion_tokens": 2}), Look.USAGE),
        (chunk(choices=[]), Look.QUIET),
        (b'{"error": {"message": "m", "code": 500}}', Look.ERROR),
        (b'{"object": "error", "message": "m"}', Look.ERROR),
        (b"[DONE]", Look.DONE),
        (b" [DONE] ", Look.DONE),
        (b"not json", Look.CONTENT),
        (b"[1]", Look.CONTENT),
        (chunk(choices="odd"), Look.CONTENT),
        (chunk(choices=["odd"]), Look.CONTENT),
    ],
    ids=str,
)
def test_what_an_event_is(data: bytes | None, look: Look) -> None:
    assert StreamMeter().look(data) is look


def test_a_stream_is_finished_when_every_choice_is() -> None:
    meter = StreamMeter()
    assert not meter.finished
    meter.look(delta(content="a", index=0))
    meter.look(delta(content="b", index=1))
    meter.look(delta(finish="stop", index=0))
    assert not meter.finished
    meter.look(delta(finish="length", index=1))
    assert meter.finished
    assert not meter.done


@pytest.mark.parametrize(
    ("value", "usage"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}, Usage(3, 4, 2)),
        ({"prompt_tokens": 3, "prompt_tokens_details": None}, Usage(3, 0, 0)),
        ({"input_tokens": 5, "output_tokens": 6, "input_tokens_details": {"cached_tokens": 1}}, Usage(5, 6, 1)),
        ({"prompt_tokens": "3"}, None),
        ({"prompt_tokens": True}, None),
        ({"prompt_tokens": -1}, None),
        ({}, None),
        (None, None),
        (7, None),
    ],
    ids=str,
)
def test_usage_is_read_from_every_dialect(value: object, usage: Usage | None) -> None:
    assert usage_of(value) == usage  # type: ignore[arg-type]  # plain JSON


TEXTS = st.one_of(st.sampled_from(["", "a", " the", "\n", 'say "x"', "\\", "é世", "\x01"]), st.text("ab ", max_size=3))
EVENTS = st.one_of(
    st.builds(lambda text, index: delta(content=text, index=index), TEXTS, st.integers(0, 1)),
    st.builds(lambda text: delta(content=text), TEXTS),
    st.builds(lambda text: chunk(choices=[{"index": 0, "text": text, "finish_reason": None}]), TEXTS),
    st.builds(lambda text: b'{"choices":[{"index":0,"delta":{"content":"' + text + b'"}}]}', st.binary(max_size=3)),
    st.builds(lambda text: delta(reasoning=text), TEXTS),
    st.builds(lambda index: delta(finish="stop", index=index), st.integers(0, 1)),
    st.just(delta(role="assistant", content="")),
    st.just(chunk(choices=[], usage={"prompt_tokens": 1, "completion_tokens": 2})),
    st.just(b"[DONE]"),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(EVENTS, max_size=25))
def test_events_told_from_their_bytes_say_what_a_parser_reads_in_them(stream: list[bytes]) -> None:
    """The quick way and the parser's agree on every answer, whatever the engine sends."""
    quick, slow = StreamAssembler(), StreamAssembler()
    meter, reference = StreamMeter(quick), StreamMeter(slow)
    for data in stream:
        look = Look.CONTENT if meter.follows(b"data: " + data + b"\n\n") else meter.look(data)
        if reference.look(data) is not look:
            # Bytes that are no JSON: neither reader can say what they are, and none of them keeps the answer.
            assert look is Look.CONTENT
            assert quick.whole() is None
        assert meter.finished == reference.finished
    assert quick.so_far() == slow.so_far()
    assert quick.finish(meter.done) == slow.finish(reference.done)
    assert meter.usage == reference.usage


def test_most_events_of_an_answer_need_no_parser() -> None:
    meter = StreamMeter()
    texts = ["The", " quick", " brown", " fox", '"', " jumps", "\n", " over"]
    told = [
        meter.follows(b"data: " + delta(content=text) + b"\n\n") or meter.look(delta(content=text)) for text in texts
    ]
    assert told == [Look.CONTENT, True, True, True, Look.CONTENT, True, Look.CONTENT, True]
    meter.look(delta(finish="stop"))
    assert not meter.follows(b"data: " + delta(content=" more") + b"\n\n")
