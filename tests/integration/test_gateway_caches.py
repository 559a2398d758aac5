"""Both cache layers through the gateway: controls, one embedding per request, purging, and what is never stored."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from bench.engine import Script, ScriptedEngine
from core.config import validate
from gateway.explain import decide_offline
from gateway.server import listen, serving
from tests.integration.stack import FRONTIER, SMALL, Stack, WordEncoder, chat, gateway, tiers

CHAT = "/v1/chat/completions"
KEYS = {
    "keys": [
        {"name": "a", "tenant": "alice", "sha256": "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"},
        {"name": "b", "tenant": "bob", "sha256": "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d"},
        {
            "name": "c",
            "tenant": "alice",
            "cache": False,
            "sha256": "2e7d2c03a9507ae265ecf5b5356885a53393a2029d241394997265a1a25aefc6",
        },
    ]
}


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(SMALL) as running:
        yield running


@pytest_asyncio.fixture
async def stack(engine: ScriptedEngine) -> AsyncIterator[Stack]:
    async with gateway(tiers(engine), semantic=True) as running:
        yield running


async def ask(stack: Stack, text: str, **headers: str) -> str:
    """What the cache said to a question."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await stack.client.post(CHAT, json=chat(text), headers=given)
    assert answer.status_code == 200
    return answer.headers["x-forebay-cache"]


async def test_another_wording_is_a_semantic_hit_with_its_evidence(stack: Stack, engine: ScriptedEngine) -> None:
    first = await stack.client.post(CHAT, json=chat("how do I reset my password"))
    hit = await stack.client.post(
        CHAT, json=chat("how do my password I reset"), headers={"x-forebay-debug": "1", "x-request-id": "sem"}
    )
    assert (hit.headers["x-forebay-cache"], hit.headers["x-forebay-tier"]) == ("hit-semantic", "none")
    assert float(hit.headers["x-forebay-similarity"]) == pytest.approx(1.0)
    assert hit.json() == first.json()
    assert len(engine.requests) == 1
    line = await stack.line("sem")
    assert (line["cache"], line["similarity"]) == ("hit-semantic", 1.0)
    assert await stack.metric("forebay_cache_lookups_total", layer="semantic", result="hit") == 1
    assert await stack.metric("forebay_cache_similarity_count") == 1


async def test_a_request_is_embedded_at_most_once_and_an_exact_hit_never(stack: Stack) -> None:
    await ask(stack, "one two three")
    assert stack.encoder.texts == ["one two three"]
    assert await ask(stack, "one two three") == "hit-exact"
    assert len(stack.encoder.texts) == 1


async def test_classifier_and_cache_share_the_embedding(engine: ScriptedEngine) -> None:
    async with ScriptedEngine(FRONTIER) as big, gateway(tiers(engine, frontier=big), semantic=True) as stack:
        await stack.client.post(CHAT, json={**chat("alpha beta"), "model": "auto"})
        assert stack.encoder.texts == ["alpha beta"]


async def test_without_the_semantic_layer_a_named_model_needs_no_embedding(engine: ScriptedEngine) -> None:
    async with ScriptedEngine(FRONTIER) as big, gateway(tiers(engine, frontier=big)) as stack:
        await ask(stack, "alpha beta")
        assert stack.encoder.texts == []
        await stack.client.post(CHAT, json={**chat("alpha beta"), "model": "auto"})
        assert stack.encoder.texts == ["alpha beta"]


async def test_clients_steer_the_cache_by_header(stack: Stack) -> None:
    assert await ask(stack, "first second third") == "miss"
    assert await ask(stack, "first second third", cache_control="no-store") == "bypass"
    assert await ask(stack, "first second third", x_forebay_cache="off") == "bypass"
    assert await ask(stack, "third second first", x_forebay_cache="exact") == "miss"
    assert await ask(stack, "third second first", x_forebay_cache="exact") == "hit-exact"
    assert await ask(stack, "first second third", cache_control="no-cache") == "bypass"
    assert await ask(stack, "first second third", x_stainless_retry_count="1") == "bypass"
    assert await ask(stack, "first second third") == "hit-exact"


async def test_an_illegal_cache_header_is_a_400(stack: Stack) -> None:
    answer = await stack.client.post(CHAT, json=chat("x"), headers={"x-forebay-cache": "maybe"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-forebay-cache")


async def test_tenants_never_share_and_a_key_may_be_without_cache(engine: ScriptedEngine) -> None:
    async with gateway({**tiers(engine), "auth": KEYS}, semantic=True) as stack:
        assert await ask(stack, "secret of alice", authorization="Bearer a") == "miss"
        assert await ask(stack, "secret of alice", authorization="Bearer b") == "miss"
        assert await ask(stack, "of alice secret", authorization="Bearer a") == "hit-semantic"
        assert await ask(stack, "secret of alice", authorization="Bearer c") == "bypass"


@pytest.mark.parametrize(
    "script",
    [Script(status=429), Script(status=500), Script(body=b'{"id": "x", "choices": []}')],
    ids=["429", "500", "no choices"],
)
async def test_what_is_not_an_answer_is_not_stored(stack: Stack, engine: ScriptedEngine, script: Script) -> None:
    engine.next.append(script)
    await stack.client.post(CHAT, json=chat("bad luck"))
    assert await ask(stack, "bad luck") == "miss"
    assert await ask(stack, "bad luck") == "hit-exact"


async def test_a_truncated_answer_is_not_stored(stack: Stack, engine: ScriptedEngine) -> None:
    request = chat("long story", max_tokens=3, stream=True)
    await stack.client.post(CHAT, json=request)
    answer = await stack.client.post(CHAT, json=request)
    assert answer.headers["x-forebay-cache"] == "miss"
    assert await stack.metric("forebay_cache_writes_skipped_total", reason="length") == 2


async def test_an_entry_is_deleted_by_the_id_in_the_hit_and_the_cache_purged(engine: ScriptedEngine) -> None:
    admin = {
        "name": "root",
        "tenant": "ops",
        "admin": True,
        "sha256": "18ac3e7343f016890c510e93f935261169d9e3f565436429830faf0934f4f8e4",
    }
    async with gateway({**tiers(engine), "auth": {"keys": [*KEYS["keys"], admin]}}, semantic=True) as stack:
        root = {"authorization": "Bearer d"}
        await ask(stack, "delete me", authorization="Bearer a")
        hit = await stack.client.post(CHAT, json=chat("delete me"), headers={"authorization": "Bearer a"})
        entry = f"/admin/cache/entries/{hit.headers['x-forebay-cache-id']}"
        assert (await stack.client.delete(entry)).status_code == 401
        assert (await stack.client.delete(entry, headers={"authorization": "Bearer a"})).status_code == 403
        assert (await stack.client.delete(entry, headers=root)).status_code == 200
        assert (await stack.client.delete(entry, headers=root)).status_code == 404
        assert await ask(stack, "delete me", authorization="Bearer a") == "miss"
        await ask(stack, "keep me", authorization="Bearer b")
        assert (await stack.client.get("/admin/cache/stats", headers=root)).json()["exact"] == 2
        purged = await stack.client.post("/admin/cache/purge", params={"tenant": "alice"}, headers=root)
        assert purged.json() == {"purged": 1}
        assert await ask(stack, "keep me", authorization="Bearer b") == "hit-exact"
        assert (await stack.client.post("/admin/cache/purge", headers=root)).json() == {"purged": 1}
        state = (await stack.client.get("/admin/state", headers=root)).text
        assert "sha256" not in state
        assert "ca978112" not in state


async def test_explain_says_what_would_happen_and_leaves_no_trace(stack: Stack, engine: ScriptedEngine) -> None:
    await ask(stack, "red green blue")
    before = await stack.metric("forebay_cache_lookups_total", layer="exact", result="miss")
    answer = (await stack.client.post("/v1/explain", json=chat("blue red green"))).json()
    assert answer["cache"]["exact"] == "miss"
    assert answer["cache"]["semantic"]["verdict"] == "hit"
    assert answer["cache"]["semantic"]["similarity"] == pytest.approx(1.0)
    assert set(answer["cache"]["semantic"]) >= {"nearest_id", "similarity", "threshold", "guard", "verdict"}
    assert answer["router"]["tier"] == "small"
    assert set(answer["router"]) >= {"tier", "complexity", "threshold", "reason"}
    assert (await stack.client.post("/v1/explain", json=chat("red green blue"))).json()["cache"]["exact"] == "hit"
    assert await stack.metric("forebay_cache_lookups_total", layer="exact", result="miss") == before
    assert len(engine.requests) == 1


async def test_a_gateway_without_its_embedder_serves_and_says_so(engine: ScriptedEngine) -> None:
    def broken(_: object) -> object:
        raise OSError("no such model")

    config = validate({"gateway": {"port": 0}, **tiers(engine)})
    async with serving(config, listen(config), write=len, make_encoder=broken) as (process, _):
        await process.services.embedder.settled()
        async with httpx.AsyncClient(base_url=process.url) as client:
            answer = await client.post(CHAT, json=chat("still there"))
            assert (answer.status_code, answer.headers["x-forebay-cache"]) == (200, "miss")
            ready = (await client.get("/ready")).json()
            assert ready["embedder"] == "failed"
            assert any("no such model" in part for part in ready["degraded"])


async def test_without_a_gateway_explain_decides_with_an_empty_cache() -> None:
    async with ScriptedEngine(SMALL) as engine:
        config = validate({**tiers(engine, api_key="${NOT_SET_ANYWHERE}"), "cache": {"semantic": {"threshold": 0.9}}})
        body: dict[str, Any] = chat("what would happen")
        answer: Any = await asyncio.to_thread(decide_offline, config, body, lambda _: WordEncoder())
        assert answer["cache"]["exact"] == "miss"
        assert answer["cache"]["semantic"]["verdict"] == "miss"
        assert (answer["router"]["tier"], answer["router"]["reason"]) == ("small", "override")
        assert not engine.requests
        assert not engine.probes


async def test_a_request_without_cache_is_explained_as_one(stack: Stack) -> None:
    answer = (await stack.client.post("/v1/explain", json=chat("x"), headers={"x-forebay-cache": "off"})).json()
    assert (answer["cache"]["exact"], answer["cache"]["semantic"]["verdict"]) == ("bypass", "bypass")


async def test_the_log_names_a_question_by_the_id_under_which_its_answer_is_kept(stack: Stack) -> None:
    for request_id, text in (("first", "what is a weir"), ("again", "what is a weir"), ("other", "what is a sluice")):
        answer = await stack.client.post(CHAT, json=chat(text), headers={"x-request-id": request_id})
        if request_id == "again":
            kept = answer.headers["x-forebay-cache-id"]
    first, again, other = [(await stack.line(name))["fingerprint"] for name in ("first", "again", "other")]
    assert first == again == kept != other
    unseen = await stack.client.post(CHAT, json=chat("what"), headers={"x-forebay-cache": "off", "x-request-id": "off"})
    assert unseen.headers["x-forebay-cache"] == "bypass"
    assert (await stack.line("off"))["fingerprint"] is None
