"""What every ledger promises: memory, Redis, Valkey and a cluster."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from bench.servers import Cluster, Server, binary
from core.clock import SystemClock
from core.config import store_address
from core.redis_link import RedisLink
from gateway.limits.base import WINDOW, Claim, Ledger, Refusal, Taken
from gateway.limits.memory import MemoryLedger
from gateway.limits.redis import RedisLedger

CLOCK = SystemClock()
KINDS = ["memory", "redis", "valkey", "cluster"]


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str | None]:
    if request.param == "memory":
        yield None
        return
    program = "valkey" if request.param == "valkey" else "redis"
    if binary(program) is None:
        pytest.skip(f"no {program} server is installed")
    folder = tmp_path_factory.mktemp("ledger")
    with Cluster(program, folder) if request.param == "cluster" else Server(program, folder) as running:
        yield running.url


@asynccontextmanager
async def opened(url: str | None, lease: float = 60.0) -> AsyncIterator[Ledger]:
    if url is None:
        async with MemoryLedger(CLOCK) as memory:
            yield memory
        return
    async with RedisLink(store_address(url), CLOCK, 5.0) as link, RedisLedger(link, CLOCK, lease) as shared:
        yield shared


@pytest.fixture
async def ledger(url: str | None) -> AsyncIterator[Ledger]:
    async with opened(url) as found:
        yield found


def tokens(amount: int, limit: int = 100) -> Claim:
    return Claim("tokens", limit, amount)


async def take(ledger: Ledger, subject: str, *claims: Claim, mark: str = "m") -> Taken | Refusal:
    return await ledger.take(subject, mark, claims)


async def took(ledger: Ledger, subject: str, *claims: Claim, mark: str = "m") -> Taken:
    found = await take(ledger, subject, *claims, mark=mark)
    assert isinstance(found, Taken)
    return found


async def refused(ledger: Ledger, subject: str, *claims: Claim, mark: str = "n") -> Refusal:
    """Settling may be under way: waits until it is not, or until the claim is refused."""
    found = await take(ledger, subject, *claims, mark=mark)
    assert isinstance(found, Refusal)
    return found


async def until_taken(ledger: Ledger, subject: str, *claims: Claim, mark: str = "late") -> Taken:
    async with asyncio.timeout(5):
        while isinstance(found := await take(ledger, subject, *claims, mark=mark), Refusal):  # noqa: ASYNC110  # settled elsewhere
            await asyncio.sleep(0.01)
    return found


async def test_a_window_is_full_at_its_limit_and_says_for_how_long(ledger: Ledger) -> None:
    await took(ledger, "full", tokens(60))
    await took(ledger, "full", tokens(40))
    found = await refused(ledger, "full", tokens(1))
    assert found.kind == "tokens"
    assert WINDOW - 5 < found.wait <= WINDOW + 1
    await took(ledger, "another", tokens(100))


async def test_what_was_not_used_is_given_back_and_what_was_used_besides_counts(ledger: Ledger) -> None:
    high = await took(ledger, "settled", tokens(90))
    ledger.settle(high, [-80])
    low = await until_taken(ledger, "settled", tokens(90))
    ledger.settle(low, [+50])
    async with asyncio.timeout(5):
        while isinstance(await take(ledger, "settled", tokens(0)), Taken):  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.01)


async def test_all_claims_are_taken_or_none(ledger: Ledger) -> None:
    one = Claim("concurrency", 1, 1)
    await took(ledger, "atomic", one, mark="first")
    found = await refused(ledger, "atomic", tokens(100), Claim("requests", 5, 1), one, mark="second")
    assert found.kind == "concurrency"
    await took(ledger, "atomic", tokens(100), Claim("requests", 1, 1), mark="third")


async def test_what_runs_is_released_also_where_it_is_not_known_to_be_counted(ledger: Ledger) -> None:
    two = Claim("concurrency", 2, 1)
    first = await took(ledger, "running", two, mark="a")
    await took(ledger, "running", two, mark="b")
    await refused(ledger, "running", two, mark="c")
    ledger.settle(Taken("running", first.mark, None, "", first.claims), [0])
    await until_taken(ledger, "running", two, mark="c")


async def test_a_budget_is_that_of_a_month(ledger: Ledger) -> None:
    claim = Claim("budget", 10**15, 9 * 10**14)
    taken = await took(ledger, "spent", claim)
    found = await refused(ledger, "spent", claim)
    assert found.kind == "budget"
    assert 0 < found.wait <= 31 * 86_400
    ledger.settle(taken, [-(9 * 10**14) + 1])
    await until_taken(ledger, "spent", claim)


async def test_a_limit_is_exact_however_many_ask_at_once(url: str | None) -> None:
    """R27's core: two views of one ledger, many tasks each."""
    async with opened(url) as one, opened(url) as two:
        # The cluster's client loses connections that many make at once for the first time.
        for view in (one, two):
            await took(view, "warm", tokens(1))
        views = [one, one] if url is None else [one, two]
        results = await asyncio.gather(*(take(views[n % 2], "race", tokens(7), mark=str(n)) for n in range(60)))
        assert sum(isinstance(found, Taken) for found in results) == 100 // 7


async def test_what_a_dead_gateway_held_is_given_back_after_its_lease(url: str | None) -> None:
    if url is None:
        pytest.skip("what a process held ends with it")
    one = Claim("concurrency", 1, 1)
    async with opened(url, lease=1.0) as ledger:
        await took(ledger, "dead", one, mark="dead")
        await refused(ledger, "dead", one)
        await until_taken(ledger, "dead", one)
