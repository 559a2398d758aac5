"""A request that names its tier is embedded before its answer only where the cache may have one."""

from collections.abc import AsyncIterator

import pytest

from bench.engine import ScriptedEngine
from core.embedder import Vector
from tests.integration.stack import FRONTIER, SMALL, Stack, WordEncoder, chat, gateway, tiers, until
from tests.integration.wire import Answer, ask

ONE, OTHER, STRANGER = "how do I reset my password", "my password how do I reset", "what is the capital of France"
LAYER = {"semantic": {"enabled": True, "threshold": 0.9, "guard": False, "deadline": "5s"}}


class WordGlance:
    """The vectors of the tests' encoder, without being counted."""

    dim = WordEncoder.dim

    def vector(self, text: str) -> Vector:
        return WordEncoder().encode([text])[0].vector

    def least(self, threshold: float) -> float | None:
        return threshold


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(SMALL) as running:
        yield running


@pytest.fixture
async def stack(engine: ScriptedEngine) -> AsyncIterator[Stack]:
    async with gateway({**tiers(engine), "cache": LAYER}, glance=WordGlance()) as running:
        yield running


async def post(stack: Stack, text: str, **fields: object) -> Answer:
    answer = await ask(stack.url, "/v1/chat/completions", chat(text, **fields))
    assert answer.status == 200
    return answer


async def settled(stack: Stack) -> None:
    await until(lambda: stack.process.services.late.waiting == 0)


async def test_c27_a_miss_is_embedded_once_after_its_answer(stack: Stack) -> None:
    """C27: where the first look found nothing, the vector is made for the entry, and only then."""
    assert (await post(stack, ONE)).header("x-forebay-cache") == "miss"
    assert (await post(stack, STRANGER)).header("x-forebay-cache") == "miss"
    await settled(stack)
    assert stack.encoder.texts == [ONE, STRANGER]
    assert await stack.metric("forebay_cache_lookups_total", layer="semantic", result="miss") == 2
    assert await stack.metric("forebay_cache_entries", layer="semantic") == 2


async def test_another_wording_right_after_the_answer_is_a_hit(stack: Stack) -> None:
    await post(stack, ONE)
    hit = await post(stack, OTHER)
    assert hit.header("x-forebay-cache") == "hit-semantic"
    await settled(stack)
    assert stack.encoder.texts == [ONE, OTHER]


@pytest.mark.parametrize("stream", [False, True])
async def test_streams_are_stored_and_found_the_same_way(stack: Stack, stream: bool) -> None:
    await post(stack, ONE, stream=stream)
    assert (await post(stack, OTHER, stream=stream)).header("x-forebay-cache") == "hit-semantic"


async def test_an_answer_that_is_not_stored_is_not_embedded(stack: Stack, engine: ScriptedEngine) -> None:
    await post(stack, ONE, script={"finish_reason": "length"})
    await settled(stack)
    assert stack.encoder.texts == []


async def test_a_refresh_is_embedded_after_its_answer(stack: Stack) -> None:
    await post(stack, ONE)
    body = chat(STRANGER)
    answer = await ask(stack.url, "/v1/chat/completions", body, **{"x-forebay-cache": "refresh"})
    assert answer.header("x-forebay-cache") == "bypass"
    await settled(stack)
    assert stack.encoder.texts == [ONE, STRANGER]


async def test_the_classifier_gets_its_vector_whatever_the_cache_holds(engine: ScriptedEngine) -> None:
    """Under `auto` the vector is needed before the tier is chosen."""
    async with (
        ScriptedEngine(FRONTIER) as frontier,
        gateway({**tiers(engine, frontier=frontier), "cache": LAYER}, glance=WordGlance()) as stack,
    ):
        await ask(stack.url, "/v1/chat/completions", {**chat(ONE), "model": "auto"})
        assert stack.encoder.texts == [ONE]
        assert stack.process.services.late.waiting == 0


async def test_under_auto_the_stored_questions_are_compared_while_the_vector_is_made(engine: ScriptedEngine) -> None:
    """Another wording is served as it would be, and nothing of another tenant's is touched."""
    async with (
        ScriptedEngine(FRONTIER) as frontier,
        gateway({**tiers(engine, frontier=frontier), "cache": LAYER}, glance=WordGlance()) as stack,
    ):
        first_look = stack.process.services.cache.catalogue.first_look
        assert first_look is not None
        prepared: list[str] = []
        prepare = first_look.prepare
        first_look.prepare = lambda partition, text: (prepared.append(text), prepare(partition, text))[1]  # type: ignore[method-assign]
        for text, found in ((ONE, "miss"), (OTHER, "hit-semantic")):
            answer = await ask(stack.url, "/v1/chat/completions", {**chat(text), "model": "auto"})
            assert answer.header("x-forebay-cache") == found
        assert prepared == [ONE, OTHER]
