"""The two layers: what hits, what never does, expiry, bounds, deletion, and the walls between tenants."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from cache.controls import OFF, Controls
from cache.question import Question
from cache.response_cache import ResponseCache
from cache.verdict import Side, Verdict
from core.embedder import Vector
from tests.clock import HandClock
from tests.unit.cache.fakes import (
    ON,
    Agreeing,
    ask,
    beside,
    completion,
    direction,
    embedding,
    settings,
)

STORED = ask("How do I reset my password?")
ASKED = ask("What is the way to reset a password?")
HERE = direction("password")


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
async def cache(clock: HandClock) -> AsyncIterator[ResponseCache]:
    async with ResponseCache(settings({"threshold": 0.8}), clock=clock, verifier=Agreeing()) as opened:
        yield opened


async def keep(
    cache: ResponseCache,
    question: Question = STORED,
    vector: Vector = HERE,
    controls: Controls = ON,
    **answer: Any,
) -> str | None:
    return await cache.store(question, completion(**answer), embedding(vector), tier="small", controls=controls)


async def test_the_same_question_hits_and_another_does_not(cache: ResponseCache, clock: HandClock) -> None:
    assert await cache.exact(STORED, ON) is None
    assert await keep(cache) is None
    clock.now += 12
    hit = await cache.exact(STORED, ON)
    assert hit is not None
    assert (hit.age_s, hit.layer, hit.tier, hit.id) == (12, "exact", "small", STORED.id)
    assert hit.answer == completion()
    assert await cache.exact(ASKED, ON) is None


async def test_another_wording_hits_at_the_threshold_and_not_below(cache: ResponseCache) -> None:
    await keep(cache)
    at = await cache.semantic(ASKED, embedding(beside(HERE, 0.8)), ON)
    assert (at.result, at.nearest_id) == ("hit", STORED.id)
    assert at.hit is not None
    assert at.hit.layer == "semantic"
    assert at.similarity == pytest.approx(0.8, abs=1e-5)
    below = await cache.semantic(ASKED, embedding(beside(HERE, 0.79)), ON)
    assert (below.result, below.hit, below.nearest_id) == ("miss", None, STORED.id)
    assert below.similarity == pytest.approx(0.79, abs=1e-5)


async def test_a_client_may_raise_the_threshold_and_never_lower_it(cache: ResponseCache) -> None:
    await keep(cache)
    near = embedding(beside(HERE, 0.85))
    assert (await cache.semantic(ASKED, near, replace(ON, threshold=0.9))).result == "miss"
    far = embedding(beside(HERE, 0.5))
    lookup = await cache.semantic(ASKED, far, replace(ON, threshold=0.1))
    assert (lookup.result, lookup.threshold) == ("miss", 0.8)


async def test_the_guard_refuses_and_the_lookup_says_so(clock: HandClock) -> None:
    guard = Agreeing(served=False)
    async with ResponseCache(settings(), clock=clock, verifier=guard) as cache:
        await keep(cache)
        lookup = await cache.semantic(ASKED, embedding(HERE), ON)
        assert (lookup.result, lookup.hit) == ("guarded", None)
        assert lookup.verdict is not None
        assert (lookup.verdict.served, lookup.verdict.feature) == (False, "agreeing")
        await cache.semantic(ASKED, embedding(beside(HERE, 0.1)), ON)
        assert guard.asked == 1, "below the threshold nobody is asked"


async def test_a_refused_neighbour_does_not_hide_the_next_one(clock: HandClock) -> None:
    class NotTheFirst(Agreeing):
        def verify(self, asked: Side, stored: Side) -> Verdict:
            self.served = stored.text != STORED.text
            return super().verify(asked, stored)

    async with ResponseCache(settings(), clock=clock, verifier=NotTheFirst()) as cache:
        await keep(cache)
        second = ask("How can I reset a password?")
        await keep(cache, second, beside(HERE, 0.98))
        lookup = await cache.semantic(ASKED, embedding(HERE), ON)
        assert lookup.hit is not None
        assert (lookup.hit.id, lookup.nearest_id) == (second.id, STORED.id)


def test_a_guard_that_is_on_must_be_there(clock: HandClock) -> None:
    with pytest.raises(ValueError, match="verifier"):
        ResponseCache(settings(), clock=clock)


@pytest.mark.parametrize(
    "other",
    [
        ask("What is the way to reset a password?", tenant="globex"),
        ask("What is the way to reset a password?", target="another-model"),
        ask("What is the way to reset a password?", temperature=0.5),
        ask(messages=[{"role": "system", "content": "Be rude."}, {"role": "user", "content": "reset?"}]),
    ],
)
async def test_no_similarity_crosses_a_partition(cache: ResponseCache, other: Question) -> None:
    await keep(cache)
    lookup = await cache.semantic(other, embedding(HERE), ON)
    assert (lookup.result, lookup.nearest_id, lookup.similarity) == ("miss", None, None)


async def test_controls_switch_reading_and_writing(cache: ResponseCache) -> None:
    assert await keep(cache, controls=OFF) == "off"
    assert (await cache.stats()).exact == 0
    await keep(cache)
    refresh = replace(ON, read=False)
    assert await cache.exact(STORED, refresh) is None
    lookup = await cache.semantic(ASKED, embedding(HERE), refresh)
    assert (lookup.result, lookup.reason) == ("bypass", "controls")
    assert await keep(cache, controls=refresh, content="Another answer.") is None
    hit = await cache.exact(STORED, ON)
    assert hit is not None
    assert b"Another answer." in hit.body
    assert (await cache.stats()).exact == 1, "a refresh replaces"


async def test_exact_only_neither_reads_nor_writes_the_semantic_layer(cache: ResponseCache) -> None:
    exact_only = replace(ON, semantic=False)
    await keep(cache, controls=exact_only)
    assert (await cache.semantic(ASKED, embedding(HERE), ON)).result == "miss"
    await keep(cache)
    assert (await cache.semantic(ASKED, embedding(HERE), exact_only)).result == "bypass"
    await keep(cache, controls=exact_only)
    assert (await cache.semantic(ASKED, embedding(HERE), ON)).result == "miss", "the replaced vector is gone"


async def test_a_text_past_the_window_has_no_semantic_layer(cache: ResponseCache) -> None:
    cut = embedding(HERE, truncated=True)
    await cache.store(STORED, completion(), cut, tier="small", controls=ON)
    assert await cache.exact(STORED, ON) is not None
    assert (await cache.semantic(ASKED, embedding(HERE), ON)).result == "miss"
    await keep(cache)
    lookup = await cache.semantic(ASKED, cut, ON)
    assert (lookup.result, lookup.reason) == ("bypass", "window")


async def test_tool_requests_are_stored_exactly_and_never_by_meaning(cache: ResponseCache) -> None:
    agent = ask("go on", tools=[{"type": "function", "function": {"name": "f"}}])
    await keep(cache, agent)
    assert await cache.exact(agent, ON) is not None
    lookup = await cache.semantic(agent, embedding(HERE), ON)
    assert (lookup.result, lookup.reason) == ("bypass", "tools")
    assert (await cache.stats()).semantic == 0


async def test_a_late_embedding_is_a_timeout_and_the_answer_is_stored_exactly(cache: ResponseCache) -> None:
    assert (await cache.semantic(ASKED, None, ON)).result == "timeout"
    assert await cache.store(STORED, completion(), None, tier="small", controls=ON) is None
    assert await cache.exact(STORED, ON) is not None
    assert (await cache.stats()).semantic == 0


@pytest.mark.parametrize("answer", [{"error": {}}, {"choices": []}, {"choices": [{"finish_reason": "length"}]}])
async def test_bad_answers_are_refused_with_a_reason(cache: ResponseCache, answer: dict[str, object]) -> None:
    assert await cache.store(STORED, answer, embedding(HERE), tier="small", controls=ON) is not None
    assert await cache.exact(STORED, ON) is None


async def test_each_layer_has_its_own_lifetime(clock: HandClock) -> None:
    kept = settings({"ttl": 100.0, "threshold": 0.8}, {"ttl": 10.0})
    async with ResponseCache(kept, clock=clock, verifier=Agreeing()) as cache:
        await keep(cache)
        clock.now += 9.9
        assert await cache.exact(STORED, ON) is not None
        clock.now += 0.2
        assert await cache.exact(STORED, ON) is None
        assert (await cache.semantic(ASKED, embedding(HERE), ON)).result == "hit"
        clock.now += 90
        assert (await cache.semantic(ASKED, embedding(HERE), ON)).result == "miss"
        found = await cache.stats()
        assert (found.exact, found.semantic, found.bytes, found.partitions, found.expired) == (0, 0, 0, 0, 1)


async def test_the_oldest_acceptable_answer_is_the_clients_choice(cache: ResponseCache, clock: HandClock) -> None:
    await keep(cache)
    clock.now += 30
    assert await cache.exact(STORED, replace(ON, max_age=30.0)) is not None
    assert await cache.exact(STORED, replace(ON, max_age=29.0)) is None
    assert (await cache.semantic(ASKED, embedding(HERE), replace(ON, max_age=29.0))).result == "miss"


async def test_a_long_max_age_does_not_outlive_the_ttl(cache: ResponseCache, clock: HandClock) -> None:
    await keep(cache)
    clock.now += 3600
    assert await cache.exact(STORED, replace(ON, max_age=1e9)) is None


async def test_a_deleted_entry_is_served_by_neither_layer(cache: ResponseCache) -> None:
    await keep(cache)
    assert await cache.delete(STORED.id)
    assert not await cache.delete(STORED.id)
    assert await cache.exact(STORED, ON) is None
    assert (await cache.semantic(ASKED, embedding(HERE), ON)).nearest_id is None


async def test_purging_takes_one_tenant_or_all(cache: ResponseCache) -> None:
    for tenant in ("acme", "acme2", "globex"):
        for text in ("a", "b"):
            await keep(cache, ask(text, tenant=tenant), direction(text))
    assert await cache.purge("acme") == 2
    assert (await cache.stats()).exact == 4
    assert await cache.purge() == 4
    assert ((await cache.stats()).bytes, (await cache.stats()).partitions) == (0, 0)


async def test_the_least_recently_used_vectors_leave_first(clock: HandClock) -> None:
    kept = settings({"max_entries": 3})
    async with ResponseCache(kept, clock=clock, verifier=Agreeing()) as cache:
        for text in "abc":
            await keep(cache, ask(text), direction(text))
        await cache.exact(ask("a"), ON)
        await cache.semantic(ask("b?"), embedding(direction("b")), ON)
        await cache.exact(ask("c"), ON, touch=False)
        await keep(cache, ask("d"), direction("d"))
        assert [await cache.exact(ask(text), ON) is not None for text in "abcd"] == [True, True, False, True]
        assert (await cache.stats()).evicted == 1


async def test_bytes_are_bounded_over_both_layers(clock: HandClock) -> None:
    kept = settings(max_bytes=60_000)
    async with ResponseCache(kept, clock=clock, verifier=Agreeing()) as cache:
        for number in range(300):
            vector = embedding(direction(str(number))) if number % 2 else None
            await cache.store(ask(str(number)), completion("x" * number), vector, tier="small", controls=ON)
            assert (await cache.stats()).bytes <= 60_000
        assert 0 < (await cache.stats()).exact < 60
        assert await cache.exact(ask("299"), ON) is not None
        assert await cache.exact(ask("0"), ON) is None


async def test_an_answer_larger_than_the_cache_is_not_stored_and_ends_the_old_one(clock: HandClock) -> None:
    kept = settings(max_bytes=20_000)
    async with ResponseCache(kept, clock=clock, verifier=Agreeing()) as cache:
        await keep(cache)
        assert await keep(cache, content="x" * 30_000) == "too_large"
        assert await cache.exact(STORED, ON) is None
        assert (await cache.semantic(ASKED, embedding(HERE), ON)).nearest_id is None
        assert (await cache.stats()).bytes == 0


async def test_switched_off_layers_do_nothing(clock: HandClock) -> None:
    off = settings({"enabled": False}, {"enabled": False})
    async with ResponseCache(off, clock=clock) as cache:
        assert await keep(cache) == "disabled"
    exact_off = settings({"threshold": 0.8}, {"enabled": False})
    async with ResponseCache(exact_off, clock=clock, verifier=Agreeing()) as cache:
        await keep(cache)
        assert await cache.exact(STORED, ON) is None
        assert (await cache.semantic(ASKED, embedding(HERE), ON)).result == "hit"
    semantic_off = settings({"enabled": False})
    async with ResponseCache(semantic_off, clock=clock) as cache:
        await keep(cache)
        assert await cache.exact(STORED, ON) is not None
        assert (await cache.semantic(ASKED, embedding(HERE), ON)).reason == "disabled"


async def test_looking_without_touching_changes_nothing(clock: HandClock) -> None:
    async with ResponseCache(settings({"max_entries": 2}), clock=clock, verifier=Agreeing()) as cache:
        for text in "ab":
            await keep(cache, ask(text), direction(text))
        before = await cache.stats()
        await cache.exact(ask("a"), ON, touch=False)
        found = await cache.semantic(ask("a?"), embedding(direction("a")), ON, touch=False)
        assert found.result == "hit"
        assert await cache.stats() == before
        await keep(cache, ask("c"), direction("c"))
        assert await cache.exact(ask("a"), ON) is None, "a was still the least recently used"


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12), st.floats(0, 1), st.floats(0, 1))
async def test_raising_the_threshold_never_adds_hits(similarities: list[float], one: float, two: float) -> None:
    low, high = sorted((one, two))
    async with ResponseCache(settings({"threshold": 0.0}), clock=HandClock(), verifier=Agreeing()) as cache:
        for number, similarity in enumerate(similarities):
            await keep(cache, ask(str(number)), beside(HERE, similarity))
        found = [await cache.semantic(ASKED, embedding(HERE), replace(ON, threshold=t)) for t in (low, high)]
    assert found[0].hit is not None or found[1].hit is None
    assert all(lookup.similarity is not None and -1.0001 <= lookup.similarity <= 1.0001 for lookup in found)


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.data())
async def test_no_answer_crosses_to_another_tenant(data: st.DataObject) -> None:
    tenants = ["a", "b", "a\x00b", "ab", "*"]
    texts = ["q", "q?", "Q", "p"]
    async with ResponseCache(settings({"threshold": 0.0}), clock=HandClock(), verifier=Agreeing()) as cache:
        for _ in range(data.draw(st.integers(1, 12))):
            tenant, text = data.draw(st.sampled_from(tenants)), data.draw(st.sampled_from(texts))
            kept = ask(text, tenant=tenant)
            await keep(cache, kept, direction(text), content=f"for {tenants.index(tenant)}.")
            reader = data.draw(st.sampled_from(tenants))
            asked = ask(data.draw(st.sampled_from(texts)), tenant=reader)
            exact = await cache.exact(asked, ON)
            lookup = await cache.semantic(asked, embedding(direction(asked.text or "")), ON)
            for hit in (exact, lookup.hit):
                assert hit is None or f"for {tenants.index(reader)}.".encode() in hit.body


@hypothesis_settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("sdtx"), st.integers(0, 7)), max_size=60))
async def test_what_is_served_is_what_was_stored_last(steps: list[tuple[str, int]]) -> None:
    clock = HandClock()
    kept = settings({"threshold": 0.99, "ttl": 10.0, "max_entries": 5}, {"ttl": 10.0})
    model: dict[int, tuple[str, float]] = {}
    async with ResponseCache(kept, clock=clock, verifier=Agreeing()) as cache:
        for count, (step, number) in enumerate(steps):
            question, vector = ask(str(number)), direction(str(number))
            if step == "s":
                await keep(cache, question, vector, content=f"answer {count}")
                model[number] = (f"answer {count}", clock.now)
            elif step == "d":
                await cache.delete(question.id)
                model.pop(number, None)
            elif step == "t":
                clock.now += number
            expected = model.get(number)
            alive = expected is not None and clock.now - expected[1] < 10
            lookup = await cache.semantic(ask(f"{number}?"), embedding(vector), ON)
            for hit in (await cache.exact(question, ON), lookup.hit):
                if hit is not None:
                    assert alive
                    assert expected is not None
                    assert expected[0].encode() in hit.body
            assert (await cache.stats()).semantic <= 5


async def test_vectors_are_not_shared_with_the_caller(cache: ResponseCache) -> None:
    vector = HERE.copy()
    await keep(cache, vector=vector)
    vector[:] = direction("elsewhere")
    lookup = await cache.semantic(ASKED, embedding(HERE), ON)
    assert lookup.similarity == pytest.approx(1.0, abs=1e-5)
    assert np.allclose(np.linalg.norm(vector), 1.0)
