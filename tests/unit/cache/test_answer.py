"""Which answers may be stored, and replay in every direction (cases C10, C11, C13 to C18)."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.answer import Hit, StreamAssembler, as_json, as_sse, lasting, refusal_to_store, replayable
from tests.unit.cache.fakes import completion

CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":  "Zürich",\n"d":1.0}'}},
    {"id": "call_2", "type": "function", "function": {"name": "time", "arguments": "{}"}},
]


def hit(answer: dict[str, Any]) -> Hit:
    return Hit("id", 1.0, orjson.dumps(answer), "exact", 1.0, "small")


def events(lines: list[bytes]) -> list[Any]:
    for line in lines:
        assert line.startswith(b"data: ")
        assert line.endswith(b"\n\n")
    assert lines[-1] == b"data: [DONE]\n\n"
    return [orjson.loads(line[6:]) for line in lines[:-1]]


def assembled(chunks: list[Any], done: bool = True) -> tuple[Any, str | None]:
    assembler = StreamAssembler()
    for chunk in chunks:
        assembler.feed(chunk if isinstance(chunk, bytes) else orjson.dumps(chunk))
    return assembler.finish(done)


def chunk(delta: dict[str, Any], finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish} | more
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def without_nothing(value: Any) -> Any:
    """The value without fields that are null or empty lists: JSON answers write them out, streams leave them away."""
    if isinstance(value, dict):
        return {key: without_nothing(item) for key, item in value.items() if item not in (None, [])}
    return [without_nothing(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"error": {"message": "busy"}}, "error"),
        (completion() | {"error": {"message": "late"}}, "error"),
        ("text", "error"),
        ({"object": "chat.completion"}, "no_choices"),
        ({"choices": []}, "no_choices"),
        ({"choices": ["x"]}, "incomplete"),
        ({"choices": [{"message": {"content": "x"}}]}, "incomplete"),
        ({"choices": [{"message": {"content": "x"}, "finish_reason": None}]}, "incomplete"),
        ({"choices": [{"message": {"content": "x"}, "finish_reason": "length"}]}, "length"),
        ({"choices": [{"message": {"content": "x"}, "finish_reason": "content_filter"}]}, "content_filter"),
        ({"choices": [{"message": {"content": "x"}, "finish_reason": "abort"}]}, "failed"),
        ({"choices": [{"message": {"content": "x"}, "finish_reason": "error"}]}, "failed"),
        ({"choices": [{"message": {"content": " \n"}, "finish_reason": "stop"}]}, "empty"),
        ({"choices": [{"message": {"content": None, "reasoning": "hm"}, "finish_reason": "stop"}]}, "empty"),
        ({"choices": [{"message": None, "finish_reason": "stop"}]}, "empty"),
        ({"choices": [{"text": "", "finish_reason": "stop"}]}, "empty"),
        ({"choices": [*completion()["choices"], {"message": {"content": "x"}, "finish_reason": "length"}]}, "length"),
    ],
)
def test_what_is_not_a_complete_answer_is_not_stored(answer: Any, reason: str) -> None:
    assert refusal_to_store(answer) == reason


@pytest.mark.parametrize(
    "answer",
    [
        completion(),
        completion(None, tool_calls=CALLS),
        completion(None, refusal="I will not."),
        {"object": "text_completion", "choices": [{"index": 0, "text": " there was", "finish_reason": "stop"}]},
    ],
)
def test_complete_answers_are_stored(answer: dict[str, Any]) -> None:
    assert refusal_to_store(answer) is None


def test_json_is_replayed_as_it_was_stored() -> None:
    answer = completion(None, tool_calls=CALLS)
    assert orjson.loads(as_json(hit(answer))) == answer


def test_a_stream_has_role_content_finish_and_done_in_this_order() -> None:
    role, content, finish = events(as_sse(hit(completion("Hi.")), include_usage=False))
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert content["choices"][0]["delta"] == {"content": "Hi."}
    assert (finish["choices"][0]["delta"], finish["choices"][0]["finish_reason"]) == ({}, "stop")
    for event in (role, content, finish):
        assert event["object"] == "chat.completion.chunk"
        assert (event["id"], event["model"]) == ("chatcmpl-1", "m")
        assert "usage" not in event


def test_usage_comes_last_and_only_when_it_is_asked_for() -> None:
    *chunks, usage = events(as_sse(hit(completion()), include_usage=True))
    assert usage["choices"] == []
    assert usage["usage"] == completion()["usage"]
    assert all(event["usage"] is None for event in chunks)


def test_an_answer_without_usage_is_replayed_without_a_usage_chunk() -> None:
    answer = completion()
    del answer["usage"]
    assert len(events(as_sse(hit(answer), include_usage=True))) == 3


def test_tool_calls_keep_every_byte_of_their_arguments() -> None:
    answer = completion(None, tool_calls=CALLS)
    found, reason = assembled(events(as_sse(hit(answer), include_usage=True)))
    assert reason is None
    assert found["choices"][0]["message"]["tool_calls"] == CALLS
    assert found["choices"][0]["message"]["content"] is None
    assert found["choices"][0]["finish_reason"] == "tool_calls"


def test_fragments_of_tool_calls_are_joined_by_index() -> None:
    arguments = CALLS[0]["function"]["arguments"]
    opening = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
    pieces = [chunk({"role": "assistant", "tool_calls": [{"index": 0} | opening]})]
    pieces.append(
        chunk({"tool_calls": [{"index": 1, "id": "call_2", "type": "function", "function": CALLS[1]["function"]}]})
    )
    pieces += [chunk({"tool_calls": [{"index": 0, "function": {"arguments": letter}}]}) for letter in arguments]
    found, reason = assembled([*pieces, chunk({}, "tool_calls"), b"[DONE]"])
    assert reason is None
    assert found["choices"][0]["message"]["tool_calls"] == CALLS


def test_fragments_in_one_delta_are_joined_too() -> None:
    parts = [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}]
    parts.append({"index": 0, "function": {"arguments": "}"}})
    found, _ = assembled([chunk({"tool_calls": parts}), chunk({}, "tool_calls")])
    assert [call["function"]["arguments"] for call in found["choices"][0]["message"]["tool_calls"]] == ["{}"]


def test_reasoning_refusal_logprobs_and_unknown_fields_are_kept() -> None:
    entry = {"token": "Hi", "logprob": -0.1, "bytes": [72, 105], "top_logprobs": []}
    other = entry | {"token": "!"}
    pieces = [
        chunk({"role": "assistant", "content": "", "refusal": None}),
        chunk({"reasoning_content": "Let me "}),
        chunk({"reasoning_content": "think.", "mood": {"tone": "ca"}}),
        chunk({"content": "Hi", "mood": {"tone": "lm"}}, logprobs={"content": [entry]}),
        chunk({"content": "!"}, logprobs={"content": [other]}, stop_reason=None),
        chunk({}, "stop", stop_reason=128001),
    ]
    found, reason = assembled(pieces)
    (choice,) = found["choices"]
    assert reason is None
    assert choice["message"] == {
        "role": "assistant",
        "content": "Hi!",
        "refusal": None,
        "reasoning_content": "Let me think.",
        "mood": {"tone": "calm"},
    }
    assert choice["logprobs"] == {"content": [entry, other]}
    assert choice["stop_reason"] == 128001


def test_several_choices_are_kept_apart_and_in_order() -> None:
    pieces = [chunk({"content": "b"}, index=1), chunk({"content": "a"}), chunk({"content": "!"}, index=1)]
    found, reason = assembled([*pieces, chunk({}, "stop", index=1), chunk({}, "stop")])
    assert reason is None
    assert [choice["message"]["content"] for choice in found["choices"]] == ["a", "b!"]
    assert [choice["index"] for choice in found["choices"]] == [0, 1]


def test_text_completions_are_collected_and_replayed() -> None:
    frame = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
    pieces = [
        frame | {"choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": None}]} for text in "ab"
    ]
    pieces.append(frame | {"choices": [{"index": 0, "text": "c", "finish_reason": "stop"}]})
    found, reason = assembled([*pieces, frame | {"choices": [], "usage": {"total_tokens": 3}}])
    assert reason is None
    assert found["object"] == "text_completion"
    assert found["choices"] == [{"index": 0, "text": "abc", "logprobs": None, "finish_reason": "stop"}]
    assert found["usage"] == {"total_tokens": 3}
    again, reason = assembled(events(as_sse(hit(found), include_usage=True)))
    assert reason is None
    assert again == found


@pytest.mark.parametrize(
    ("pieces", "done", "reason"),
    [
        ([chunk({"content": "Hi"}), chunk({}, "stop")], False, "incomplete_stream"),
        ([chunk({"content": "Hi"})], True, "incomplete_stream"),
        ([chunk({"content": "Hi"}, "stop"), chunk({"content": "x"}, index=1)], True, "incomplete_stream"),
        ([chunk({"content": "Hi"}), chunk({}, "length")], True, "length"),
        ([chunk({"content": "Hi"}), {"error": {"message": "gone"}}, chunk({}, "stop")], True, "error"),
        ([chunk({"content": "Hi"}), b"{broken", chunk({}, "stop")], True, "malformed"),
        ([b"[1]"], True, "malformed"),
        ([chunk({"role": "assistant", "content": ""}), chunk({}, "stop")], True, "empty"),
        ([], True, "no_choices"),
    ],
)
def test_a_stream_that_is_not_a_whole_answer_is_not_stored(pieces: list[Any], done: bool, reason: str) -> None:
    assert assembled(pieces, done) == (None, reason)


def test_a_stream_past_the_limit_is_given_up_and_its_memory_freed() -> None:
    assembler = StreamAssembler(limit=1000)
    for _ in range(50):
        assembler.feed(orjson.dumps(chunk({"content": "x" * 100})))
    assembler.feed(b"[DONE]")
    assert assembler.finish(True) == (None, "too_large")


texts = st.text(min_size=1).filter(lambda text: text.strip())
calls = st.lists(
    st.builds(
        lambda number, name, arguments: {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        },
        st.integers(0, 99),
        texts,
        st.text(),
    ),
    max_size=3,
)


@given(st.lists(st.tuples(texts, calls, st.none() | texts), min_size=1, max_size=3), st.booleans())
def test_json_to_stream_to_json_is_the_same_answer(said: list[tuple[str, list[Any], str | None]], usage: bool) -> None:
    answer = completion()
    answer["choices"] = [
        {
            "index": index,
            "message": {"role": "assistant", "content": text, "reasoning": reasoning, "tool_calls": made},
            "logprobs": None,
            "finish_reason": "tool_calls" if made else "stop",
        }
        for index, (text, made, reasoning) in enumerate(said)
    ]
    found, reason = assembled(events(as_sse(hit(answer), include_usage=usage)))
    assert reason is None
    if not usage:
        del answer["usage"]
    assert without_nothing(found) == without_nothing(answer)


@given(texts, st.lists(st.integers(1, 5), min_size=1))
def test_it_does_not_matter_how_the_text_was_cut(text: str, cuts: list[int]) -> None:
    pieces, rest = [], text
    while rest:
        size = cuts[len(pieces) % len(cuts)]
        pieces.append(chunk({"content": rest[:size]}))
        rest = rest[size:]
    found, reason = assembled([*pieces, chunk({}, "stop")])
    assert reason is None
    assert found["choices"][0]["message"]["content"] == text


@given(st.lists(st.tuples(texts, calls, st.none() | texts), min_size=1, max_size=3), st.data())
def test_who_joins_a_stream_late_gets_the_same_answer(
    said: list[tuple[str, list[Any], str | None]], data: st.DataObject
) -> None:
    pieces = [
        chunk(delta, index=index)
        for index, (text, made, reasoning) in enumerate(said)
        for delta in (
            {"role": "assistant", "content": ""},
            *({"reasoning": part} for part in (reasoning or "")),
            *({"content": part} for part in text),
            *(
                {"tool_calls": [part]}
                for number, call in enumerate(made)
                for part in (
                    {"index": number, **call, "function": {"name": call["function"]["name"], "arguments": ""}},
                    {"index": number, "function": {"arguments": call["function"]["arguments"]}},
                )
            ),
        )
    ]
    pieces += [chunk({}, "tool_calls" if made else "stop", index) for index, (_, made, _) in enumerate(said)]
    at = data.draw(st.integers(0, len(pieces)))
    assembler = StreamAssembler()
    for piece in pieces[:at]:
        assembler.feed(orjson.dumps(piece))
    missed = assembler.so_far()
    assert missed is not None
    assert (missed == b"") == (at == 0)
    caught_up = [orjson.loads(missed[6:])] if missed else []
    late, whole = assembled([*caught_up, *pieces[at:]]), assembled(pieces)
    assert late == whole


def test_a_stream_that_was_given_up_cannot_be_joined() -> None:
    assembler = StreamAssembler(limit=10)
    assembler.feed(orjson.dumps(chunk({"content": "too long for it"})))
    assert assembler.so_far() is None
    assert assembler.whole() is None


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_an_answer_that_is_not_stored_is_still_whole(finish: str) -> None:
    assembler = StreamAssembler()
    for piece in (chunk({"role": "assistant", "content": "half"}), chunk({}, finish)):
        assembler.feed(orjson.dumps(piece))
    assert assembler.finish(done=True) == (None, finish)
    answer: Any = assembler.whole()
    assert replayable(answer)
    assert answer["choices"][0]["finish_reason"] == finish


@pytest.mark.parametrize(
    "answer",
    [{}, {"choices": []}, {"choices": [{"message": {}}]}, {"choices": [{"finish_reason": "stop"}]}, {"choices": [1]}],
    ids=str,
)
def test_what_is_no_completion_cannot_be_replayed(answer: dict[str, Any]) -> None:
    assert not replayable(answer)


@pytest.mark.parametrize("name", ["refusal", "reasoning", "reasoning_content"])
def test_every_kind_of_text_is_continued_and_replayed(name: str) -> None:
    parts = [chunk({"role": "assistant", "content": ""}), *(chunk({name: part}) for part in ("I ", "can", "not"))]
    said = [*parts, chunk({"content": "so."}), chunk({}, "stop")]
    found, reason = assembled(said)
    assert reason is None
    assert found["choices"][0]["message"][name] == "I cannot"
    again, _ = assembled(events(as_sse(hit(found), include_usage=False)))
    assert again["choices"][0]["message"] == found["choices"][0]["message"]


def test_what_belongs_to_one_run_of_the_engine_is_not_kept() -> None:
    answer = completion()
    assert lasting(answer) == answer
    assert lasting(answer | {"kv_transfer_params": None}) == answer | {"kv_transfer_params": None}
    passing = {"kv_transfer_params": {"remote_host": "10.0.0.1"}, "ec_transfer_params": {"x": 1}, "metrics": {"y": 2}}
    assert lasting(answer | passing) == answer
