"""Events that differ in their text alone are told from their bytes, and from nothing else."""

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.likeness import Likeness, likeness


def chunk(text: str, index: int = 0, finish: str | None = None, **fields: object) -> dict[str, object]:
    choice = {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **fields}


def learned(value: object) -> Likeness:
    found = likeness(orjson.dumps(value), value)  # type: ignore[arg-type]  # plain JSON
    assert found is not None
    return found


def block(value: object) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def test_another_text_is_found() -> None:
    like = learned(chunk("Hello"))
    assert like.text(block(chunk(" wörld, 世界"))) == " wörld, 世界".encode()
    assert orjson.loads(like.data(b" there")) == chunk(" there")
    assert like.size == len(block(chunk("")))


def test_text_completions_are_learned_too() -> None:
    like = learned({"id": "c", "choices": [{"index": 0, "text": "a", "finish_reason": None}]})
    assert like.text(block({"id": "c", "choices": [{"index": 0, "text": "b c", "finish_reason": None}]})) == b"b c"


@pytest.mark.parametrize(
    "other",
    [
        chunk(""),
        chunk('a "quoted" word'),
        chunk("a\nb"),
        chunk("a\\b"),
        chunk("b", index=1),
        chunk("b", finish="stop"),
        chunk("b", usage={"completion_tokens": 2}),
        {"error": {"message": "broken"}},
        "[DONE]",
    ],
    ids=str,
)
def test_every_other_event_is_left_to_a_parser(other: object) -> None:
    assert learned(chunk("Hello")).text(block(other)) is None


def test_two_events_in_one_block_are_not_one() -> None:
    assert learned(chunk("Hello")).text(block(chunk("a")) + block(chunk("b"))) is None


@pytest.mark.parametrize(
    "data",
    [
        b'{"choices":[{"index":0,"delta":{"content":"m"},"finish_reason":null}],"model":"m"}',
        b'{"model":"m","choices":[{"index":0,"delta":{"content":"m"},"finish_reason":null}]}',
        # The text is written as an escape, and the same text stands elsewhere.
        b'{"model":"A","choices":[{"index":0,"delta":{"content":"\\u0041"},"finish_reason":null}]}',
        # Of two equal names the last one counts.
        b'{"choices":[{"index":0,"delta":{"content":"A","content":"\\u0041"},"finish_reason":null}]}',
    ],
)
def test_what_is_learned_is_the_place_of_the_text(data: bytes) -> None:
    value = orjson.loads(data)
    found = likeness(data, value)
    if found is not None:
        value["choices"][0]["delta"]["content"] = "z"
        assert orjson.loads(found.data(b"z")) == value


@pytest.mark.parametrize(
    "value",
    [
        chunk(""),
        chunk("a", finish="stop"),
        chunk('"'),
        chunk("tab\t"),
        {"choices": []},
        {"choices": [{"index": 0, "delta": {"content": "a"}}, {"index": 1, "delta": {"content": "b"}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}]},
        [1],
        None,
    ],
    ids=str,
)
def test_nothing_is_learned_from_what_has_no_plain_text(value: object) -> None:
    assert likeness(orjson.dumps(value), value) is None  # type: ignore[arg-type]  # plain JSON


@settings(max_examples=300, deadline=None)
@given(st.text(min_size=1, max_size=8), st.lists(st.text(max_size=12), max_size=6), st.sampled_from(["m", "Hi", "{"]))
def test_what_is_taken_for_alike_parses_to_the_same(first: str, rest: list[str], model: str) -> None:
    one = chunk(first, model=model)
    try:
        data = orjson.dumps(one)
    except TypeError:  # lone surrogates are nothing that an engine can write
        return
    like = likeness(data, one)
    if like is None:
        return
    for text in rest:
        try:
            event = block(chunk(text, model=model))
        except TypeError:
            continue
        found = like.text(event)
        if found is not None:
            assert orjson.loads(like.data(found)) == chunk(text, model=model) == orjson.loads(event[6:])
