import asyncio
import hashlib
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.embedder import MEMO, MEMO_CHARS, BatchingEmbedder, Embedding


class HashEncoder:
    """A real small encoder: the vector is a function of the text. Records its batches; waits for `gate` if closed."""

    name, revision, dim, backend, shares = "hash", "1", 8, "test", True

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.threads: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        self.batches.append(list(texts))
        self.threads.add(threading.get_ident())
        self.entered.set()
        assert self.gate.wait(10)
        if "bad" in texts:
            raise RuntimeError("the model failed")
        return [vector(text) for text in texts if text != "lost"]


def vector(text: str) -> Embedding:
    raw = np.frombuffer(hashlib.sha256(text.encode()).digest()[:8], dtype=np.uint8).astype(np.float32) - 127.5
    return Embedding(raw / np.linalg.norm(raw), truncated=False)


@pytest.fixture
def encoder() -> HashEncoder:
    return HashEncoder()


async def entered(encoder: HashEncoder) -> None:
    assert await asyncio.to_thread(encoder.entered.wait, 5)


def same(found: Embedding | None, text: str) -> bool:
    return found is not None and np.array_equal(found.vector, vector(text).vector)


async def test_each_caller_gets_the_vector_of_its_own_text(encoder: HashEncoder) -> None:
    texts = [f"text {number}" for number in range(100)]
    async with BatchingEmbedder(encoder, batch_size=8, max_wait=0.05) as embedder:
        found = await asyncio.gather(*(embedder.embed(text, 5) for text in texts))
    assert all(same(embedding, text) for embedding, text in zip(found, texts, strict=True))
    assert [text for batch in encoder.batches for text in batch] == texts
    assert len(encoder.threads) == 1


async def test_concurrent_texts_share_full_passes(encoder: HashEncoder) -> None:
    async with BatchingEmbedder(encoder, batch_size=8, max_wait=60) as embedder:
        await asyncio.gather(*(embedder.embed(str(number), 5) for number in range(24)))
    assert [len(batch) for batch in encoder.batches] == [8, 8, 8]


async def test_a_lone_text_does_not_wait_for_a_full_pass(encoder: HashEncoder) -> None:
    async with BatchingEmbedder(encoder, batch_size=32, max_wait=60) as embedder:
        assert same(await embedder.embed("alone", 5), "alone")
        assert same(await embedder.embed("alone again", 5), "alone again")


async def test_an_encoder_that_gains_nothing_from_company_gets_one_text_at_a_time(encoder: HashEncoder) -> None:
    encoder.shares = False
    async with BatchingEmbedder(encoder, batch_size=32, max_wait=60) as embedder:
        found = await asyncio.gather(*(embedder.embed(text, 5) for text in "abc"))
    assert all(same(one, text) for one, text in zip(found, "abc", strict=True))
    assert encoder.batches == [["a"], ["b"], ["c"]]


async def test_a_recent_text_is_not_encoded_again_for_its_owner(encoder: HashEncoder) -> None:
    async with BatchingEmbedder(encoder) as embedder:
        for owner in ("acme", "acme", "other"):
            assert same(await embedder.embed("text", 5, owner), "text")
        await embedder.embed("x" * (MEMO_CHARS + 1), 5)
        await embedder.embed("x" * (MEMO_CHARS + 1), 5)
    assert [text[:4] for batch in encoder.batches for text in batch] == ["text", "text", "xxxx", "xxxx"]


async def test_what_is_remembered_is_bounded_and_the_oldest_leaves(encoder: HashEncoder) -> None:
    async with BatchingEmbedder(encoder, batch_size=64) as embedder:
        for number in range(MEMO):
            await embedder.embed(str(number), 5)
        await embedder.embed("0", 5)
        assert len(encoder.batches) == MEMO
        await embedder.embed("one more", 5)
        await embedder.embed("0", 5)
        assert len(encoder.batches) == MEMO + 1
        await embedder.embed("1", 5)
    assert encoder.batches[-1] == ["1"]


async def test_a_failure_is_not_remembered(encoder: HashEncoder) -> None:
    async with BatchingEmbedder(encoder) as embedder:
        assert await embedder.embed("lost", 5) is None
        assert await embedder.embed("lost", 5) is None
    assert encoder.batches == [["lost"], ["lost"]]


async def test_texts_that_come_during_a_pass_share_the_next_one(encoder: HashEncoder) -> None:
    encoder.gate.clear()
    async with BatchingEmbedder(encoder, batch_size=8, max_wait=0.001) as embedder:
        first = asyncio.create_task(embedder.embed("first", 5))
        await entered(encoder)
        rest = [asyncio.create_task(embedder.embed(text, 5)) for text in "abc"]
        await asyncio.sleep(0)
        encoder.gate.set()
        await asyncio.gather(first, *rest)
    assert encoder.batches == [["first"], ["a", "b", "c"]]


async def test_c25_a_deadline_gives_nothing_and_the_loop_stays_free(encoder: HashEncoder) -> None:
    encoder.gate.clear()
    async with BatchingEmbedder(encoder, max_wait=0) as embedder:
        assert await embedder.embed("slow", 0.01) is None
        encoder.gate.set()
        assert same(await embedder.embed("quick", 5), "quick")


async def test_texts_whose_caller_gave_up_are_not_encoded(encoder: HashEncoder) -> None:
    encoder.gate.clear()
    async with BatchingEmbedder(encoder, max_wait=0.001) as embedder:
        running = asyncio.create_task(embedder.embed("running", 5))
        await entered(encoder)
        left = asyncio.create_task(embedder.embed("left", 5))
        stayed = asyncio.create_task(embedder.embed("stayed", 5))
        late = await embedder.embed("late", 0.01)
        left.cancel()
        encoder.gate.set()
        assert late is None
        assert same(await running, "running")
        assert same(await stayed, "stayed")
        with pytest.raises(asyncio.CancelledError):
            await left
    assert encoder.batches == [["running"], ["stayed"]]


@pytest.mark.parametrize("text", ["bad", "lost"])
async def test_a_failing_model_gives_nothing_and_recovers(encoder: HashEncoder, text: str) -> None:
    async with BatchingEmbedder(encoder, batch_size=2, max_wait=60) as embedder:
        assert await asyncio.gather(embedder.embed(text, 5), embedder.embed("a", 5)) == [None, None]
        found = await asyncio.gather(embedder.embed("b", 5), embedder.embed("c", 5))
    assert same(found[0], "b")
    assert same(found[1], "c")


async def test_a_full_queue_gives_nothing_at_once(encoder: HashEncoder) -> None:
    encoder.gate.clear()
    async with BatchingEmbedder(encoder, batch_size=1, max_wait=0) as embedder:
        first = asyncio.create_task(embedder.embed("first", 5))
        await entered(encoder)
        waiting = [asyncio.create_task(embedder.embed(str(number), 5)) for number in range(16)]
        await asyncio.sleep(0)
        assert await embedder.embed("too many", 60) is None
        encoder.gate.set()
        assert all(await asyncio.gather(first, *waiting))
    assert len(encoder.batches) == 17


async def test_closing_gives_nothing_to_all_who_wait_and_to_all_who_come(encoder: HashEncoder) -> None:
    encoder.gate.clear()
    embedder = BatchingEmbedder(encoder, batch_size=2, max_wait=60)
    async with embedder:
        in_pass = [asyncio.create_task(embedder.embed(text, 60)) for text in "ab"]
        await entered(encoder)
        queued = asyncio.create_task(embedder.embed("queued", 60))
        await asyncio.sleep(0)
        encoder.gate.set()
    assert await asyncio.wait_for(queued, 5) is None
    await asyncio.wait_for(asyncio.gather(*in_pass), 5)
    assert await embedder.embed("later", 60) is None


async def test_closing_reaches_a_text_that_waits_for_company(encoder: HashEncoder) -> None:
    encoder.gate.clear()
    async with BatchingEmbedder(encoder, batch_size=2, max_wait=60) as embedder:
        first = asyncio.create_task(embedder.embed("first", 60))
        await entered(encoder)
        lonely = asyncio.create_task(embedder.embed("lonely", 60))
        await asyncio.sleep(0)
        encoder.gate.set()
        assert same(await asyncio.wait_for(first, 5), "first")
        for _ in range(3):
            await asyncio.sleep(0)
    assert await asyncio.wait_for(lonely, 5) is None
    assert encoder.batches == [["first"]]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=3), st.booleans()), max_size=30), st.integers(1, 8))
def test_no_order_of_cancellations_mixes_up_vectors(plan: list[tuple[str, bool]], batch_size: int) -> None:
    async def run() -> None:
        async with BatchingEmbedder(HashEncoder(), batch_size=batch_size, max_wait=0.0005) as embedder:
            tasks = []
            for text, leaves in plan:
                tasks.append((text, asyncio.create_task(embedder.embed(text, 5))))
                if leaves:
                    await asyncio.sleep(0)
                    tasks.pop()[1].cancel()
            for text, task in tasks:
                found = await task
                # The queue holds 16 batches; what does not fit is given up at once.
                assert found is None or same(found, text) or text in ("bad", "lost")

    asyncio.run(run())


async def test_what_else_is_to_be_done_is_done_while_the_model_works(encoder: HashEncoder) -> None:
    done = asyncio.Event()
    encoder.gate.clear()
    async with BatchingEmbedder(encoder) as embedder:
        embedding = asyncio.create_task(embedder.embed("text", 5, meanwhile=done.set))
        async with asyncio.timeout(5):
            await done.wait()
        assert not embedding.done()
        encoder.gate.set()
        assert same(await embedding, "text")
        done.clear()
        await embedder.embed("text", 5, meanwhile=done.set)
        assert not done.is_set()
