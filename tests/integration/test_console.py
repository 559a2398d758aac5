"""The console over HTTP: who gets in, the events, the lookups, several workers."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from bench.engine import Script, ScriptedEngine
from tests.integration.served import serving
from tests.integration.stack import RawClient, Stack, chat, gateway, tiers, until
from tests.integration.wire import ask

CHAT = "/v1/chat/completions"
ADMIN = {"authorization": "Bearer admin"}
HERE = {"host": "localhost"}
GUARDED = ("/console", "/console/main.js", "/admin/events", "/admin/lookups")


def keys(**names: bool) -> dict[str, Any]:
    found = [
        {"name": name, "tenant": "t", "sha256": hashlib.sha256(name.encode()).hexdigest(), "admin": admin}
        for name, admin in names.items()
    ]
    return {"auth": {"keys": found}}


class Events:
    """The events of one connection."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.last = ""

    async def next(self, wanted: str) -> dict[str, Any]:
        """The data of the next event with this name."""
        name = ""
        async with asyncio.timeout(10):
            async for line in self._lines:
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "id":
                    self.last = value
                elif field == "data" and name == wanted:
                    found: dict[str, Any] = orjson.loads(value)
                    return found
        raise AssertionError(f"ended without {wanted}")

    async def ids(self, count: int) -> list[str]:
        """The ids of the next so many requests."""
        found: list[str] = []
        while len(found) < count:
            found += [row["request_id"] for row in (await self.next("decisions"))["decisions"]]
        return found


@asynccontextmanager
async def watching(stack: Stack, after: str = "", **headers: str) -> AsyncIterator[Events]:
    if after:
        headers["last-event-id"] = after
    async with stack.client.stream("GET", "/admin/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Events(answer.aiter_lines())


async def asked(stack: Stack, text: str, **fields: Any) -> str:
    answer = await stack.client.post(CHAT, json=chat(text, **fields))
    found: str = answer.headers["x-request-id"]
    return found


@pytest.mark.parametrize("path", GUARDED)
async def test_with_keys_it_takes_an_administrators(engine: ScriptedEngine, path: str) -> None:
    async with gateway({**tiers(engine), **keys(admin=True, client=False)}) as stack:
        for headers in ({}, {"authorization": "Bearer client"}, {"authorization": "Bearer wrong"}):
            answer = await stack.client.get(path, headers=headers)
            assert answer.status_code == 403
            assert "main.js" not in answer.text
        async with stack.client.stream("GET", path, headers=ADMIN) as stream:
            assert stream.status_code == 200


@pytest.mark.parametrize("path", GUARDED)
async def test_without_keys_it_answers_under_names_of_this_machine_only(engine: ScriptedEngine, path: str) -> None:
    async with gateway(tiers(engine)) as stack:
        for headers in ({"host": "gateway.example"}, {"x-forwarded-for": "192.0.2.1"}):
            answer = await stack.client.get(path, headers=headers)
            assert answer.status_code == 403
            assert "<form" not in answer.text
        async with stack.client.stream("GET", path, headers=HERE) as stream:
            assert stream.status_code == 200


@pytest.mark.parametrize("path", ["/console", "/admin/events", "/admin/lookups", "/console/style.css"])
async def test_switched_off_it_is_not_there(engine: ScriptedEngine, path: str) -> None:
    async with gateway({**tiers(engine), "console": {"enabled": False}}) as stack:
        assert (await stack.client.get(path)).status_code == 404
        await asked(stack, "q")


async def test_a_key_in_the_form_becomes_a_session(engine: ScriptedEngine) -> None:
    async with gateway({**tiers(engine), **keys(admin=True, client=False)}) as stack:
        form, here = "/console/session", {"origin": stack.url}
        closed = await stack.client.get("/console")
        assert 'action="/console/session"' in closed.text
        assert (await stack.client.get("/console/style.css")).status_code == 200
        for key in ("client", "wrong", ""):
            refused = await stack.client.post(form, data={"key": key}, headers=here)
            assert (refused.status_code, refused.headers.get("set-cookie")) == (403, None)
        elsewhere = await stack.client.post(form, data={"key": "admin"}, headers={"origin": "http://evil.example"})
        assert (elsewhere.status_code, elsewhere.headers.get("set-cookie")) == (403, None)
        let_in = await stack.client.post(form, data={"key": " admin\n"}, headers=here)
        assert (let_in.status_code, let_in.headers["location"]) == (303, "/console")
        said = let_in.headers["set-cookie"].lower()
        assert all(part in said for part in ("httponly", "samesite=strict", "path=/", "max-age="))
        assert "secure" not in said
        # The client keeps the cookie, as a browser would.
        assert (await stack.client.get("/console")).status_code == 200
        assert (await stack.client.get("/admin/state")).status_code == 200
        # What another site may cause is not let in by the cookie.
        assert (await stack.client.post(CHAT, json=chat("q"))).status_code == 401
        assert (await stack.client.post("/admin/cache/purge")).status_code == 401
        answer = await stack.client.post(CHAT, json=chat("q"), headers={"x-forebay-console": "1"})
        assert answer.status_code == 200
        assert (await stack.line(answer.headers["x-request-id"]))["key"] == "admin"
        assert "cookie" not in engine.requests[-1].headers
        tls = await stack.client.post(
            form, data={"key": "admin"}, headers={"origin": stack.url.replace("http", "https")}
        )
        assert "secure" in tls.headers["set-cookie"].lower()
        left = await stack.client.post("/console/leave", headers=here)
        assert left.status_code == 303
        assert (await stack.client.get("/console")).status_code == 403


async def test_the_page_is_guarded_and_kept_by_the_browser(engine: ScriptedEngine) -> None:
    async with gateway(tiers(engine)) as stack:
        page = await stack.client.get("/console")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        tag = page.headers["etag"]
        assert (await stack.client.get("/console", headers={"if-none-match": tag})).status_code == 304
        script = await stack.client.get("/console/main.js")
        assert script.headers["content-type"].startswith("text/javascript")
        for name in ("..%2fsite.py", "signin.html", "README.md", "nothing.js"):
            assert (await stack.client.get(f"/console/{name}")).status_code == 404


async def test_decisions_come_as_they_are_made_and_none_twice(engine: ScriptedEngine) -> None:
    async with gateway(tiers(engine)) as stack:
        before = [await asked(stack, f"before {number}") for number in range(3)]
        async with watching(stack) as events:
            assert await events.ids(3) == before
            state = await events.next("state")
            assert state["totals"]["cache"] == {"miss": 3.0}
            assert state["tiers"]["small"]["servers"][0]["health"] == "up"
            then = [await asked(stack, f"then {number}") for number in range(3)]
            assert await events.ids(3) == then
            place = events.last
        missed = [await asked(stack, f"missed {number}") for number in range(2)]
        async with watching(stack, place) as events:
            assert await events.ids(2) == missed
        # An id of another life, or none of ours, shows what there is.
        async with watching(stack, "ffffffff.900") as events:
            assert await events.ids(8) == before + then + missed
        async with watching(stack, "nonsense") as events:
            assert await events.ids(8) == before + then + missed


async def test_a_decision_says_what_the_log_says(engine: ScriptedEngine) -> None:
    async with gateway(tiers(engine), semantic=True) as stack, watching(stack) as events:
        await events.next("state")
        ids = [await asked(stack, text, stream=True) for text in ("the same words", "words the same", "the same words")]
        rows: list[dict[str, Any]] = []
        while len(rows) < 3:
            rows += (await events.next("decisions"))["decisions"]
        for request_id, row in zip(ids, rows, strict=True):
            line = await stack.line(request_id)
            names = (
                "tenant",
                "route",
                "status",
                "reason",
                "tier",
                "cache",
                "semantic",
                "guard",
                "similarity",
                "complexity",
            )
            assert {name: row[name] for name in names} == {name: line[name] for name in names}
            assert row["ttft_ms"] == pytest.approx(line["ttft_ms"], abs=0.001)
            assert not {"prompt", "answer"} & row.keys()
            assert "words" not in orjson.dumps(row).decode()


async def test_prompts_and_answers_are_shown_where_that_is_allowed(engine: ScriptedEngine) -> None:
    engine.defaults = Script(text="well answered")
    async with gateway({**tiers(engine), "console": {"show_prompts": True}}, semantic=True) as stack:
        async with watching(stack) as events:
            await asked(stack, "what is asked")
            await asked(stack, "what is asked", stream=True)
            await asked(stack, "what is streamed", stream=True)
            await stack.client.post("/v1/completions", json={"model": "small", "prompt": "x" * 5000})
            rows: list[dict[str, Any]] = []
            while len(rows) < 4:
                rows += (await events.next("decisions"))["decisions"]
        said = [(row["prompt"], row["answer"]) for row in rows]
        assert said[:3] == [("what is asked", "well answered")] * 2 + [("what is streamed", "well answered")]
        assert said[3] == ("x" * 2000 + "…", "well answered")
        assert b"what is asked" not in bytes(stack.log)


async def test_the_history_is_as_long_as_configured(engine: ScriptedEngine) -> None:
    async with gateway({**tiers(engine), "console": {"history": 3}}) as stack:
        ids = [await asked(stack, f"q {number}") for number in range(5)]
        async with watching(stack) as events:
            assert await events.ids(3) == ids[-3:]


async def test_lookups_are_those_of_the_log(engine: ScriptedEngine, frontier: ScriptedEngine) -> None:
    async with gateway(tiers(engine, frontier=frontier), semantic=True) as stack:
        for text in ("one two three", "three two one", "one two three four", "something else", "prove the theorem"):
            await asked(stack, text, model="auto")
        await asked(stack, "named", model="small")
        found = (await stack.client.get("/admin/lookups")).json()
        words, rows = found["words"], found["columns"]
        lines = [line for line in stack.lines() if line["semantic"] is not None or line["complexity"] is not None]
        assert len(lines) == len(rows["time"]) == 6
        assert rows["similarity"] == [line["similarity"] for line in lines]
        assert rows["complexity"] == [line["complexity"] for line in lines]
        assert [words["semantic"][n] for n in rows["semantic"]] == [line["semantic"] for line in lines]
        assert [words["tier"][n] for n in rows["tier"]] == [line["tier"] for line in lines]
        assert [words["reason"][n] for n in rows["reason"]] == [line["route_reason"] or "none" for line in lines]
        assert rows["input"] == [line["input_tokens"] for line in lines]
        assert found["settings"]["similarity"] == 0.9


async def test_explain_names_the_parts_of_the_question_and_its_neighbours(engine: ScriptedEngine) -> None:
    async with gateway(tiers(engine), semantic=True) as stack:
        await asked(stack, "what is the capital of France", temperature=0)
        body = chat("what is the capital of Spain", temperature=0, stream=True)
        told = (await stack.client.post("/v1/explain", json=body)).json()
        print_of = told["fingerprint"]
        assert (print_of["tenant"], print_of["kind"], print_of["target"]) == ("default", "chat", "model=small-model")
        assert (print_of["fields"], print_of["left_out"]) == (["messages", "temperature"], ["model", "stream"])
        (near,) = told["cache"]["semantic"]["nearest"]
        assert near["id"] == told["cache"]["semantic"]["nearest_id"]
        assert near["similarity"] == pytest.approx(told["cache"]["semantic"]["similarity"], abs=1e-6)
        assert near["guard"]["served"] is False
        assert "France" not in orjson.dumps(told).decode()


async def test_an_open_page_keeps_no_gateway_from_stopping(engine: ScriptedEngine) -> None:
    engine.defaults = Script(hang=True)
    async with gateway({**tiers(engine), "gateway": {"drain": "60s"}}) as stack, watching(stack) as events:
        client = await RawClient.post(stack.url, CHAT, chat("q"))
        await until(lambda: engine.running == 1)
        stack.process.stop()
        while not (await events.next("state"))["draining"]:
            pass
        await client.leave()
        assert len(await events.ids(1)) == 1
        with pytest.raises(AssertionError, match="ended without"):
            await events.next("nothing")


async def test_nothing_is_gathered_once_the_last_reader_has_left(engine: ScriptedEngine) -> None:
    async with gateway(tiers(engine)) as stack:
        async with watching(stack) as events:
            await events.next("state")
            assert any(task.get_name() == "console events" for task in asyncio.all_tasks())
        await until(lambda: not any(task.get_name() == "console events" for task in asyncio.all_tasks()))


async def test_in_a_flood_every_reader_hears_of_every_decision_and_nothing_grows(engine: ScriptedEngine) -> None:
    history, wanted = 20, 600
    async with gateway({**tiers(engine), "console": {"history": history}}) as stack:

        async def count() -> tuple[int, int]:
            """Decisions seen or heard of, and the most in one event."""
            total = most = 0
            async with watching(stack) as events:
                await events.next("state")
                ready.release()
                while total < wanted:
                    event = await events.next("decisions")
                    total += len(event["decisions"]) + event["missed"]
                    most = max(most, len(event["decisions"]))
            return total, most

        ready = asyncio.Semaphore(0)
        readers = [asyncio.create_task(count()) for _ in range(3)]
        for _ in readers:
            await ready.acquire()
        for _ in range(wanted // 50):
            await asyncio.gather(*(asked(stack, "q") for _ in range(50)))
        for total, most in await asyncio.gather(*readers):
            assert total == wanted
            assert most <= history
        watch = stack.process.services.watch
        assert watch is not None
        assert len(watch.rows(0, 10**6)) <= 1024


async def test_readers_are_bounded(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.console.hub.MOST_READERS", 1)
    async with gateway(tiers(engine)) as stack, watching(stack) as events:
        await events.next("state")
        full = await stack.client.get("/admin/events")
        assert (full.status_code, full.json()["error"]["code"]) == (503, "console_full")
        assert int(full.headers["retry-after"]) > 0


async def test_two_workers_are_shown_as_one_gateway(engine: ScriptedEngine, tmp_path: Path) -> None:
    document = {**tiers(engine), **keys(admin=True), "gateway": {"port": 0, "workers": 2}}
    async with serving(tmp_path, document) as served:
        ids: set[str | None] = set()
        answers = []
        # Until both have answered this question from a cache of their own.
        while sum(answer.header("x-forebay-cache") == "miss" for answer in answers) < 2:
            answers.append(await ask(served.url, CHAT, chat("q"), authorization="Bearer admin"))
        ids = {answer.header("x-request-id") for answer in answers}
        async with httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=10) as client:
            let_in = await client.post("/console/session", data={"key": "admin"})
            assert let_in.status_code == 303
            # Either worker takes the session.
            for _ in range(8):
                async with httpx.AsyncClient(base_url=served.url, trust_env=False, cookies=client.cookies) as other:
                    assert (await other.get("/console")).status_code == 200
            async with client.stream("GET", "/admin/events") as answer:
                events = Events(answer.aiter_lines())
                rows = (await events.next("decisions"))["decisions"]
                assert {row["request_id"] for row in rows} == ids
                assert {row["worker"] for row in rows} == {0, 1}
                state = await events.next("state")
                assert sum(state["totals"]["cache"].values()) == len(ids)
                assert state["answered"] == state["settings"]["workers"] == 2
                more = [await ask(served.url, CHAT, chat("q"), authorization="Bearer admin") for _ in range(6)]
                assert set(await events.ids(6)) == {answer.header("x-request-id") for answer in more}
