"""Who gets in, and whether everybody can use it: keys, keyboard, contrast, phones."""

import asyncio
import hashlib
import socket
from pathlib import Path
from typing import Any

import pytest

from bench.browser import Browser, Page
from bench.engine import Script, ScriptedEngine
from tests.browser.console import TOTAL, asked, opened, priced, traffic, turn
from tests.integration.stack import gateway, tiers

# One browser for all tests of a module, so one loop.
pytestmark = pytest.mark.asyncio(loop_scope="module")


async def faults(page: Page) -> list[str]:
    """The serious and critical faults that axe-core finds."""
    if await page.ask("typeof axe") == "undefined":
        await page.ask(f"{await asyncio.to_thread(AXE.read_text, encoding='utf-8')}; 0")
    found: list[dict[str, Any]] = await page.ask("axe.run({resultTypes: ['violations']}).then(told => told.violations)")
    return [
        f"{fault['id']}: {fault['help']}: {[node['html'] for node in fault['nodes']][:3]}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]


AXE = Path(__file__).parent / "vendor" / "axe.min.js"
VIEWS = ("live", "try", "whatif")
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
        await turn(page, "try")
        await page.write("#ask textarea", "asked by a person")
        await page.click("#ask [name=send]")
        await page.until("document.querySelector('#timing').textContent.startsWith('Complete')")
        assert (stack.lines()[-1]["key"], stack.lines()[-1]["tenant"]) == ("ops", "ops")
        await page.click("#leave button")
        await page.until("document.querySelector('[name=key]') !== null")


async def test_a_session_that_has_ended_leads_back_to_the_form(browser: Browser, engine: ScriptedEngine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    document = {**tiers(engine), "gateway": {"port": port}, "auth": {"keys": KEYS}}
    async with browser.page() as page:
        async with gateway(document) as stack:
            await page.go(f"{stack.url}/console")
            await page.write("[name=key]", "ops")
            await page.click("main button")
            await page.until("document.querySelector('#link')?.dataset.state === 'live'")
        async with gateway(document):
            await page.until("document.querySelector('[name=key]') !== null")


@pytest.mark.parametrize(("scheme", "looked"), [("light", 1280), ("dark", 360)])
async def test_axe_finds_no_serious_fault_and_nothing_is_cut_off_on_a_phone(
    browser: Browser, engine: ScriptedEngine, frontier: ScriptedEngine, scheme: str, looked: int
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
                    await turn(page, view)
                    if view == "try":
                        await page.ask("document.querySelector('#ask textarea').value = 'one two three four'")
                        await page.click("#explain")
                        await page.until("document.querySelector('#explained').dataset.told")
                    if width == looked:
                        assert await faults(page) == [], view
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
