"""The turns of one conversation have one session; another conversation, tenant or kind of request has not."""

from typing import Any

import orjson
import pytest

from core.request import RouteKind, parse
from gateway.affinity import session

SYSTEM = {"role": "system", "content": "You are terse."}
FIRST = {"role": "user", "content": "What is the capital of France?"}
REST = [{"role": "assistant", "content": "Paris."}, {"role": "user", "content": "And of Spain?"}]


def name(*messages: dict[str, Any], tenant: str = "t", **fields: Any) -> str | None:
    body = orjson.dumps({"model": "m", "messages": messages, **fields})
    return session(tenant, parse(body, "chat"))


def test_every_turn_of_a_conversation_has_the_same_session() -> None:
    first = name(SYSTEM, FIRST)
    assert first == name(SYSTEM, FIRST, *REST) == name(SYSTEM, FIRST, *REST, *REST, temperature=0.5, stream=True)
    assert first is not None
    assert first.isalnum()
    assert len(first) == 24


def test_parts_of_text_are_the_same_text() -> None:
    assert name({"role": "user", "content": [{"type": "text", "text": "hi"}]}) == name(
        {"role": "user", "content": "hi"}
    )


@pytest.mark.parametrize(
    ("messages", "tenant"),
    [
        ([SYSTEM, FIRST], "other"),
        ([FIRST], "t"),
        ([SYSTEM, {**FIRST, "content": "What is the capital of Spain?"}], "t"),
        ([{**SYSTEM, "role": "developer"}, FIRST], "t"),
    ],
)
def test_what_begins_differently_has_another_session(messages: list[dict[str, Any]], tenant: str) -> None:
    assert name(*messages, tenant=tenant) != name(SYSTEM, FIRST)


def test_only_the_head_of_a_long_message_counts() -> None:
    long = "x" * 2000
    assert name({"role": "user", "content": long + "a"}) == name({"role": "user", "content": long + "b"})


def test_text_that_cannot_be_written_as_utf_8_has_a_session_too() -> None:
    body = b'{"model": "m", "messages": [{"role": "user", "content": "\\ud83d\\ude00 caf\\u00e9"}]}'
    assert session("t", parse(body, "chat")) is not None


def test_a_text_completion_has_none() -> None:
    kind: RouteKind = "completion"
    assert session("t", parse(orjson.dumps({"model": "m", "prompt": "hi"}), kind)) is None
