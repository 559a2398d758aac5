"""The live view and the view to try a prompt, against a running gateway with scripted engines."""

import asyncio
import socket

import orjson
import pytest

from bench.browser import Browser
from bench.engine import Script, ScriptedEngine
from tests.browser.console import CHAT, TOTAL, asked, opened, priced, rows, tile, turn
from tests.integration.stack import chat, gateway, tiers, until

# One browser for all tests of a module, so one loop.
pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_tiles_follow_a_known_load_and_decisions_appear(
    browser: Browser, engine: ScriptedEngine, frontier: ScriptedEngine
) -> None:
    document = priced(engine, frontier, console={"history": 12})
    async with gateway(document) as stack, opened(browser, stack.url) as page:
        first = await asked(stack, "easy", tenant="t")
        await page.until(f"document.querySelector('[data-id=\"{first}\"]') !== null")
        for number in range(4):
            await asked(stack, f"small {number}", stream=True)
        for number in range(3):
            await asked(stack, f"large {number}", model="frontier")
        for number in range(4):
            await asked(stack, f"small {number}")
        engine.next.append(Script(status=500))
        await asked(stack, "broken", max_tokens=3)
        await page.until(f"{TOTAL} === 13")
        # Of 13, four were hits; five and the broken one asked the small tier, three the frontier tier.
        assert await tile(page, "hits") == "30.8 %"
        assert await tile(page, "tiers") == "66.7 % / 33.3 %"
        assert await tile(page, "errors") == "1"
        assert await tile(page, "queue") == "0 / 0"
        assert await tile(page, "shed") == "0"
        saved = await stack.metric("forebay_saved_tokens_total", source="exact")
        assert await tile(page, "saved") == f"{saved:g}"
        assert float((await tile(page, "ttft")).split(" / ")[0]) > 0
        shown = await rows(page)
        assert len(shown) == 12, "as many as the history"
        assert [row[3] for row in shown] == ["miss"] + ["hit-exact"] * 4 + ["miss"] * 7
        assert [row[7] for row in shown[5:9]] == ["frontier"] * 3 + ["small"]
        assert shown[0][11] in ("500", "502")
        await page.ask("document.querySelector('[name=cache]').value = 'hit-exact'")
        await page.ask("document.querySelector('#filter').dispatchEvent(new Event('input'))")
        assert len(await rows(page)) == 4
        assert await page.text("#shown") == "4 shown of the last 12"


async def test_refusals_and_queues_show(browser: Browser, engine: ScriptedEngine) -> None:
    engine.defaults = Script(ttft=30)
    document = tiers(engine, queue={"max_inflight": 1, "max_waiting": 1, "max_wait": "30s"})
    async with gateway({**document, "gateway": {"drain": "1ms"}}) as stack, opened(browser, stack.url) as page:
        waiting = [asyncio.create_task(stack.client.post(CHAT, json=chat(f"q {number}"))) for number in range(2)]
        await until(lambda: stack.process.services.tiers["small"].admission.waiting == 1)
        assert (await stack.client.post(CHAT, json=chat("too many"))).status_code == 429
        await page.until("document.querySelector('[data-tile=queue]').textContent === '1 / 1'")
        await page.until("document.querySelector('[data-tile=shed]').textContent === '1'")
        assert await page.text("[data-tile=shed] + .note") == "queue_full 1"
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_server_that_is_gone_shows_in_words(browser: Browser, engine: ScriptedEngine) -> None:
    async with gateway(tiers(engine)) as stack, opened(browser, stack.url) as page:
        await page.until("document.querySelector('#state .good')?.textContent.includes('up, breaker closed')")
        engine.models = ("another",)
        await page.until("document.querySelector('#state .bad')?.textContent.includes('down')")
        assert engine.url in await page.text("#state .bad")


async def test_explain_and_try_show_what_the_gateway_says(
    browser: Browser, engine: ScriptedEngine, frontier: ScriptedEngine
) -> None:
    async with gateway(priced(engine, frontier), semantic=True) as stack, opened(browser, stack.url, "try") as page:
        await asked(stack, "how do I reset my password", model="auto", max_tokens=256)
        await page.write("#ask textarea", "how do I reset a password")
        await page.click("#explain")
        await page.until("document.querySelector('#explained').dataset.told")
        body = chat("how do I reset a password", model="auto", max_tokens=256)
        direct = (await stack.client.post("/v1/explain", json=body, headers={"x-forebay-cache": "on"})).json()
        assert orjson.loads(await page.ask("document.querySelector('#explained').dataset.told")) == direct
        said = await page.text("#explained")
        assert f"{direct['router']['complexity']:.4f}, threshold 0.5" in said
        assert direct["fingerprint"]["id"] in said
        assert f"similarity {direct['cache']['semantic']['similarity']:.4f}" in said
        assert direct["cache"]["semantic"]["nearest"][0]["features"][0]["name"] in said
        assert len(engine.requests) == 1, "nothing was sent"
        await page.click("#ask [name=send]")
        await page.until("document.querySelector('#timing').textContent.startsWith('Complete')")
        assert await page.text("#answer") == "a short answer"
        headers = await page.text("#headers tbody")
        line = stack.lines()[-1]
        for part in (line["request_id"], "x-forebay-complexity", "x-forebay-route-reason", line["route_reason"]):
            assert part in headers


async def test_it_takes_up_where_it_was_after_a_restart(browser: Browser, engine: ScriptedEngine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    document = {**tiers(engine), "gateway": {"port": port}}
    async with browser.page() as page:
        async with gateway(document) as stack:
            before = await asked(stack, "before")
            await page.go(f"{stack.url}/console")
            await page.until(f"document.querySelector('[data-id=\"{before}\"]') !== null")
        await page.until("document.querySelector('#link').dataset.state === 'lost'")
        async with gateway(document) as stack:
            after = await asked(stack, "after")
            await page.until(f"document.querySelector('[data-id=\"{after}\"]') !== null")
            assert await page.ask("document.querySelector('#link').dataset.state") == "live"
            assert len(await rows(page)) == 2, "what was there stays"
            await page.until(f"{TOTAL} === 2")


@pytest.mark.parametrize("shown", [False, True])
async def test_prompts_are_shown_only_where_that_is_configured(
    browser: Browser, engine: ScriptedEngine, shown: bool
) -> None:
    document = {**tiers(engine), "console": {"show_prompts": shown}}
    async with gateway(document) as stack, opened(browser, stack.url) as page:
        request_id = await asked(stack, "a <b>secret</b> question")
        await page.until(f"document.querySelector('[data-id=\"{request_id}\"]') !== null")
        await page.click(f'[data-id="{request_id}"] button')
        await page.until("document.querySelector('#details').open")
        said = await page.text("#details dl")
        assert request_id in said
        assert ("a <b>secret</b> question" in said) is shown
        assert ("a short answer" in said) is shown
        assert await page.ask("document.querySelector('#details b')") is None
        await page.key("Escape", 27)
        await page.until("!document.querySelector('#details').open")


async def test_a_page_that_nobody_sees_draws_nothing(browser: Browser, engine: ScriptedEngine) -> None:
    async with gateway(tiers(engine)) as stack, opened(browser, stack.url, "try") as page:
        request_id = await asked(stack, "unseen")
        await asked(stack, "unseen again")
        assert await rows(page) == []
        await turn(page, "live")
        await page.until(f"document.querySelector('[data-id=\"{request_id}\"]') !== null")
