"""The console in a headless Chromium against a running gateway with scripted engines."""

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from bench.browser import Browser, Page
from bench.engine import Script, ScriptedEngine
from tests.integration.stack import Stack, chat, gateway, tiers, until

CHAT = "/v1/chat/completions"
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
VIEWS = ("live", "try", "whatif")
PRICES = {"small": {"input": 1.0, "output": 2.0}, "frontier": {"input": 10.0, "output": 20.0}}
TOTAL = "Number(document.querySelector('[data-tile=rate]').nextSibling.textContent.split(' ')[0])"


def priced(engine: ScriptedEngine, frontier: ScriptedEngine, **sections: Any) -> dict[str, Any]:
    document = {**tiers(engine, frontier=frontier), **sections}
    for name, price in PRICES.items():
        document["tiers"][name]["price"] = price
    return document


@asynccontextmanager
async def opened(browser: Browser, url: str, view: str = "live", **media: str) -> AsyncIterator[Page]:
    """The console in a page that hears the gateway; at the end it has said nothing wrong and asked nobody else."""
    async with browser.page(**media) as page:
        await page.go(f"{url}/console#{view}")
        await page.until("document.querySelector('#link')?.dataset.state === 'live'")
        yield page
        assert page.faults == []
        assert {request.rpartition("/")[0].startswith(url) for request in page.requests} == {True}


async def asked(stack: Stack, text: str, **fields: Any) -> str:
    answer = await stack.client.post(CHAT, json=chat(text, **fields))
    found: str = answer.headers["x-request-id"]
    await stack.line(found)
    return found


async def tile(page: Page, name: str) -> str:
    found: str = await page.text(f"[data-tile={name}]")
    return found


async def rows(page: Page) -> list[list[str]]:
    found: list[list[str]] = await page.ask(
        "[...document.querySelectorAll('#decisions tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    return found


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
        engine.health = 503
        await page.until("document.querySelector('#state .bad')?.textContent.includes('down')")


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


def recounted(lines: list[dict[str, Any]], similarity: float, complexity: float) -> dict[str, str]:
    """What the page must say, from the log alone."""
    reached = [line for line in lines if line["similarity"] is not None and line["similarity"] >= similarity]
    hits = [line for line in reached if line["semantic"] == "hit"]
    refused = [line for line in reached if line["semantic"] == "guarded"]
    unasked = len(reached) - len(hits) - len(refused)
    missed = [line for line in lines if line not in hits]
    frontier = tiers_asked = 0
    for line in missed:
        scored = line["complexity"] is not None and line["route_reason"] in ("complexity", "unfamiliar")
        tier = ("frontier" if line["complexity"] >= complexity else "small") if scored else line["tier"]
        tiers_asked += tier != "none"
        frontier += tier == "frontier"
    most = len(hits) + unasked
    return {
        "requests": str(len(lines)),
        "reached": str(len(reached)),
        "agreed": str(len(hits)),
        "refused": str(len(refused)),
        "unasked": str(unasked),
        "hits": str(most) if not unasked else f"{len(hits)} to {most}",
        "frontier": f"{100 * frontier / tiers_asked:.1f} %",
    }


async def outcome(page: Page, which: str = "would") -> dict[str, str]:
    found: dict[str, str] = await page.ask(
        f"Object.fromEntries([...document.querySelectorAll('[data-{which}]')].map(c => [c.dataset.{which}, c.textContent]))"
    )
    return found


async def traffic(stack: Stack) -> list[dict[str, Any]]:
    """Requests of every kind; the lines of those that were looked up or scored."""
    texts = ["one two three four", "four three two one", "one two three five", "one two three four", "write a poem"]
    texts += [
        "prove that there are infinitely many prime numbers and derive the bound",
        "hello",
        "hello you",
        "you hello",
    ]
    for text in texts:
        await asked(stack, text, model="auto")
    await asked(stack, "a named one", model="frontier")
    return [line for line in stack.lines() if line["semantic"] is not None or line["complexity"] is not None]


def but_frontier(said: dict[str, str], wanted: dict[str, str]) -> dict[str, str]:
    """What is to agree; the share is a range where the guard was not asked, of which the log gives one end."""
    share = said["frontier"].split(" to ")[0] if wanted["unasked"] != "0" else said["frontier"]
    return {name: said[name] for name in wanted} | {"frontier": share}


async def test_what_if_is_a_recount_of_the_log(
    browser: Browser, engine: ScriptedEngine, frontier: ScriptedEngine, tmp_path: Path
) -> None:
    async with gateway(priced(engine, frontier), semantic=True) as stack:
        lines = await traffic(stack)
        async with opened(browser, stack.url, "whatif") as page:
            await page.until("document.querySelectorAll('#outcome tbody tr').length > 0")
            wanted = recounted(lines, 0.9, 0.5)
            for which in ("as", "would"):
                assert but_frontier(await outcome(page, which), wanted) == wanted
            cost = sum(
                (
                    PRICES[line["tier"]]["input"] * line["input_tokens"]
                    + PRICES[line["tier"]]["output"] * line["output_tokens"]
                )
                for line in lines
                if line["tier"] != "none"
            )
            assert float((await outcome(page))["cost"]) == pytest.approx(cost / 1e6, abs=1e-5)
            # With the keyboard.
            await page.ask("document.querySelector('#similarity').focus()")
            for _ in range(30):
                await page.key("ArrowLeft", 37)
            tau = float(await page.ask("document.querySelector('#similarity-number').value"))
            assert tau == 0.75
            wanted = recounted(lines, tau, 0.5)
            assert but_frontier(await outcome(page), wanted) == wanted
            # With the mouse, on the plot.
            await page.ask("document.querySelector('#complexity').scrollIntoView()")
            left, top, width, height = await page.ask(
                "(() => { const r = document.querySelector('#chart-complexity .u-over').getBoundingClientRect();"
                " return [r.x, r.y, r.width, r.height]; })()"
            )
            await page.mouse("mousePressed", left + width * 0.5, top + height / 2)
            await page.mouse("mouseMoved", left + width * 0.05, top + height / 2)
            await page.mouse("mouseReleased", left + width * 0.05, top + height / 2)
            theta = float(await page.ask("document.querySelector('#complexity-number').value"))
            assert theta == pytest.approx(0.05, abs=0.01)
            wanted = recounted(lines, tau, theta)
            assert but_frontier(await outcome(page), wanted) == wanted
            assert (
                await page.text("#lines") == f"cache:\n  semantic:\n    threshold: {tau}\nrouter:\n  threshold: {theta}"
            )
            assert stack.process.services.config.router.threshold == 0.5, "nothing is changed"
            # A log that lies on the reader's machine says the same.
            log = tmp_path / "gateway.log"
            await asyncio.to_thread(log.write_bytes, b"not a line\n" + bytes(stack.log) + b"{broken\n")
            root = (await page.call("DOM.getDocument"))["root"]["nodeId"]
            field = (await page.call("DOM.querySelector", nodeId=root, selector="#log"))["nodeId"]
            await page.call("DOM.setFileInputFiles", nodeId=field, files=[str(log)])
            await page.until("document.querySelector('#source').textContent.includes('gateway.log')")
            assert but_frontier(await outcome(page), wanted) == wanted


async def test_shadow_runs_that_contradict_are_counted(browser: Browser, engine: ScriptedEngine) -> None:
    document = tiers(engine)
    document["cache"] = {"semantic": {"enabled": True, "threshold": 0.9, "shadow_rate": 1.0}}
    async with gateway(document) as stack:
        engine.defaults = Script(text="Yes, it is 4.")
        await asked(stack, "What is the sum of two and two?")
        engine.defaults = Script(text="No, it is 5.")
        await asked(stack, "what is the sum of two and two")
        await until(lambda: len(stack.process.services.shadow.compared) == 1)
        async with opened(browser, stack.url, "whatif") as page:
            await page.until("document.querySelector('[data-would=contradicted]')?.textContent === '1 of 1'")
            await page.ask("document.querySelector('#similarity').focus()")
            for _ in range(20):
                await page.key("ArrowRight", 39)
            assert await page.ask("document.querySelector('#similarity-number').value") == "1"


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


KEYS = [
    {"name": name, "tenant": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), "admin": name == "ops"}
    for name in ("ops", "client")
]


async def test_with_keys_an_administrator_signs_in(browser: Browser, engine: ScriptedEngine) -> None:
    async with gateway({**tiers(engine), "auth": {"keys": KEYS}}) as stack, browser.page() as page:
        await page.go(f"{stack.url}/console")
        assert page.statuses[f"{stack.url}/console"] == 403
        assert await page.ask("document.querySelector('script')") is None
        assert await faults(page) == []
        for key in ("client", "ops"):
            await page.write("[name=key]", key)
            await page.click("main button")
            if key == "client":
                await page.until("document.querySelector('[role=alert]')?.textContent.includes('not an administrator')")
        await page.until("document.querySelector('#link')?.dataset.state === 'live'")
        assert await page.ask("document.cookie") == "", "scripts cannot read the session"
        await page.until("!document.querySelector('#leave').hidden")
        await page.ask("location.hash = 'try'")
        await page.write("#ask textarea", "asked by a person")
        await page.click("#ask [name=send]")
        await page.until("document.querySelector('#timing').textContent.startsWith('Complete')")
        assert (stack.lines()[-1]["key"], stack.lines()[-1]["tenant"]) == ("ops", "ops")
        # Without the right to look, the page goes back to the form by itself.
        stack.process.services.keyring = type(stack.process.services.keyring)([])
        await page.ask("location.hash = 'live'")
        await page.click("#leave button")
        await page.until("document.querySelector('#link') === null || document.querySelector('[role=alert]') !== null")


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


async def faults(page: Page) -> list[str]:
    """The serious and critical faults that axe-core finds."""
    await page.ask(await asyncio.to_thread(AXE.read_text, encoding="utf-8"))
    found: list[dict[str, Any]] = (await page.ask("axe.run()"))["violations"]
    return [
        f"{fault['id']}: {fault['help']}: {[node['html'] for node in fault['nodes']][:3]}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_no_serious_fault_and_nothing_is_cut_off_on_a_phone(
    browser: Browser, engine: ScriptedEngine, frontier: ScriptedEngine, scheme: str
) -> None:
    async with gateway(priced(engine, frontier), semantic=True) as stack:
        await traffic(stack)
        engine.next.append(Script(status=500))
        await asked(stack, "it breaks", max_tokens=2)
        async with opened(browser, stack.url, prefers_color_scheme=scheme, prefers_reduced_motion="reduce") as page:
            await page.until(f"{TOTAL} === 11")
            for width in (1280, 360):
                await page.resize(width, 800)
                for view in VIEWS:
                    await page.ask(f"location.hash = '{view}'")
                    await page.until(f"!document.querySelector('#{view}').hidden")
                    if view == "try":
                        await page.ask("document.querySelector('#ask textarea').value = 'one two three four'")
                        await page.click("#explain")
                        await page.until("document.querySelector('#explained').dataset.told")
                    assert await faults(page) == [], (width, view)
                    wide = await page.ask("[document.documentElement.scrollWidth, innerWidth]")
                    assert wide[0] <= wide[1], (width, view)


async def test_every_control_can_be_reached_with_the_keyboard(browser: Browser, engine: ScriptedEngine) -> None:
    async with gateway(tiers(engine)) as stack, opened(browser, stack.url) as page:
        reached = []
        for _ in range(14):
            await page.key("Tab", 9)
            reached.append(await page.ask("document.activeElement.outerHTML.slice(0, 90)"))
        for part in (
            'class="skip"',
            'data-view="try"',
            'type="search"',
            'name="cache"',
            'id="pause"',
            'class="scroll"',
        ):
            assert any(part in element for element in reached), part
        await page.ask("document.querySelector('[data-view=whatif]').focus()")
        await page.key("Enter", 13, "\r")
        await page.until("!document.querySelector('#whatif').hidden")
        assert await page.ask("document.title") == "Forebay console: What if"


async def test_a_page_that_nobody_sees_draws_nothing(browser: Browser, engine: ScriptedEngine) -> None:
    async with gateway(tiers(engine)) as stack, opened(browser, stack.url, "try") as page:
        request_id = await asked(stack, "unseen")
        await page.until("performance.getEntriesByName('x').length === 0 && document.querySelector('#live').hidden")
        await asked(stack, "unseen again")
        assert await rows(page) == []
        await page.ask("location.hash = 'live'")
        await page.until(f"document.querySelector('[data-id=\"{request_id}\"]') !== null")
