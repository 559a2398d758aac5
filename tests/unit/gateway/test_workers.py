"""Several workers as one: their metrics, what they ask each other, and the encoder they share."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from core.config import validate
from core.config.records import Embedder
from core.embedder import EncoderError
from core.errors import ConfigError
from gateway.embedder_process import RemoteEncoder, listen, serve
from gateway.metrics import Metrics, pooled
from gateway.pool import MetricsPool
from gateway.siblings import Alone, Family
from tests.integration.stack import WordEncoder

TIER = {"model": "m", "urls": ["http://127.0.0.1:1"]}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for the address of a Unix socket."""
    with TemporaryDirectory(prefix="forebay-") as found:
        yield Path(found)


def counted(number: int) -> Metrics:
    """Metrics of a worker that has counted."""
    metrics = Metrics()
    metrics.requests("/r", "small", "miss", "200").inc(number)
    metrics.overhead("miss").observe(0.0003)
    metrics.inflight("small").read = lambda: float(number)
    metrics.breaker_state("small", "u").read = lambda: float(number)
    return metrics


def test_counters_histograms_and_gauges_of_several_processes_are_one() -> None:
    text = pooled([counted(1).snapshot(), counted(2).snapshot()]).render().decode()
    assert 'forebay_requests_total{cache="miss",route="/r",status="200",tier="small"} 3.0' in text
    assert 'forebay_overhead_seconds_bucket{cache="miss",le="0.0002"} 0.0' in text
    assert 'forebay_overhead_seconds_bucket{cache="miss",le="0.0005"} 2.0' in text
    assert 'forebay_overhead_seconds_count{cache="miss"} 2.0' in text
    assert 'forebay_inflight{tier="small"} 3.0' in text
    # The worst breaker, not their sum.
    assert 'forebay_breaker_state{tier="small",url="u"} 2.0' in text


async def test_a_scrape_has_what_every_worker_counted_also_one_that_has_died(folder: Path) -> None:
    async with Family(folder, 0, 2) as first:
        metrics = counted(1)
        async with MetricsPool(metrics, first, shared_cache=False) as pool:
            other = counted(5)
            async with Family(folder, 1, 2) as second:
                second_pool = MetricsPool(other, second, shared_cache=False)
                second.answering({"metrics": second_pool.answer})
                async with second_pool:
                    other.requests("/r", "small", "miss", "200").inc()
                    assert requests_in(await pool.render()) == 7
                    assert b'inflight{tier="small"} 6.0' in await pool.render()
            # It has ended: its counters stay, what was inside it is gone.
            assert requests_in(await pool.render()) == 7
            assert b'inflight{tier="small"} 1.0' in await pool.render()
            async with Family(folder, 1, 2) as again:
                fresh = Metrics()
                pool_again = MetricsPool(fresh, again, shared_cache=False)
                again.answering({"metrics": pool_again.answer})
                async with pool_again:
                    fresh.requests("/r", "small", "miss", "200").inc()
                    assert requests_in(await pool.render()) == 8


def requests_in(text: bytes) -> float:
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(b"forebay_requests_total{"))


async def test_entries_of_a_shared_cache_are_counted_once(folder: Path) -> None:
    async with Family(folder, 0, 2) as first, Family(folder, 1, 2) as second:
        pools = []
        for family in (first, second):
            metrics = Metrics()
            metrics.entries("exact").read = lambda: 40.0
            pools.append(MetricsPool(metrics, family, shared_cache=True))
        second.answering({"metrics": pools[1].answer})
        async with pools[0], pools[1]:
            assert b'forebay_cache_entries{layer="exact"} 40.0' in await pools[0].render()


async def test_workers_that_hang_fail_or_are_not_there_are_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.siblings.PATIENCE", 0.1)
    forever = asyncio.Event()

    async def hang(_: object) -> None:
        await forever.wait()

    async def fail(_: object) -> None:
        raise ValueError

    async def echo(question: object) -> object:
        return question

    async with AsyncExitStack() as stack:
        families = [await stack.enter_async_context(Family(folder, number, 5)) for number in range(4)]
        first, second, third, fourth = families
        second.answering({"say": hang})
        third.answering({"say": fail})
        fourth.answering({"say": echo})  # type: ignore[dict-item]  # gives back what it was asked
        assert await first.ask("say", word="x") == {3: {"word": "x", "what": "say"}}
        assert await first.ask("something else") == {}
    assert await Alone().ask("say") == {}


class Model(WordEncoder):
    """Fails on a word."""

    def encode(self, texts: list[str]) -> list:  # type: ignore[type-arg,override]  # as the parent
        if "bad" in texts:
            raise ValueError("a bad word")
        return super().encode(texts)


def test_the_shared_encoder_gives_the_vectors_of_the_one_in_the_other_process(folder: Path) -> None:
    path = folder / "embedder"
    with listen(path) as listening:
        run(listening, Model)
        encoder, local = RemoteEncoder(path), Model()
        assert (encoder.name, encoder.revision, encoder.dim, encoder.shares) == ("words", "1", local.dim, True)
        texts = ["one two", "3 € naïve 🦫", "line\nbreak"]
        for found, wanted in zip(encoder.encode(texts), local.encode(texts), strict=True):
            assert np.array_equal(found.vector, wanted.vector)
            assert found.truncated is False
        # A text that it cannot take leaves the connection as it was.
        with pytest.raises(EncoderError, match="a bad word"):
            encoder.encode(["bad"])
        assert len(encoder.encode(["again"])) == 1
        others = [RemoteEncoder(path) for _ in range(3)]
        assert [len(other.encode(["x", "y"])) for other in others] == [2, 2, 2]
        for one in (encoder, *others):
            one._close()


def test_a_model_that_cannot_be_loaded_is_said_to_every_worker(folder: Path) -> None:
    def missing(_: Embedder) -> WordEncoder:
        raise OSError("no weights")

    path = folder / "embedder"
    with listen(path) as listening:
        run(listening, missing)
        for _ in range(2):
            with pytest.raises(EncoderError, match="OSError: no weights"):
                RemoteEncoder(path)


def test_a_connection_that_broke_is_made_again(folder: Path) -> None:
    path = folder / "embedder"
    with listen(path) as listening:
        run(listening, Model)
        encoder = RemoteEncoder(path)
        assert encoder._wire is not None
        encoder._wire.shutdown(2)
        with pytest.raises(OSError, match=r".*"):
            encoder.encode(["x"])
        assert len(encoder.encode(["x"])) == 1
        encoder._close()


def run(listening: object, make: object) -> None:
    """The embedder's process on a thread of this one; it ends with it."""
    arguments = (listening, Embedder(), make if not isinstance(make, type) else lambda _: make())
    threading.Thread(target=serve, args=arguments, daemon=True).start()


def test_limits_that_each_worker_would_count_apart_are_refused() -> None:
    key = {"name": "a", "tenant": "t", "env": "A"}
    document = {"gateway": {"workers": 2}, "tiers": {"small": TIER}}
    assert validate({**document, "auth": {"keys": [key]}}).gateway.workers == 2
    limited = {"keys": [{**key, "tokens_per_minute": 5}]}
    with pytest.raises(ConfigError, match=r"auth\.store"):
        validate({**document, "auth": limited})
    validate({**document, "auth": {**limited, "store": "redis://localhost:6379/0"}})
    validate({**document, "gateway": {"workers": 1}, "auth": limited})
