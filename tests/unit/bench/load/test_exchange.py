"""Reading an answer: what is content and what is not, however the bytes are cut."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load.exchange import NEVER, Exchange


def event(**choice: object) -> bytes:
    return b"data: " + orjson.dumps({"choices": [{"index": 0, **choice}]}) + b"\n\n"


ROLE = event(delta={"role": "assistant", "content": ""}, finish_reason=None)
WORD = event(delta={"content": "word"}, finish_reason=None)
LAST = event(delta={"content": ""}, finish_reason="stop")
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}\n\n'
DONE = b"data: [DONE]\n\n"


def stream(*pieces: bytes, step: float = 1.0) -> Exchange:
    """The pieces, one a second."""
    one = Exchange(0, 0, 0.0, keep_text=True)
    one.header(b"Content-Type", b"text/event-stream; charset=utf-8")
    one.status = 200
    for place, piece in enumerate(pieces, start=1):
        one.body(piece, place * step)
    one.complete(len(pieces) * step)
    return one


def test_the_first_token_is_the_first_content_not_the_role_not_a_ping() -> None:
    one = stream(b": ping\n\n", ROLE, WORD, WORD, LAST, USAGE, DONE)
    assert (one.byte, one.first, one.last, one.error) == (1.0, 3.0, 5.0, "")
    assert (one.chunks, list(one.gaps), one.output_tokens, one.prompt_tokens) == (2, [1.0], 3, 7)
    assert "".join(one.text) == "wordword"


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_is_content(key: str) -> None:
    one = stream(ROLE, event(delta={key: "hm"}), WORD, LAST, DONE)
    assert (one.first, one.chunks) == (2.0, 2)


def test_a_tool_call_is_content() -> None:
    assert stream(event(delta={"tool_calls": [{"index": 0}]}), LAST, DONE).first == 1.0


def test_text_completions_are_read() -> None:
    one = stream(event(text="a"), event(text="b", finish_reason="length"), DONE)
    assert (one.first, one.last, one.chunks) == (1.0, 2.0, 2)


def test_a_stream_that_ends_early_is_truncated() -> None:
    assert stream(ROLE, WORD).error == "truncated"


def test_a_stream_without_done_but_with_its_finish_reason_is_whole() -> None:
    assert stream(WORD, LAST).error == ""


def test_an_error_event_is_an_error() -> None:
    assert stream(WORD, b'data: {"error": {"message": "no"}}\n\n', DONE).error == "stream_error"


def test_an_event_that_is_not_json_is_an_error() -> None:
    assert stream(WORD, b"data: {oops\n\n", DONE).error == "not_json"


def test_a_status_is_an_error() -> None:
    one = Exchange(0, 0, 0.0)
    one.status = 503
    one.body(b"{}", 1.0)
    one.complete(1.0)
    assert one.error == "http_503"


def test_a_whole_answer_has_usage_and_no_first_token() -> None:
    one = Exchange(0, 0, 0.0, keep_text=True)
    one.header(b"content-type", b"application/json")
    one.status = 200
    body = {"choices": [{"message": {"content": "hi"}}], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    one.body(orjson.dumps(body), 2.0)
    one.complete(2.0)
    assert (one.error, one.first, one.last, one.output_tokens, one.text) == ("", NEVER, 2.0, 2, ["hi"])


@pytest.mark.parametrize("body", [b"[]", b"not json", b"{}"])
def test_an_answer_that_is_none_is_an_error(body: bytes) -> None:
    one = Exchange(0, 0, 0.0)
    one.status = 200
    one.body(body, 1.0)
    one.complete(1.0)
    assert one.error == "not_an_answer"


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.booleans())
def test_cuts_between_bytes_change_nothing_but_times(sizes: list[int], carriage: bool) -> None:
    whole = b"".join([b": ping\n\n", ROLE, WORD, WORD, WORD, LAST, USAGE, DONE])
    if carriage:
        whole = whole.replace(b"\n", b"\r\n")
    pieces, at = [], 0
    for size in sizes:
        pieces.append(whole[at : at + size])
        at += size
    pieces.append(whole[at:])
    one = stream(*[piece for piece in pieces if piece])
    assert (one.error, one.chunks, one.output_tokens, "".join(one.text)) == ("", 3, 3, "word" * 3)
    assert one.byte <= one.first <= one.last <= one.ended
