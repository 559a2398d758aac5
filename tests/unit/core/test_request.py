from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import BadRequest
from core.request import MAX_DEPTH, RouteKind, content_text, parse, window

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["model", "messages", "prompt", "stream", "stream_options", "tools", "max_tokens", "max_completion_tokens", "x"]
)
MESSAGES = st.lists(
    st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "name"]), JSON, max_size=4) | JSON, max_size=3
)
KINDS = st.sampled_from(["chat", "completion"])


def chat(*messages: dict[str, Any], **fields: Any) -> Any:
    body = {"model": "m", "messages": list(messages) or [{"role": "user", "content": "hi"}], **fields}
    return parse(orjson.dumps(body), "chat")


@given(st.binary(max_size=60), KINDS)
def test_any_bytes_are_a_request_or_a_bad_request(raw: bytes, kind: RouteKind) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(raw, kind)
    assert (caught.value.status, caught.value.type) == (400, "invalid_request_error")


@given(st.dictionaries(FIELDS, JSON | MESSAGES, max_size=6), KINDS)
def test_any_json_object_is_a_request_or_a_bad_request(body: dict[str, Any], kind: RouteKind) -> None:
    try:
        request = parse(orjson.dumps({"model": "m", **body}), kind)
    except BadRequest:
        return
    # Whatever was let in can be looked at and sent on.
    assert isinstance(request.model, str)
    assert isinstance(request.stream, bool)
    assert isinstance(request.include_usage, bool)
    assert isinstance(request.user_text, str | None)
    assert isinstance(request.has_tools, bool)
    assert isinstance(request.has_images, bool)
    # The quick look never promises more than the thorough ones.
    assert not (request.only_text and (request.has_tools or request.has_images))
    orjson.dumps(request.body)


@pytest.mark.parametrize(
    ("raw", "kind", "param", "code"),
    [
        (b"", "chat", None, "invalid_json"),
        (b"{", "chat", None, "invalid_json"),
        (b"[]", "chat", None, "invalid_json"),
        (b'"text"', "chat", None, "invalid_json"),
        (b'{"model": NaN}', "chat", None, "invalid_json"),
        (b"\xff\xfe{}", "chat", None, "invalid_json"),
        (b'{"model": "m", "x": "\\ud800"}', "chat", None, "invalid_json"),
        (b'{"messages": [{"role": "user"}]}', "chat", "model", "invalid_request"),
        (b'{"model": "", "messages": [{"role": "user"}]}', "chat", "model", "invalid_request"),
        (b'{"model": 5, "messages": [{"role": "user"}]}', "chat", "model", "invalid_request"),
        (b'{"model": "m"}', "chat", "messages", "invalid_request"),
        (b'{"model": "m", "messages": []}', "chat", "messages", "invalid_request"),
        (b'{"model": "m", "messages": {"role": "user"}}', "chat", "messages", "invalid_request"),
        (b'{"model": "m", "messages": [{"role": "user"}, 1]}', "chat", "messages[1]", "invalid_request"),
        (b'{"model": "m", "messages": [{"role": null}]}', "chat", "messages[0]", "invalid_request"),
        (b'{"model": "m", "messages": [{"role": "user"}], "stream": "yes"}', "chat", "stream", "invalid_request"),
        (b'{"model": "m", "messages": [{"role": "user"}], "stream": 1}', "chat", "stream", "invalid_request"),
        (b'{"model": "m", "prompt": "p", "stream_options": []}', "completion", "stream_options", "invalid_request"),
        (b'{"model": "m"}', "completion", "prompt", "invalid_request"),
        (b'{"model": "m", "prompt": null}', "completion", "prompt", "invalid_request"),
        (
            b'{"model": "m", "prompt": "p", "kv_transfer_params": {}}',
            "completion",
            "kv_transfer_params",
            "invalid_request",
        ),
        (
            b'{"model": "m", "prompt": "p", "kv_transfer_params": null}',
            "completion",
            "kv_transfer_params",
            "invalid_request",
        ),
    ],
)
def test_a_bad_body_is_refused_with_its_parameter(raw: bytes, kind: RouteKind, param: str | None, code: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(raw, kind)
    assert (caught.value.param, caught.value.code) == (param, code)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 300, 1000, 100_000])
def test_a_body_that_could_not_be_written_again_is_refused(depth: int) -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        nested = opening * depth + b"1" + closing * depth
        with pytest.raises(BadRequest) as caught:
            parse(b'{"model": "m", "prompt": "p", "x": ' + nested + b"}", "completion")
        assert caught.value.code == "invalid_json"


def test_many_brackets_side_by_side_or_in_a_string_are_harmless() -> None:
    wide = [[number] for number in range(1000)]
    assert chat({"role": "user", "content": "[{" * 5000}, x=wide).body["x"] == wide


@pytest.mark.parametrize(
    ("given_limits", "kept"),
    [
        ({"max_completion_tokens": 5, "max_tokens": 9}, {"max_completion_tokens": 5}),
        ({"max_completion_tokens": 5}, {"max_completion_tokens": 5}),
        ({"max_tokens": 9}, {"max_tokens": 9}),
        ({"max_completion_tokens": None, "max_tokens": 9}, {"max_completion_tokens": None, "max_tokens": 9}),
        ({"max_completion_tokens": 5, "max_tokens": None}, {"max_completion_tokens": 5}),
        ({}, {}),
    ],
)
def test_s22_max_completion_tokens_wins_and_only_it_is_sent(given_limits: dict[str, Any], kept: dict[str, Any]) -> None:
    body = chat(**given_limits).body
    assert {name: body[name] for name in ("max_tokens", "max_completion_tokens") if name in body} == kept


def test_unknown_fields_are_kept_as_they_are() -> None:
    extra = {"num_ctx": 5, "chat_template_kwargs": {"b": 1, "a": [2, 1]}, "user": "u"}
    body = chat(**extra).body
    assert {name: body[name] for name in extra} == extra


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([{"role": "user", "content": "hi"}], "hi"),
        ([{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}], "hi"),
        ([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}], None),
        ([{"role": "user", "content": "hi"}, {"role": "tool", "content": "42", "tool_call_id": "x"}], None),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], "a\nb"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}, {"type": "text", "text": "b"}]}], "b"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], None),
        ([{"role": "user", "content": None}], None),
        ([{"role": "user"}], None),
        ([{"role": "user", "content": 7}], None),
        ([{"role": "user", "content": ""}], ""),
    ],
)
def test_r21_user_text_is_the_last_message_where_a_user_wrote_it(messages: list[Any], text: str | None) -> None:
    assert chat(*messages).user_text == text


@pytest.mark.parametrize(("prompt", "text"), [("hi", "hi"), (["hi"], None), ([1, 2], None)])
def test_user_text_of_a_completion_is_its_one_prompt(prompt: Any, text: str | None) -> None:
    request = parse(orjson.dumps({"model": "m", "prompt": prompt}), "completion")
    assert (request.user_text, list(request.messages), request.has_images, request.has_tools) == (
        text,
        [],
        False,
        False,
    )


@pytest.mark.parametrize(
    ("fields", "messages", "tools"),
    [
        ({}, [], False),
        ({"tools": []}, [], False),
        ({"tools": [{"type": "function"}]}, [], True),
        ({"functions": [{"name": "f"}]}, [], True),
        ({}, [{"role": "assistant", "tool_calls": [{"id": "x"}]}, {"role": "tool", "content": "1"}], True),
        ({}, [{"role": "assistant", "function_call": {"name": "f"}}], True),
        ({}, [{"role": "function", "content": "1"}], True),
        ({}, [{"role": "assistant", "content": "no tool_calls here", "tool_calls": []}], False),
    ],
)
def test_tools_are_seen_in_the_offer_and_in_the_history(fields: Any, messages: list[Any], tools: bool) -> None:
    request = chat(*messages, {"role": "user", "content": "hi"}, **fields)
    assert request.has_tools is tools
    assert not (tools and request.only_text)


@pytest.mark.parametrize(
    ("content", "images"),
    [
        ("text", False),
        ([{"type": "text", "text": "a"}, "b", {"text": "c"}], False),
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:"}}], True),
        ([{"type": "input_audio"}], True),
        ([{"type": ["image_url"]}], True),
    ],
)
def test_anything_but_text_in_any_message_counts_as_an_image(content: Any, images: bool) -> None:
    request = chat({"role": "user", "content": content}, {"role": "user", "content": "and?"})
    assert request.has_images is images
    assert request.only_text is (content == "text")


@pytest.mark.parametrize(
    ("fields", "stream", "usage"),
    [
        ({}, False, False),
        ({"stream": None}, False, False),
        ({"stream": True}, True, False),
        ({"stream": True, "stream_options": None}, True, False),
        ({"stream": True, "stream_options": {"include_usage": False}}, True, False),
        ({"stream": True, "stream_options": {"include_usage": True}}, True, True),
        ({"stream": True, "stream_options": {"include_usage": "true"}}, True, False),
    ],
)
def test_streaming_and_usage_are_asked_for_with_true_only(fields: dict[str, Any], stream: bool, usage: bool) -> None:
    assert (chat(**fields).stream, chat(**fields).include_usage) == (stream, usage)


@given(JSON)
def test_content_text_is_a_text_or_nothing(content: Any) -> None:
    assert isinstance(content_text(content), str | None)


@given(st.text(max_size=60), st.integers(2, 20))
def test_window_keeps_head_and_tail_within_the_limit(text: str, limit: int) -> None:
    kept, cut = window(text, limit)
    assert cut == (len(text) > limit)
    if cut:
        head, tail = kept[: limit // 2], kept[-(limit // 2) :]
        assert (text.startswith(head), text.endswith(tail), len(kept)) == (True, True, 2 * (limit // 2) + 1)
    else:
        assert kept == text
