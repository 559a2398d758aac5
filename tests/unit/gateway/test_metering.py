"""What an event of a stream is, and how many tokens an answer says it has."""

import orjson
import pytest

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
