"""Health, routing, retries, keys and metrics: one test or more per case seen in the field, over real sockets."""

import asyncio
import hashlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.engine import Script, ScriptedEngine
from core.config import validate
from core.config.records import Embedder
from core.embedder import Encoder
from core.errors import BadRequest
from gateway.explain import decide_offline
from gateway.targets import Targets
from tests.integration.stack import FRONTIER, SMALL, Stack, chat, gateway, tiers, until
from tests.integration.wire import Answer, ask, is_envelope

CHAT = "/v1/chat/completions"


async def post(stack: Stack, body: dict[str, Any], **headers: str) -> Answer:
    return await ask(stack.url, CHAT, body, **headers)


def auto(text: Any, *before: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "auto", "messages": [*before, {"role": "user", "content": text}], **fields}


def replica(stack: Stack, engine: ScriptedEngine) -> Any:
    everyone = [found for gate in stack.process.services.tiers.values() for found in gate.replicas.all]
    return next(found for found in everyone if found.url == engine.url)


@pytest.mark.parametrize("fault", ["error", "another model", "gone"])
async def test_r5_r6_a_replica_that_is_ill_is_not_asked_and_comes_back(
    engine: ScriptedEngine, second: ScriptedEngine, fault: str
) -> None:
    """R5, R6: active probes take it out and bring it back; no request fails meanwhile."""
    async with gateway(tiers(engine, second)) as stack:
        await until(lambda: replica(stack, second).health == "up")
        match fault:
            case "error":
                second.api_key = "a key that the gateway does not have"
            case "another model":
                second.models = ("another",)
            case "gone":
                await second.stop_listening()
                second.drop_connections()
        await until(lambda: replica(stack, second).health == "down", within=10)
        asked = len(second.requests)
        answers = await asyncio.gather(*(post(stack, chat(f"q {number}")) for number in range(20)))
        assert {answer.status for answer in answers} == {200}
        assert len(second.requests) == asked
        state = (await stack.client.get("/ready")).json()
        assert state["ready"] is True
        assert any(second.url in line for line in state["degraded"])
        second.api_key, second.models = None, (SMALL,)
        if fault == "gone":
            await second.listen()
        await until(lambda: replica(stack, second).health == "up", within=10)
        await asyncio.gather(*(post(stack, chat(f"again {number}")) for number in range(20)))
        assert len(second.requests) > asked


async def test_r8_a_server_that_never_answers_its_probe_holds_nobody_up(engine: ScriptedEngine) -> None:
    """R8: probes wait beside the requests, not before them."""
    opened = []

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    document = tiers(engine)
    document["tiers"]["frontier"] = {"model": FRONTIER, "urls": [f"http://127.0.0.1:{port}"]}
    async with gateway(document, probed=False) as stack:
        await until(lambda: bool(opened))
        answers = await asyncio.gather(*(post(stack, chat(f"q {number}")) for number in range(20)))
        assert {answer.status for answer in answers} == {200}
        assert (await stack.client.get("/ready")).json()["tiers"]["frontier"]["ready"] is False
    server.close()
    await server.wait_closed()


async def test_r10_bad_requests_say_nothing_about_the_server(engine: ScriptedEngine) -> None:
    """R10: a hundred 400s, and it is still asked."""
    async with gateway(tiers(engine)) as stack:
        engine.next.extend([Script(status=400)] * 100)
        answers = await asyncio.gather(*(post(stack, chat(f"bad {number}")) for number in range(100)))
        assert {answer.status for answer in answers} == {400}
        assert len(engine.requests) == 100
        assert (await post(stack, chat("good"))).status == 200
        assert await stack.metric("forebay_retries_total", tier="small") == 0


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
@pytest.mark.parametrize("status", [429, 503])
async def test_r12_a_full_replica_is_passed_over_for_another(
    engine: ScriptedEngine, second: ScriptedEngine, status: int, stream: bool
) -> None:
    """R12: the next deployment is tried, and a full one is not taken for broken."""
    engine.defaults = Script(status=status, headers={"retry-after": "1"})
    async with gateway(tiers(engine, second)) as stack:
        await until(lambda: replica(stack, second).health == "up")
        answers = [await post(stack, chat(f"q {number}", stream=stream)) for number in range(6)]
        assert {answer.status for answer in answers} == {200}
        assert len(second.requests) == 6
        assert replica(stack, engine).health == "up"
        assert await stack.metric("forebay_retries_total", tier="small") == len(engine.requests) > 0


async def test_r12_when_all_are_full_the_client_is_told_when_to_come_back(engine: ScriptedEngine) -> None:
    """R12."""
    engine.defaults = Script(status=429, headers={"retry-after": "4"})
    async with gateway(tiers(engine)) as stack:
        answer = await post(stack, chat("hi"))
        assert (answer.status, answer.header("retry-after")) == (429, "4")
        assert is_envelope(answer.json)


@pytest.mark.parametrize(
    "script",
    [Script(cut_after_bytes=0), Script(cut_after_bytes=0, cut="reset"), Script(cut_after_tokens=0)],
    ids=["closed", "reset", "before the first token"],
)
async def test_r14_a_replica_that_dies_before_it_says_anything_is_replaced_by_another(
    engine: ScriptedEngine, second: ScriptedEngine, script: Script
) -> None:
    """R14: retried on another server, counted."""
    engine.defaults = script
    async with gateway(tiers(engine, second)) as stack:
        await until(lambda: replica(stack, second).health == "up")
        answers = [await post(stack, chat(f"q {number}", stream=True)) for number in range(4)]
        assert {answer.status for answer in answers} == {200}
        assert all(answer.events[-1] == b"[DONE]" for answer in answers)
        assert len(second.requests) == 4
        assert await stack.metric("forebay_retries_total", tier="small") == len(engine.requests) > 0
        assert await stack.metric("forebay_upstream_errors_total", tier="small") == len(engine.requests)
        await stack.idle()


async def test_r14_a_replica_killed_under_load_costs_only_the_streams_it_had_begun(
    engine: ScriptedEngine, second: ScriptedEngine
) -> None:
    """R14, R1: every request that had no content yet is served elsewhere."""
    for server in (engine, second):
        server.defaults = Script(ttft=0.5, tokens=3)
    async with gateway(tiers(engine, second)) as stack:
        await until(lambda: replica(stack, second).health == "up")
        asked = [asyncio.create_task(post(stack, chat(f"q {number}", stream=True))) for number in range(30)]
        await until(lambda: engine.running + second.running == 30)
        assert second.running > 5
        await second.stop_listening()
        second.drop_connections()
        answers = await asyncio.gather(*asked)
        assert {answer.status for answer in answers} == {200}
        assert all(answer.events[-1] == b"[DONE]" for answer in answers)
        await stack.idle()


async def test_r17_r18_probes_and_requests_carry_the_tiers_key(
    monkeypatch: pytest.MonkeyPatch, frontier: ScriptedEngine
) -> None:
    """R17, R18: a tier that wants a key is healthy and served; the client's own key never gets there."""
    monkeypatch.setenv("FOREBAY_TEST_TIER_KEY", "tier-secret")
    reference = "${FOREBAY_TEST_TIER_KEY}"
    async with ScriptedEngine(SMALL, api_key="tier-secret") as engine:
        document = tiers(engine, frontier=frontier, api_key=reference)
        async with gateway(document) as stack:
            for path, body in ((CHAT, chat("hi")), ("/v1/embeddings", {"model": "small", "input": "hi"})):
                answer = await ask(stack.url, path, body, authorization="Bearer client-secret", cookie="a=b")
                assert answer.status == 200
            await post(stack, {**chat("hi"), "model": "frontier"}, authorization="Bearer client-secret")
            for seen in (*engine.requests, *engine.probes):
                assert seen.headers["authorization"] == "Bearer tier-secret"
            for seen in (*frontier.requests, *frontier.probes):
                assert "authorization" not in seen.headers
            assert not any("cookie" in seen.headers for seen in engine.requests)
            assert b"secret" not in bytes(stack.log)
            assert b"secret" not in (await stack.client.get("/metrics")).content


ROUTES = [
    ("POST", CHAT),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/audio/transcriptions"),
    ("POST", "/v1/explain"),
    ("POST", "/v1/unheard-of"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/small"),
    ("GET", "/admin/state"),
    ("GET", "/admin/cache/stats"),
    ("POST", "/admin/cache/purge"),
    ("DELETE", "/admin/cache/entries/x"),
    ("GET", "/admin/unheard-of"),
]


def keys() -> dict[str, Any]:
    rows = [
        {"name": n, "tenant": n, "sha256": hashlib.sha256(n.encode()).hexdigest(), "admin": n == "root"}
        for n in ("user", "root")
    ]
    return {"auth": {"keys": rows}}


async def test_r20_r31_one_layer_of_keys_before_every_route(engine: ScriptedEngine) -> None:
    """R20, R31: no key and a wrong key are 401 everywhere, /admin is for administrators, probes are open."""
    async with gateway({**tiers(engine), **keys()}) as stack:
        for method, path in ROUTES:
            for headers in (
                {},
                {"authorization": "Bearer wrong"},
                {"authorization": "Basic user"},
                {"authorization": "user"},
            ):
                answer = await stack.client.request(method, path, json=chat("hi"), headers=headers)
                assert answer.status_code == 401, (method, path, headers)
                assert is_envelope(answer.json())
            if path.startswith("/admin"):
                answer = await stack.client.request(method, path, headers={"authorization": "Bearer user"})
                assert answer.status_code == 403, path
        for path in ("/health", "/ready", "/metrics", "/openapi.json"):
            assert (await stack.client.get(path)).status_code == 200
        assert engine.requests == type(engine.requests)()
        state = await stack.client.get("/admin/state", headers={"authorization": "Bearer root"})
        assert state.status_code == 200
        assert hashlib.sha256(b"root").hexdigest() not in state.text


async def test_r31_without_keys_there_is_no_administrator(engine: ScriptedEngine) -> None:
    """R31."""
    async with gateway(tiers(engine)) as stack:
        for method, path in ROUTES:
            if path.startswith("/admin"):
                assert (await stack.client.request(method, path)).status_code == 403


async def test_r21_content_parts_are_joined_for_classifier_and_capabilities(
    engine: ScriptedEngine, frontier: ScriptedEngine
) -> None:
    """R21: a list of parts is classified as its text; an image goes to a tier that can see."""
    document = tiers(engine, frontier=frontier)
    document["tiers"]["frontier"]["capabilities"] = ["text", "tools", "json", "vision"]
    async with gateway(document) as stack:
        text = {"type": "text", "text": "What is 2 + 2?"}
        plain = await post(stack, auto("What is 2 + 2?"), x_forebay_debug="1")
        parts = await post(stack, auto([text]), x_forebay_debug="1")
        assert plain.status == parts.status == 200
        for name in ("x-forebay-complexity", "x-forebay-route-reason"):
            assert plain.header(name) == parts.header(name)
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        seen = await post(stack, auto([text, image]), x_forebay_debug="1")
        assert (seen.header("x-forebay-tier"), seen.header("x-forebay-route-reason")) == ("frontier", "vision")


async def test_r21_odd_contents_never_break_the_gateway(engine: ScriptedEngine, frontier: ScriptedEngine) -> None:
    """R21's kind."""
    odd: list[Any] = [
        None,
        "",
        [],
        [None],
        [7],
        [[]],
        [{}],
        {"a": 1},
        7,
        True,
        [{"type": None, "text": None}],
        "{}{0}%s",
    ]
    async with gateway(tiers(engine, frontier=frontier), semantic=True) as stack:
        for content in odd:
            answer = await post(stack, auto(content))
            assert answer.status in (200, 400), content
            assert answer.status == 200 or is_envelope(answer.json)


async def test_r23_a_conversation_only_moves_up(engine: ScriptedEngine, frontier: ScriptedEngine) -> None:
    """R23: sticky per conversation and tenant; an approval inherits; an explicit model wins."""
    async with gateway(tiers(engine, frontier=frontier)) as stack:
        opening = {"role": "user", "content": "Prove that there are infinitely many primes."}
        forced = await post(stack, {"model": "auto", "messages": [opening]}, x_forebay_tier="frontier")
        said = {"role": "assistant", "content": forced.json["choices"][0]["message"]["content"]}
        for follow in ("yes, do it", "What is 2 + 2?", "hi"):
            answer = await post(stack, auto(follow, opening, said), x_forebay_debug="1")
            assert (answer.header("x-forebay-tier"), answer.header("x-forebay-route-reason")) == ("frontier", "sticky")
        explicit = await post(stack, {**auto("hi", opening, said), "model": "small"})
        assert explicit.header("x-forebay-tier") == "small"
        other = await post(
            stack, auto("What is 2 + 2?", {**opening, "content": "Another opening."}, said), x_forebay_debug="1"
        )
        assert other.header("x-forebay-route-reason") != "sticky"


async def test_r26_a_huge_prompt_is_bounded_work(engine: ScriptedEngine, frontier: ScriptedEngine) -> None:
    """R26: a 200,000-character prompt is served, and others meanwhile."""
    async with gateway(tiers(engine, frontier=frontier), semantic=True) as stack:
        huge = [asyncio.create_task(post(stack, auto("{[x1 " * 40_000 + str(n)))) for n in range(4)]
        small = await asyncio.gather(*(post(stack, auto(f"hi {number}")) for number in range(10)))
        long = await asyncio.gather(*huge)
        assert {answer.status for answer in (*small, *long)} == {200}
        # The log says that only head and tail of a long ask were looked at.
        for answer, truncated in ((small[0], False), (long[0], True)):
            assert (await stack.line(answer.header("x-request-id") or ""))["truncated"] is truncated


async def test_r30_what_clients_make_up_does_not_become_a_label(engine: ScriptedEngine) -> None:
    """R30: junk models, paths and ids leave the number of series as it is."""
    async with gateway(tiers(engine)) as stack:

        async def series() -> int:
            text = (await stack.client.get("/metrics")).text
            return sum(line.startswith("forebay_") for line in text.splitlines())

        async def junk(number: int) -> None:
            await post(stack, {**chat("x"), "model": f"junk-{number}"}, x_request_id=f"id-{number}")
            await stack.client.get(f"/v1/junk-{number}")
            await stack.client.get(f"/junk/{number}")

        await junk(0)
        before = await series()
        await asyncio.gather(*(junk(number) for number in range(1, 60)))
        assert await series() == before


TIER = st.sampled_from(["small", "frontier", "auto", SMALL, FRONTIER])


@settings(max_examples=40, deadline=None)
@given(TIER, st.sampled_from([None, "small", "frontier", "medium", ""]))
def test_every_name_reaches_its_tier_and_a_contradiction_is_refused(model: str, header: str | None) -> None:
    """The contract's table of names, in one property."""
    config = validate({"tiers": {"small": {"model": SMALL}, "frontier": {"model": FRONTIER}}})
    wanted = {"small": "small", SMALL: "small", "frontier": "frontier", FRONTIER: "frontier", "auto": None}[model]
    try:
        target = Targets(config.tiers).resolve(model, header)
    except BadRequest:
        assert header in ("medium", "") or (wanted is not None and header != wanted)
        return
    assert target.tier == (wanted or header)


HARD = [
    "Beweise, dass es unendlich viele Primzahlen der Form 4k+3 gibt.",
    "证明:对任意正整数 n, n^3 - n 能被 6 整除, 并推广到 n^p - n。",
    "Demuestra que la raíz cuadrada de 2 es irracional y generaliza el argumento a la raíz de cualquier primo.",
    "Prove that every bounded sequence of real numbers has a convergent subsequence.",
    "Darf ein Verein ein Mitglied ohne Anhörung ausschließen? Prüfe die Wirksamkeit des Beschlusses.",
    "买方交房后发现地下室漏水，他有哪些权利，诉讼时效如何计算？",  # noqa: RUF001  # the full-width marks are its own
    "El comprador descubre humedades tras la entrega. ¿Qué acciones tiene y qué plazos corren?",
    "Ein Patient mit Leberzirrhose wird nach einer Magenblutung verwirrt. Differenzialdiagnose und erste Schritte?",
    "幼儿误吞纽扣电池，有什么危险，应按什么顺序处理？",  # noqa: RUF001  # as above
    "Paciente con cirrosis y confusión tras una hemorragia digestiva: diagnóstico diferencial y primeros pasos.",
    "L'acheteur découvre des infiltrations après la vente. Quels recours a-t-il et dans quels délais ?",
    "Notre traitement de nuit ne se bloque que les mois de 31 jours. Comment en trouver la cause ?",
]


@pytest.mark.embedder
def test_r21_r23_r25_r26_hard_prompts_are_hard_in_any_language_and_any_wrapping(minilm: Encoder) -> None:
    """As one string, as content parts, as what an approval refers to, and around 200,000 other characters."""

    def make(_: Embedder) -> Encoder:
        return minilm

    config = validate({"tiers": {"small": {"model": SMALL}, "frontier": {"model": FRONTIER}}})

    def wrappings(text: str) -> dict[str, dict[str, Any]]:
        head, tail = text[: len(text) // 2], text[len(text) // 2 :]
        said = ({"role": "user", "content": text}, {"role": "assistant", "content": "Shall I?"})
        return {
            "plain": auto(text),
            "parts": auto([{"type": "text", "text": head}, {"type": "text", "text": tail}]),
            "approved": auto("ok", *said),
            "long": auto(f"{text}\n\n" + "0123456789 " * 18_000 + f"\n\n{text}"),
        }

    missed = [
        (name, text)
        for text in HARD
        for name, body in wrappings(text).items()
        if decide_offline(config, body, make)["router"]["tier"] != "frontier"
    ]
    assert missed == []
