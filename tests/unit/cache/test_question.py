"""Cases C1 to C8, C24 and C34 of the collected field reports, as far as identity goes."""

import random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.question import Question, namespace, question
from core.request import InferenceRequest, parse
from tests.unit.cache.fakes import ask

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
OTHER_TOOL = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}}
VALUES = {
    "temperature": (0, 0.7, 1, None),
    "top_p": (0.5, 1),
    "max_tokens": (16, 256),
    "max_completion_tokens": (16, 256),
    "stop": ("\n", ["\n"], ["a", "b"], ["b", "a"]),
    "n": (1, 2),
    "seed": (1, 2),
    "logit_bias": ({"50256": -100}, {"50257": -100}),
    "tool_choice": ("auto", "none"),
    "tools": ([TOOL], [OTHER_TOOL], [TOOL, OTHER_TOOL], [OTHER_TOOL, TOOL]),
    "response_format": ({"type": "text"}, {"type": "json_object"}),
    "num_ctx": (1024, 4096),
    "top_k": (1, 40),
    "guided_json": ({"type": "object"}, {"type": "array"}),
    "chat_template_kwargs": ({"enable_thinking": True}, {"enable_thinking": False}),
    "previous_response_id": ("resp_1", "resp_2"),
    "instructions": ("Be brief.", "Be long."),
    "a_field_of_tomorrow": (1, 2),
}


@pytest.mark.parametrize("field", VALUES)
def test_every_field_is_part_of_the_question(field: str) -> None:
    absent = ask().fingerprint
    found = [ask(**{field: value}).fingerprint for value in VALUES[field]]
    assert len({absent, *found}) == len(found) + 1, "each value, and its absence, is a question of its own"


@pytest.mark.parametrize("field", sorted(set(VALUES) - {"tool_choice", "tools", "previous_response_id"}))
def test_every_field_but_the_last_text_selects_the_partition(field: str) -> None:
    absent = ask().partition
    found = [ask(**{field: value}).partition for value in VALUES[field]]
    assert absent is not None
    assert len({absent, *found}) == len(found) + 1


def test_how_the_answer_travels_is_no_part_of_the_question() -> None:
    plain = ask()
    assert plain == ask(stream=True, stream_options={"include_usage": True}, user="u-17")
    assert plain == ask(stream=False)


def test_the_order_of_keys_is_nothing_and_the_order_of_items_is_something() -> None:
    one = (
        b'{"model":"auto","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","x":{"a":1,"b":2}}]}'
    )
    two = (
        b'{"tools":[{"x":{"b":2,"a":1},"type":"function"}],"messages":[{"content":"hi","role":"user"}],"model":"auto"}'
    )
    assert _of(one).fingerprint == _of(two).fingerprint


@pytest.mark.parametrize(("one", "two"), [("1", "1.0"), ("0", "0.0"), ("100", "1e2"), ("0", "-0.0")])
def test_equal_numbers_are_one_value_however_they_are_written(one: str, two: str) -> None:
    body = '{"model":"auto","messages":[{"role":"user","content":"version 1.0"}],"x":{"y":[%s]}}'
    assert _of((body % one).encode()) == _of((body % two).encode())


@pytest.mark.parametrize(("one", "two"), [("1", "true"), ("0", "false"), ("1", '"1"'), ("null", "0"), ("0.1", "0.2")])
def test_values_of_different_type_are_different(one: str, two: str) -> None:
    body = '{"model":"auto","messages":[{"role":"user","content":"hi"}],"x":%s}'
    assert _of((body % one).encode()).fingerprint != _of((body % two).encode()).fingerprint


def test_tenant_target_and_kind_are_part_of_both_keys() -> None:
    questions = [ask(), ask(tenant="other"), ask(tenant="*"), ask(target="small-model")]
    assert len({q.fingerprint for q in questions}) == 4
    assert len({q.partition for q in questions}) == 4


def test_the_model_name_in_the_body_is_not_compared_but_what_it_resolves_to() -> None:
    by_tier = InferenceRequest("chat", {"model": "small", "messages": [{"role": "user", "content": "hi"}]})
    by_name = InferenceRequest("chat", {"model": "qwen", "messages": [{"role": "user", "content": "hi"}]})
    keys = [question(request, tenant="a", target="qwen", namespace="n") for request in (by_tier, by_name)]
    assert keys[0] == keys[1]


def test_vectors_of_another_embedder_are_another_partition_and_exact_answers_stay() -> None:
    request = InferenceRequest("chat", {"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    embedders = [("e", "1", 384), ("e", "1", 768), ("e", "2", 384), ("f", "1", 384)]
    asked = [question(request, tenant="a", target="m", namespace=namespace(*embedder)) for embedder in embedders]
    assert len({one.partition for one in asked}) == len(embedders)
    assert len({one.fingerprint for one in asked}) == 1


def test_only_the_last_user_text_is_fuzzy() -> None:
    system = {"role": "system", "content": "You are terse."}
    one = ask(messages=[system, {"role": "user", "content": "How tall is Everest?"}])
    two = ask(messages=[system, {"role": "user", "content": "What is the height of Everest?"}])
    assert one.partition == two.partition
    assert one.fingerprint != two.fingerprint
    assert (one.text, two.text) == ("How tall is Everest?", "What is the height of Everest?")


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "You are chatty."}, {"role": "user", "content": "q"}],
        [
            {"role": "user", "content": "before"},
            {"role": "assistant", "content": "x"},
            {"role": "user", "content": "q"},
        ],
        [
            {"role": "user", "content": "before"},
            {"role": "assistant", "content": "y"},
            {"role": "user", "content": "q"},
        ],
        [{"role": "user", "name": "bob", "content": "q"}],
        [{"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "text", "text": "q"}]}],
    ],
)
def test_history_and_shape_select_the_partition(messages: list[dict[str, Any]]) -> None:
    assert ask("q").partition != ask(messages=messages).partition


def test_one_text_part_is_the_same_partition_as_a_string() -> None:
    assert (
        ask("q").partition == ask(messages=[{"role": "user", "content": [{"type": "text", "text": "other"}]}]).partition
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"tools": [TOOL]}, "tools"),
        ({"functions": [{"name": "f"}]}, "tools"),
        ({"tool_choice": "required"}, "tools"),
        ({"store": True}, "stateful"),
        ({"conversation": "conv_1"}, "stateful"),
        ({"previous_response_id": "resp_1"}, "stateful"),
        ({"echo": True}, "verbatim"),
        ({"prompt_logprobs": 1}, "verbatim"),
        ({"web_search_options": {"search_context_size": "low"}}, "verbatim"),
        ({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Sure, "}]}, "not_user"),
        ({"messages": [{"role": "user", "content": " "}]}, "empty"),
        ({"messages": [{"role": "user", "content": None}]}, "empty"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]}, "parts"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "parts"),
        (
            {"messages": [{"role": "user", "content": "q"}, {"role": "tool", "tool_call_id": "1", "content": "r"}]},
            "tools",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}, {"role": "user", "content": "q"}]},
            "tools",
        ),
    ],
)
def test_what_has_no_semantic_layer_says_why_and_keeps_its_fingerprint(body: dict[str, Any], reason: str) -> None:
    found = ask(**body)
    assert (found.partition, found.text, found.bypass) == (None, None, reason)
    assert len(found.fingerprint) == 64


@pytest.mark.parametrize(
    "body", [{"store": False}, {"store": None}, {"previous_response_id": None}, {"echo": False}, {"n": 2}]
)
def test_fields_that_switch_nothing_on_keep_the_semantic_layer(body: dict[str, Any]) -> None:
    assert ask(**body).bypass is None


def test_text_completions_are_exact_only() -> None:
    request = InferenceRequest("completion", {"model": "m", "prompt": "Once upon a time"})
    found = question(request, tenant="a", target="m", namespace="n")
    assert found.bypass == "completion"
    chat = InferenceRequest("chat", {"model": "m", "prompt": "Once upon a time", "messages": [{"role": "user"}]})
    assert found.fingerprint != question(chat, tenant="a", target="m", namespace="n").fingerprint


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(min_size=1, max_size=8), json_values, max_size=4), st.randoms(use_true_random=False))
def test_shuffled_keys_ask_the_same(fields: dict[str, Any], rng: random.Random) -> None:
    body = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]} | {f"x-{k}": v for k, v in fields.items()}
    assert _of(orjson.dumps(body)).fingerprint == _of(orjson.dumps(_shuffled(body, rng))).fingerprint


@given(st.text(max_size=8), json_values, json_values)
def test_another_value_asks_something_else(name: str, one: Any, two: Any) -> None:
    keys = [ask(**{f"x-{name}": value}).fingerprint for value in (one, two)]
    assert (keys[0] == keys[1]) == (_canonical(one) == _canonical(two))


def _canonical(value: Any) -> Any:
    """Python's own equality, but with booleans apart from numbers."""
    if isinstance(value, dict):
        return frozenset((key, _canonical(item)) for key, item in value.items())
    if isinstance(value, list):
        return ("list", *map(_canonical, value))
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return (type(value).__name__, repr(value))


def _shuffled(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict):
        items = list(value.items())
        rng.shuffle(items)
        return {key: _shuffled(item, rng) for key, item in items}
    return [_shuffled(item, rng) for item in value] if isinstance(value, list) else value


def _of(raw: bytes) -> Question:
    return question(parse(raw, "chat"), tenant="a", target="auto", namespace="n")
