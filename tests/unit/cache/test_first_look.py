"""The first look: what it may spare, and that it never decides what is served."""

import numpy as np
import pytest

from cache.controls import Controls
from cache.first_look import LOOKED_AT
from cache.question import namespace
from cache.response_cache import ResponseCache
from cache.verdict import Notes
from core.embedder import Vector
from tests.clock import HandClock
from tests.unit.cache.fakes import DIM, ON, Agreeing, ask, completion, direction, embedding, settings


class Suspicious:
    """A foresight that hopes for nothing below a likeness, and for no pair that it was told of."""

    def __init__(self, likeness: float, *hopeless: str) -> None:
        self.likeness, self.hopeless = likeness, hopeless
        self.seen: list[tuple[str, str]] = []

    def hopeful(self, asked: str, stored: str, likeness: float, notes: Notes | None = None) -> bool:
        self.seen.append((asked, stored))
        return stored not in self.hopeless


class LetterGlance:
    """The share of each letter in a text; counts what it looks at."""

    dim = 26

    def __init__(self, least: float | None = 0.9) -> None:
        self._least = least
        self.seen: list[str] = []

    def vector(self, text: str) -> Vector:
        self.seen.append(text)
        counts = np.array([text.lower().count(chr(97 + at)) for at in range(26)], dtype=np.float32)
        norm = np.linalg.norm(counts)
        return counts / norm if norm else counts

    def least(self, threshold: float) -> float | None:
        return self._least


def caching(glance: LetterGlance | None, foresight: Suspicious | None = None, **options: object) -> ResponseCache:
    cache = ResponseCache(settings(**options), clock=HandClock(), verifier=Agreeing(), foresight=foresight)
    cache.understand(namespace("hand", "1", DIM), glance)
    return cache


async def store(cache: ResponseCache, text: str, **more: str) -> None:
    assert (
        await cache.store(ask(text, **more), completion(), embedding(direction(text)), tier="small", controls=ON)
        is None
    )


async def test_an_empty_partition_is_not_promising_and_not_even_looked_at() -> None:
    glance = LetterGlance()
    async with caching(glance) as cache:
        assert not await cache.promising(ask("listen"), ON)
        assert glance.seen == []


async def test_a_near_text_of_the_same_partition_is_promising() -> None:
    async with caching(LetterGlance()) as cache:
        await store(cache, "listen")
        assert await cache.promising(ask("silent"), ON)
        assert not await cache.promising(ask("zzz"), ON)
        assert not await cache.promising(ask("silent", tenant="other"), ON)
        assert not await cache.promising(ask("silent", temperature=0), ON)


async def test_a_near_text_that_the_guard_would_refuse_is_not_promising() -> None:
    foresight = Suspicious(0.5, "listen", "silent")
    async with caching(LetterGlance(), foresight) as cache:
        await store(cache, "listen")
        assert not await cache.promising(ask("tinsel"), ON)
        assert foresight.seen == [("tinsel", "listen")]
        await store(cache, "enlist")
        assert await cache.promising(ask("tinsel"), ON)
        assert not await cache.promising(ask("zzz"), ON)


async def test_a_foresight_is_asked_about_the_nearest_few_only_and_from_its_own_likeness_on() -> None:
    foresight = Suspicious(0.7, *(f"{letter}tinsel" for letter in "abcdefgh"))
    async with caching(LetterGlance(), foresight) as cache:
        for letter in "abcdefgh":
            await store(cache, f"{letter}tinsel")
        assert not await cache.promising(ask("tinsel"), ON)
        assert len(foresight.seen) == LOOKED_AT
        foresight.likeness = cache.catalogue.first_look._least = 0.999  # type: ignore[union-attr]
        assert not await cache.promising(ask("tinsel"), ON)
        assert len(foresight.seen) == LOOKED_AT


async def test_what_the_first_look_keeps_is_counted_in_the_bytes() -> None:
    sizes = []
    for glance in (None, LetterGlance()):
        async with caching(glance) as cache:
            for text in ("listen", "enlist"):
                await store(cache, text)
            sizes.append((await cache.stats()).bytes)
    assert sizes[1] - sizes[0] >= 2 * 4 * LetterGlance.dim


async def test_what_has_left_the_cache_is_not_promising() -> None:
    async with caching(LetterGlance()) as cache:
        await store(cache, "listen")
        assert await cache.delete(ask("listen").id)
        assert not await cache.promising(ask("silent"), ON)


async def test_an_answer_that_is_replaced_stays_promising() -> None:
    async with caching(LetterGlance()) as cache:
        for _ in range(2):
            await store(cache, "listen")
        assert await cache.promising(ask("silent"), ON)
        await cache.purge()
        assert not await cache.promising(ask("silent"), ON)


@pytest.mark.parametrize(
    ("glance", "options"),
    [(None, {}), (LetterGlance(least=None), {}), (LetterGlance(), {"exact": {"enabled": False}})],
    ids=["no glance", "a threshold that was not measured", "no exact layer to wait in"],
)
async def test_without_a_cheap_way_to_tell_everything_is_promising(
    glance: LetterGlance | None, options: dict[str, object]
) -> None:
    async with caching(glance, **options) as cache:
        assert await cache.promising(ask("anything"), ON)


async def test_a_request_that_reads_nothing_needs_no_vector_before_its_answer() -> None:
    async with caching(LetterGlance()) as cache:
        await store(cache, "listen")
        assert not await cache.promising(ask("silent"), Controls(read=False))


async def test_a_long_text_is_promising_without_a_look() -> None:
    glance = LetterGlance()
    async with caching(glance) as cache:
        await store(cache, "listen")
        seen = len(glance.seen)
        assert await cache.promising(ask("z" * 2001), ON)
        assert len(glance.seen) == seen


async def test_a_vector_that_comes_later_makes_the_answer_findable() -> None:
    vector = direction("question")
    async with caching(LetterGlance()) as cache:
        question, other = ask("listen"), ask("silent")
        assert await cache.store(question, completion(), None, tier="small", controls=ON) is None
        cache.expect(question)
        assert await cache.promising(other, ON)
        assert (await cache.semantic(other, embedding(vector), ON)).result == "miss"
        await cache.add_wording(question, embedding(vector), ON)
        found = await cache.semantic(other, embedding(vector), ON)
        assert found.hit is not None
        assert found.hit.id == question.id
        assert (await cache.stats()).exact == 1


async def test_a_vector_that_comes_too_late_brings_nothing_back() -> None:
    async with caching(LetterGlance()) as cache:
        question = ask("listen")
        await cache.store(question, completion(), None, tier="small", controls=ON)
        cache.expect(question)
        await cache.delete(question.id)
        await cache.add_wording(question, embedding(direction("question")), ON)
        assert await cache.exact(question, ON) is None
        assert not await cache.promising(ask("silent"), ON)


@pytest.mark.parametrize("made", [None, embedding(direction("question"), truncated=True)], ids=["none", "truncated"])
async def test_a_vector_that_never_comes_or_is_of_no_use_ends_the_expectation(made: object) -> None:
    async with caching(LetterGlance()) as cache:
        question = ask("listen")
        await cache.store(question, completion(), None, tier="small", controls=ON)
        cache.expect(question)
        await cache.add_wording(question, made, ON)  # type: ignore[arg-type]
        assert not await cache.promising(ask("silent"), ON)
        assert await cache.exact(question, ON) is not None


async def test_a_lookup_is_prepared_by_comparing_the_nearest_of_its_partition() -> None:
    """Tenants and settings stay apart here as well, and what is far away is not compared."""
    foresight = Suspicious(0.5)
    async with caching(LetterGlance(), foresight) as cache:
        for text in ("listen", "silent", "zzz"):
            await store(cache, text)
        await store(cache, "enlist", tenant="other")
        cache.prepare(ask("tinsel"))
        assert sorted(stored for _, stored in foresight.seen) == ["listen", "silent"]
        foresight.seen.clear()
        cache.prepare(ask("tinsel", temperature=0))
        assert foresight.seen == []


async def test_without_a_first_look_there_is_nothing_to_prepare() -> None:
    async with caching(None) as cache:
        await store(cache, "listen")
        cache.prepare(ask("silent"))
