"""A conversation is recognized by its history, and keeps its tier."""

from typing import Any

import pytest

from core.config import TierName
from core.request import InferenceRequest
from router.classifier import Score
from router.conversations import Conversations
from router.decision import TierFacts, decide

SYSTEM = {"role": "system", "content": "Be brief."}
TIERS: dict[TierName, TierFacts] = {
    "small": TierFacts("a", frozenset({"text", "tools"}), None),
    "frontier": TierFacts("b", frozenset({"text", "tools"}), None),
}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def chat(*messages: dict[str, Any]) -> InferenceRequest:
    return InferenceRequest("chat", {"model": "auto", "messages": list(messages)})


FIRST = chat(SYSTEM, user("Prove it."))
SECOND = chat(SYSTEM, user("Prove it."), assistant("Done."), user("Thanks, which lemma?"))
THIRD = chat(*SECOND.messages, assistant("Zorn's."), user("ok"))


@pytest.mark.parametrize("tier", ["small", "frontier"])
def test_the_next_turn_finds_the_tier(tier: TierName) -> None:
    memory = Conversations()
    assert memory.floor("acme", FIRST) is None
    memory.remember("acme", FIRST, tier)
    assert memory.floor("acme", SECOND) == tier
    memory.remember("acme", SECOND, "frontier")
    assert memory.floor("acme", THIRD) == "frontier"


def test_the_first_turn_belongs_to_no_conversation() -> None:
    memory = Conversations()
    memory.remember("acme", FIRST, "frontier")
    assert memory.floor("acme", FIRST) is None


def test_a_tool_result_stays_in_the_turn_that_called_the_tool() -> None:
    memory = Conversations()
    memory.remember("acme", FIRST, "frontier")
    calling = chat(*FIRST.messages, {"role": "assistant", "tool_calls": []}, {"role": "tool", "content": "42"})
    assert memory.floor("acme", calling) == "frontier"


def test_tenants_and_histories_are_kept_apart() -> None:
    memory = Conversations()
    memory.remember("acme", FIRST, "frontier")
    assert memory.floor("other", SECOND) is None
    other = chat({"role": "system", "content": "Be long."}, *SECOND.messages[1:])
    assert memory.floor("acme", other) is None


def test_order_of_keys_in_a_message_does_not_matter() -> None:
    memory = Conversations()
    memory.remember("acme", FIRST, "frontier")
    turned = [dict(reversed(list(message.items()))) for message in SECOND.messages]
    assert memory.floor("acme", chat(*turned)) == "frontier"


def test_a_conversation_once_on_the_frontier_tier_is_noted_there() -> None:
    memory = Conversations()
    memory.remember("acme", FIRST, "frontier")
    memory.remember("acme", FIRST, "small")
    assert memory.floor("acme", SECOND) == "frontier"


def test_the_least_recently_used_conversation_is_forgotten() -> None:
    memory = Conversations(max_entries=2)
    turns = [chat(user(f"ask {n}")) for n in range(3)]
    following = [chat(*turn.messages, assistant("x"), user("more")) for turn in turns]
    memory.remember("acme", turns[0], "small")
    memory.remember("acme", turns[1], "small")
    assert memory.floor("acme", following[0]) == "small"
    memory.remember("acme", turns[2], "small")
    assert [memory.floor("acme", each) for each in following] == ["small", None, "small"]


def test_text_completions_have_no_conversation() -> None:
    memory = Conversations()
    request = InferenceRequest("completion", {"model": "auto", "prompt": "x"})
    memory.remember("acme", request, "frontier")
    assert len(memory) == 0
    assert memory.floor("acme", request) is None


def test_a_hundred_thousand_decisions_do_not_grow_the_memory() -> None:
    memory = Conversations(max_entries=500)
    for n in range(100_000):
        request = chat(user(f"ask {n}"), assistant("a"), user("more"))
        floor = memory.floor("acme", request)
        score = Score((n % 100) / 100, familiar=True)
        found = decide(request, TIERS, forced=None, floor=floor, score=score, threshold=0.5)
        memory.remember("acme", request, found.tier)
    assert len(memory) == 500
