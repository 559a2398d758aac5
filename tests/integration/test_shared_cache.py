"""Two gateways over one Redis or Valkey: what one has learned the other knows, and what one forgets is forgotten."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from bench.engine import ScriptedEngine
from bench.servers import Cluster, Server, binary
from bench.servers import ask as command
from tests.integration.certificates import authority
from tests.integration.shared import UNGUARDED, answered, ask, eventually, finds, healthy, says, server, sharing
from tests.integration.stack import SMALL, Stack, WordEncoder
from tests.integration.test_gateway_caches import KEYS

__all__ = ["server"]
ADMIN = {
    "name": "root",
    "tenant": "ops",
    "admin": True,
    "sha256": "18ac3e7343f016890c510e93f935261169d9e3f565436429830faf0934f4f8e4",
}
ROOT = {"authorization": "Bearer d"}


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(SMALL) as running:
        yield running


@pytest_asyncio.fixture
async def pair(server: Server, engine: ScriptedEngine) -> AsyncIterator[tuple[Stack, Stack]]:
    auth = {"keys": [*KEYS["keys"], ADMIN]}
    async with sharing(server.url, engine, auth=auth) as one, sharing(server.url, engine, auth=auth) as other:
        yield one, other


async def test_an_answer_of_one_gateway_is_a_hit_at_the_other(server: Server, engine: ScriptedEngine) -> None:
    async with sharing(server.url, engine) as one, sharing(server.url, engine) as other:
        first = await answered(one, "how do I reset my password")
        assert first[0] == "miss"
        assert await answered(other, "how do I reset my password") == ("hit-exact", first[1])
        await eventually(finds, other, "how do my password I reset")
        assert await answered(other, "how do my password I reset") == ("hit-semantic", first[1])
        assert await answered(one, "password my reset I do how") == ("hit-semantic", first[1])
        assert len(engine.requests) == 1
        for stack in (one, other):
            assert await stack.metric("forebay_cache_entries", layer="exact") == 1
            assert await stack.metric("forebay_cache_entries", layer="semantic") == 1
            await eventually(healthy, stack)


async def test_tenants_stay_apart_across_gateways(pair: tuple[Stack, Stack]) -> None:
    one, other = pair
    assert await ask(one, "secret of alice", authorization="Bearer a") == "miss"
    assert await ask(one, "another of mine", authorization="Bearer b") == "miss"
    await eventually(_knows, other, 2)
    assert await ask(other, "secret of alice", authorization="Bearer b") == "miss"
    assert await ask(other, "of alice secret", authorization="Bearer b") == "hit-semantic", "of bob's own, just stored"
    assert await ask(other, "of secret alice", authorization="Bearer a") == "hit-semantic"


async def _knows(stack: Stack, count: int) -> bool:
    found = (await stack.client.get("/admin/cache/stats", headers=ROOT)).json()
    return bool(found["known"] == count)


async def test_deletion_and_purge_reach_every_gateway(pair: tuple[Stack, Stack]) -> None:
    one, other = pair
    for text in ("delete me soon", "keep this one"):
        await ask(one, text, authorization="Bearer a")
    await ask(one, "bob has this", authorization="Bearer b")
    hit = await other.client.post(
        "/v1/chat/completions",
        json={"model": "small", "messages": [{"role": "user", "content": "delete me soon"}]},
        headers={"authorization": "Bearer a"},
    )
    entry = f"/admin/cache/entries/{hit.headers['x-forebay-cache-id']}"
    assert (await other.client.delete(entry, headers=ROOT)).status_code == 200
    assert (await one.client.delete(entry, headers=ROOT)).status_code == 404
    assert await ask(one, "delete me soon", authorization="Bearer a", x_forebay_cache="exact") == "miss"
    purged = await other.client.post("/admin/cache/purge", params={"tenant": "alice"}, headers=ROOT)
    assert purged.json() == {"purged": 2}
    assert await ask(one, "keep this one", authorization="Bearer a", cache_control="max-age=100") == "miss"
    assert await ask(one, "bob has this", authorization="Bearer b") == "hit-exact"
    stats = (await one.client.get("/admin/cache/stats", headers=ROOT)).json()
    assert (stats["exact"], stats["store"]) == (2, {"kind": "redis", "breaker": "closed"})
    assert (await one.client.post("/admin/cache/purge", headers=ROOT)).json() == {"purged": 2}
    assert await ask(other, "bob has this", authorization="Bearer b") == "miss"


async def test_an_answer_lives_as_long_at_both(server: Server, engine: ScriptedEngine) -> None:
    brief = {"exact": {"ttl": "400ms"}, "semantic": {"ttl": "400ms", "threshold": 0.9, "deadline": "5s"}}
    async with sharing(server.url, engine, **brief) as one, sharing(server.url, engine, **brief) as other:
        await ask(one, "soon it is over")

        async def gone() -> bool:
            explained = await other.client.post(
                "/v1/explain", json={"model": "small", "messages": [{"role": "user", "content": "soon it is over"}]}
            )
            return bool(explained.json()["cache"]["exact"] == "miss")

        await eventually(gone)
        assert await ask(other, "soon over it is", cache_control="no-store") == "bypass"
        assert not await finds(one, "over soon it is")
        assert await ask(one, "soon it is over") == "miss"


async def test_a_gateway_that_starts_again_knows_what_was_asked(server: Server, engine: ScriptedEngine) -> None:
    texts = [f"question number {count} about thing{count} and place{count * 7}" for count in range(150)]
    async with sharing(server.url, engine, **UNGUARDED) as one:
        answers = {text: (await answered(one, text))[1] for text in texts}
        for _ in range(2):
            async with sharing(server.url, engine, **UNGUARDED) as again:
                await eventually(finds, again, "place0 and thing0 about 0 number question")
                asked = len(engine.requests)
                for count in (0, 75, 149):
                    found = await answered(again, f"place{count * 7} and thing{count} about {count} number question")
                    assert found == ("hit-semantic", answers[texts[count]])
                assert len(engine.requests) == asked


async def test_another_embedder_shares_exact_answers_and_no_vectors(
    server: Server, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sharing(server.url, engine) as one:
        await ask(one, "which model made this vector")
        monkeypatch.setattr(WordEncoder, "dim", 128)
        async with sharing(server.url, engine) as other:
            assert await ask(other, "which model made this vector") == "hit-exact"
            assert await ask(other, "this vector which model made") == "miss"
            await eventually(healthy, other)
            assert await ask(other, "made this vector which model") == "hit-semantic"


async def test_a_cluster_of_three_is_one_store(tmp_path: Path, engine: ScriptedEngine) -> None:
    if binary("redis") is None:
        pytest.skip("no redis server is installed")
    with Cluster("redis", tmp_path) as cluster:
        async with (
            sharing(cluster.url, engine, **UNGUARDED) as one,
            sharing(cluster.url, engine, **UNGUARDED) as other,
        ):
            answers = {}
            for count in range(30):
                text = f"part {count} of thing{count} in the cluster"
                answers[count] = (await answered(one, text))[1]
                assert await answered(other, text) == ("hit-exact", answers[count])
            for count in (0, 15, 29):
                await eventually(finds, other, f"thing{count} of part {count} in the cluster")
                found = await answered(other, f"thing{count} of part {count} in the cluster")
                assert found == ("hit-semantic", answers[count])
        used = [int(command(server.port, "DBSIZE").removeprefix(":")) for server in cluster.servers]
        assert min(used) > 0, "every server holds a part"


async def test_tls_with_an_authority_of_its_own(tmp_path: Path, engine: ScriptedEngine) -> None:
    if binary("redis") is None:
        pytest.skip("no redis server is installed")
    ca, certificate, key = authority(tmp_path)
    files = ["--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-ca-cert-file", str(ca)]
    with Server("redis", tmp_path, [*files, "--tls-auth-clients", "no"], tls=True) as secure:
        async with AsyncExitStack() as stacks:
            trusting = await stacks.enter_async_context(sharing(f"{secure.url}?ssl_ca_certs={ca}", engine))
            assert await ask(trusting, "is this wire secret") == "miss"
            assert await ask(trusting, "is this wire secret") == "hit-exact"
            distrusting = await stacks.enter_async_context(sharing(secure.url, engine))
            assert await ask(distrusting, "is this wire secret") == "miss"
            await eventually(says, distrusting, "certificate verify failed")


async def test_the_password_is_a_reference_and_shows_nowhere(
    tmp_path: Path, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if binary("redis") is None:
        pytest.skip("no redis server is installed")
    monkeypatch.setenv("STORE_PASSWORD", "hunter2:/@%41")
    with Server("redis", tmp_path, ["--requirepass", "hunter2:/@%41"]) as locked:
        url = locked.url.replace("redis://", "redis://:${STORE_PASSWORD}@")
        async with sharing(url, engine, auth={"keys": [ADMIN]}) as stack:
            assert await ask(stack, "open sesame", **ROOT) == "miss"
            assert await ask(stack, "open sesame", **ROOT) == "hit-exact"
            shown = (await stack.client.get("/admin/state", headers=ROOT)).text
            assert "STORE_PASSWORD" in shown
            assert "hunter2" not in shown
        monkeypatch.setenv("STORE_PASSWORD", "hunter3")
        async with sharing(url, engine, auth={"keys": [ADMIN]}) as stack:
            assert await ask(stack, "open sesame", **ROOT) == "miss"
            await eventually(says, stack, "AuthenticationError")
            assert "hunter" not in (await stack.client.get("/ready")).text
    assert "hunter" not in caplog.text
