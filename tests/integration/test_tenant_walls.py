"""Response cache, C7, C8, C32: no answer crosses from one tenant to another, in any layer, whatever is asked how.

Random rounds of concurrent requests by several tenants go through a whole gateway. The engine names in its answer the
request that it was made for, so every answer shows where it comes from. During a round the engine answers nobody until
every request of it waits for the engine, follows another, or has been answered from a cache: whatever came from another
request of the same round was shared in flight.
"""

import asyncio
import hashlib
import itertools
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import cache.question
import gateway.asked
from bench.engine import ScriptedEngine
from gateway import follow
from tests.integration.stack import FRONTIER, SMALL, Stack, WordEncoder, tiers, until
from tests.integration.stack import gateway as serve

Result = TypeVar("Result")
TENANTS = ("alice", "bob", "carol")
KEYS = [f"{tenant}-{number}" for tenant in TENANTS for number in range(2)]
MODELS = ("small", "frontier", "auto", SMALL, FRONTIER)
SCOPES = ("tenant", "global")


@dataclass(frozen=True)
class Ask:
    """One request: whose key, which model, and one of the wordings of one of the questions."""

    key: str
    model: str
    meaning: int
    wording: int
    stream: bool
    system: str | None
    mode: str

    @property
    def tenant(self) -> str:
        return self.key.partition("-")[0]


class MeaningEncoder(WordEncoder):
    """Texts with the same first word have the same vector, all others are at right angles or nearly so."""

    name = "meaning"

    def _vector(self, text: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        seed = int.from_bytes(hashlib.sha256(text.split(maxsplit=1)[0].encode()).digest()[:8], "big")
        vector = np.random.default_rng(seed).normal(size=self.dim).astype(np.float32)
        return vector / np.float32(np.linalg.norm(vector))


@dataclass
class Site:
    """A gateway with both tiers on a loop of its own, for many examples."""

    scope: str
    loop: asyncio.AbstractEventLoop
    stack: Stack
    engines: list[ScriptedEngine]
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    async def crossings(self, rounds: list[list[Ask]]) -> tuple[list[str], dict[str, int]]:
        """What crossed, in words, and how often which kind of answer came."""
        example = next(self.numbers)
        origins: dict[str, tuple[int, Ask]] = {}
        found: list[str] = []
        kinds: dict[str, int] = {}
        for number, asks in enumerate(rounds):
            named = {f"e{example}r{number}a{at}": ask for at, ask in enumerate(asks)}
            origins |= {name: (number, ask) for name, ask in named.items()}
            answers = await self._round(example, named)
            for name, (kind, origin) in answers.items():
                kinds[kind] = kinds.get(kind, 0) + 1
                when, made_for = origins[origin]
                crossed = made_for.tenant != named[name].tenant
                shared_in_flight = when == number and origin != name
                if crossed and (self.scope == "tenant" or shared_in_flight):
                    found.append(f"{made_for} -> {named[name]} as {kind}, in flight: {shared_in_flight}")
        return found, kinds

    async def _round(self, example: int, named: dict[str, Ask]) -> dict[str, tuple[str, str]]:
        async with AsyncExitStack() as gate:
            for engine in self.engines:
                await gate.enter_async_context(engine.slots.hold())
            answers = [asyncio.ensure_future(self._ask(example, name, ask)) for name, ask in named.items()]
            await until(lambda: self._waiting() + sum(answer.done() for answer in answers) == len(answers), within=20)
        return dict(zip(named, await asyncio.gather(*answers), strict=True))

    def _waiting(self) -> int:
        flights = self.stack.process.services.flights._flights.values()
        return sum(engine.waiting for engine in self.engines) + sum(len(one._followers) for one in flights)

    async def _ask(self, example: int, name: str, ask: Ask) -> tuple[str, str]:
        """What the cache said, and the request that the answer was made for."""
        messages = [{"role": "user", "content": f"meaning-{example}-{ask.meaning} in wording {ask.wording}"}]
        if ask.system is not None:
            messages.insert(0, {"role": "system", "content": ask.system})
        answer = await self.stack.client.post(
            "/v1/chat/completions",
            json={"model": ask.model, "messages": messages, "stream": ask.stream},
            headers={"authorization": f"Bearer {ask.key}", "x-request-id": name, "x-forebay-cache": ask.mode},
        )
        assert answer.status_code == 200, answer.text
        document = orjson.loads(answer.text.partition("\n")[0].removeprefix("data: ")) if ask.stream else answer.json()
        return answer.headers["x-forebay-cache"], document["id"].removeprefix("chatcmpl-")


def site(scope: str) -> Iterator[Site]:
    """A running site; its loop lives in a thread, so that hypothesis can run its examples one by one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    stack = AsyncExitStack()

    async def start() -> Site:
        engines = [await stack.enter_async_context(ScriptedEngine(name, max_running=1)) for name in (SMALL, FRONTIER)]
        keys = [
            {"name": key, "tenant": key.partition("-")[0], "sha256": hashlib.sha256(key.encode()).hexdigest()}
            for key in KEYS
        ]
        semantic = {"enabled": True, "threshold": 0.9, "guard": False, "deadline": "20s"}
        document = {
            **tiers(engines[0], frontier=engines[1]),
            "auth": {"keys": keys},
            "cache": {"scope": scope, "semantic": semantic},
            "router": {"sticky": False},
        }
        running = await stack.enter_async_context(serve(document, semantic=True, encoder=MeaningEncoder()))
        return Site(scope, loop, running, engines)

    try:
        yield asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


@pytest.fixture(scope="module")
def tenant_site() -> Iterator[Site]:
    yield from site("tenant")


@pytest.fixture(scope="module")
def global_site() -> Iterator[Site]:
    yield from site("global")


@pytest.fixture(params=SCOPES)
def both(request: pytest.FixtureRequest) -> Site:
    found: Site = request.getfixturevalue(f"{request.param}_site")
    return found


ASKS = st.builds(
    Ask,
    key=st.sampled_from(KEYS),
    model=st.sampled_from(MODELS),
    meaning=st.integers(0, 1),
    wording=st.integers(0, 1),
    stream=st.booleans(),
    system=st.sampled_from([None, None, "Be brief."]),
    mode=st.sampled_from(["on", "on", "on", "exact"]),
)
ROUNDS = st.lists(st.lists(ASKS, min_size=2, max_size=8), min_size=1, max_size=3)
QUICK = settings(
    max_examples=60,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def walls_hold(site: Site) -> None:
    """The property: in no example does anything cross."""

    @QUICK
    @given(rounds=ROUNDS)
    def holds(rounds: list[list[Ask]]) -> None:
        found, _ = site.run(site.crossings(rounds))
        assert found == []

    holds()


def test_no_answer_crosses_a_tenants_walls(both: Site) -> None:
    walls_hold(both)


def test_within_a_tenant_everything_is_shared_so_the_walls_are_what_is_tested(both: Site) -> None:
    def ask(key: str, wording: int, *, stream: bool = False) -> Ask:
        return Ask(key, "small", 0, wording, stream, None, "on")

    rounds = [
        [ask("alice-0", 0), ask("alice-1", 0, stream=True), ask("bob-0", 0)],
        [ask("alice-0", 0), ask("alice-1", 1), ask("carol-0", 0)],
    ]
    found, kinds = both.run(both.crossings(rounds))
    assert found == []
    # Under the global scope carol is served what the others had asked before.
    carol = {"tenant": "miss", "global": "hit-exact"}[both.scope]
    expected = ["miss", "hit-exact", "miss", "hit-exact", "hit-semantic", carol]
    assert kinds == {kind: expected.count(kind) for kind in set(expected)}


def without_tenant(monkeypatch: pytest.MonkeyPatch, *, partition: bool) -> None:
    """Leave the tenant out of the partition, or out of the fingerprint, and out of what the store is asked under."""
    ask = gateway.asked.question
    monkeypatch.setattr(gateway.asked, "question", lambda *given, **named: replace(ask(*given, **named), tenant="*"))
    digest = cache.question._digest

    def forgetful(value: Any) -> str:
        if ("namespace" in value) == partition:
            value = {**value, "tenant": "*"}
        return digest(value)

    monkeypatch.setattr(cache.question, "_digest", forgetful)


def test_without_the_tenant_in_the_key_the_property_fails(tenant_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    without_tenant(monkeypatch, partition=False)
    with pytest.raises(AssertionError, match="as hit-exact, in flight: False"):
        walls_hold(tenant_site)


def test_without_the_tenant_in_the_partition_the_property_fails(
    tenant_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_tenant(monkeypatch, partition=True)
    with pytest.raises(AssertionError, match="as hit-semantic"):
        walls_hold(tenant_site)


def test_without_the_tenant_in_the_flight_the_property_fails(
    global_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "flight_key", lambda _, question: ("*", question.fingerprint))
    with pytest.raises(AssertionError, match="in flight: True"):
        walls_hold(global_site)
