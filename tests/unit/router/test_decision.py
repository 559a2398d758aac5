"""Which tier serves a request, and why."""

from collections.abc import Mapping
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.config import TierName
from core.errors import BadRequest
from core.request import InferenceRequest
from router.classifier import Score
from router.decision import Decision, Reason, TierFacts, ask, decide, is_approval

ALL = frozenset({"text", "tools", "json", "vision"})
IMAGE = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
TOOLS = [{"type": "function", "function": {"name": "look"}}]


def facts(capabilities: frozenset[str] = ALL, context: int | None = None) -> TierFacts:
    return TierFacts("model", capabilities, context)


def chat(content: Any = "Why?", **fields: Any) -> InferenceRequest:
    return InferenceRequest("chat", {"model": "auto", "messages": [{"role": "user", "content": content}], **fields})


def talk(*contents: str) -> InferenceRequest:
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": content} for index, content in enumerate(contents)]
    return InferenceRequest("chat", {"model": "auto", "messages": messages})


BOTH: Mapping[TierName, TierFacts] = {"small": facts(), "frontier": facts()}
scores = st.builds(Score, st.floats(0, 1), st.booleans())
tier_names = st.sampled_from(["small", "frontier"])


def choose(
    request: InferenceRequest | None = None,
    tiers: Mapping[TierName, TierFacts] = BOTH,
    *,
    forced: TierName | None = None,
    floor: TierName | None = None,
    complexity: float | None = 0.2,
    familiar: bool = True,
) -> Decision:
    score = None if complexity is None else Score(complexity, familiar)
    return decide(request or chat(), tiers, forced=forced, floor=floor, score=score, threshold=0.5)


@given(scores, st.floats(0.01, 1))
def test_complexity_against_the_threshold_decides_a_fresh_ask(score: Score, threshold: float) -> None:
    found = decide(chat(), BOTH, forced=None, floor=None, score=score, threshold=threshold)
    assert found.tier == ("frontier" if score.complexity >= threshold else "small")
    assert found.reason == ("complexity" if score.familiar else "unfamiliar")
    assert (found.complexity, found.threshold) == (score.complexity, threshold)


@given(st.floats(0.01, 0.99), tier_names)
def test_every_tier_is_reachable_at_every_threshold_within(threshold: float, tier: TierName) -> None:
    complexity = 1.0 if tier == "frontier" else 0.0
    found = decide(chat(), BOTH, forced=None, floor=None, score=Score(complexity, True), threshold=threshold)
    assert found.tier == tier


@given(st.one_of(st.none(), scores), st.floats(0, 1), st.sampled_from(["Why?", "yes, do it", "Prove it."]))
def test_a_conversation_on_the_frontier_tier_never_moves_down(score: Score | None, threshold: float, text: str) -> None:
    found = decide(chat(text), BOTH, forced=None, floor="frontier", score=score, threshold=threshold)
    assert (found.tier, found.reason) == ("frontier", "sticky")


@given(scores)
def test_a_conversation_on_the_small_tier_may_move_up(score: Score) -> None:
    found = decide(chat("Prove it."), BOTH, forced=None, floor="small", score=score, threshold=0.5)
    assert found.tier == ("frontier" if score.complexity >= 0.5 else "small")


@given(st.one_of(st.none(), scores), st.one_of(st.none(), tier_names), tier_names)
def test_an_explicit_tier_wins_over_everything(score: Score | None, floor: TierName | None, forced: TierName) -> None:
    found = decide(chat(), BOTH, forced=forced, floor=floor, score=score, threshold=0.5)
    assert (found.tier, found.reason) == (forced, "override")


@given(
    st.lists(st.sampled_from(["vision", "tools", "json"]), unique=True),
    st.sets(st.sampled_from(["vision", "tools", "json"])),
    st.sets(st.sampled_from(["vision", "tools", "json"])),
    st.one_of(st.none(), scores),
    st.one_of(st.none(), tier_names),
    st.one_of(st.none(), tier_names),
)
def test_a_tier_without_a_needed_capability_is_never_chosen(
    needs: list[str],
    small: set[str],
    frontier: set[str],
    score: Score | None,
    floor: TierName | None,
    forced: TierName | None,
) -> None:
    tiers: dict[TierName, TierFacts] = {"small": facts(frozenset(small)), "frontier": facts(frozenset(frontier))}
    request = chat(
        IMAGE if "vision" in needs else "Why?",
        **({"tools": TOOLS} if "tools" in needs else {}),
        **({"response_format": {"type": "json_object"}} if "json" in needs else {}),
    )
    able = [name for name, tier in tiers.items() if set(needs) <= tier.capabilities and forced in (None, name)]
    if not able:
        with pytest.raises(BadRequest):
            decide(request, tiers, forced=forced, floor=floor, score=score, threshold=0.5)
        return
    found = decide(request, tiers, forced=forced, floor=floor, score=score, threshold=0.5)
    assert found.tier in able
    assert found.reason in get_args(Reason)


@pytest.mark.parametrize(
    ("need", "request_"),
    [
        ("vision", chat(IMAGE)),
        ("tools", chat(tools=TOOLS)),
        ("json", chat(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {}}})),
        ("json", chat(structured_outputs={"choice": ["a", "b"]})),
    ],
)
def test_the_capability_that_left_one_tier_is_the_reason(need: Reason, request_: InferenceRequest) -> None:
    tiers: dict[TierName, TierFacts] = {"small": facts(ALL - {need}), "frontier": facts()}
    found = choose(request_, tiers)
    assert (found.tier, found.reason) == ("frontier", need)


def test_a_missing_capability_is_named_to_the_client() -> None:
    with pytest.raises(BadRequest, match="vision") as caught:
        choose(chat(IMAGE), {"small": facts(ALL - {"vision"}), "frontier": facts(ALL - {"vision"})})
    assert caught.value.code == "unsupported_capability"


def test_a_capability_outranks_a_conversations_tier() -> None:
    tiers: dict[TierName, TierFacts] = {"small": facts(), "frontier": facts(ALL - {"vision"})}
    assert choose(chat(IMAGE), tiers, floor="frontier").tier == "small"


def test_one_tier_takes_everything_it_can_do() -> None:
    found = choose(tiers={"small": facts()}, complexity=0.99)
    assert (found.tier, found.reason) == ("small", "only_tier")


def test_a_request_that_certainly_exceeds_a_context_goes_to_the_longer_one() -> None:
    tiers: dict[TierName, TierFacts] = {"small": facts(context=100), "frontier": facts(context=1000)}
    assert choose(chat("word " * 200), tiers).reason == "context"
    assert choose(chat("hi", max_tokens=500), tiers).reason == "context"
    # 200 characters may be 40 tokens: not certain, so not filtered.
    assert choose(chat("a" * 200), tiers).reason == "complexity"
    with pytest.raises(BadRequest) as caught:
        choose(chat("word " * 2000), tiers)
    assert caught.value.code == "context_length_exceeded"


def test_an_ask_without_text_goes_to_the_frontier_tier() -> None:
    assert choose(complexity=None).reason == "no_text"
    assert choose(complexity=None).tier == "frontier"


def test_an_unconfigured_tier_cannot_be_forced() -> None:
    with pytest.raises(BadRequest, match="not configured"):
        choose(tiers={"small": facts()}, forced="frontier")


@pytest.mark.parametrize(
    "text",
    [
        "yes, do it",
        "Yes please",
        "ok",
        "Go ahead!",
        "sounds good, thanks",
        "Ja, mach das",
        "sí, hazlo",
        "oui, vas-y",
        "好的",
        "да",
    ],
)
@pytest.mark.parametrize("floor", ["small", "frontier"])
def test_an_approval_inherits_the_conversations_tier(text: str, floor: TierName) -> None:
    found = choose(talk("Prove it.", "Shall I?", text), floor=floor, complexity=0.9)
    assert (found.tier, found.reason) == (floor, "sticky")


@pytest.mark.parametrize(
    "text",
    [
        "Prove it.",
        "yes, and prove that it terminates",
        "ok, what about Paxos?",
        "",
        "Why do it?",
        "no",
        "x" * 100,
        "ok " * 50,
    ],
)
def test_what_asks_for_more_is_no_approval(text: str) -> None:
    assert not is_approval(text)


def test_an_approval_is_scored_as_what_it_approves() -> None:
    assert ask(talk("Prove the lemma.", "Shall I go on?", "yes, do it")) == "Prove the lemma."
    assert ask(talk("Prove the lemma.", "Shall I?", "ok", "Really?", "yes")) == "Prove the lemma."
    assert ask(talk("yes")) == "yes"
    assert ask(talk("Hello", "Hi", "Prove the lemma.")) == "Prove the lemma."


def test_content_parts_are_scored_as_their_joined_text() -> None:
    parts = [{"type": "text", "text": "Prove"}, {"type": "text", "text": "the lemma"}]
    assert ask(chat(parts)) == "Prove\nthe lemma"
    assert choose(chat(parts), complexity=0.9).tier == "frontier"


def test_text_completions_are_decided_too() -> None:
    request = InferenceRequest("completion", {"model": "auto", "prompt": "word " * 300})
    tiers: dict[TierName, TierFacts] = {"small": facts(context=100), "frontier": facts()}
    assert choose(request, tiers).reason == "context"
    assert choose(request, complexity=0.9).tier == "frontier"
