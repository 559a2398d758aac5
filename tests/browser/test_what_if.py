"""The what-if view: its figures are a recount of the log."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bench.browser import Browser, Page
from bench.engine import Script, ScriptedEngine
from tests.browser.console import PRICES, asked, opened, priced, traffic
from tests.integration.stack import gateway, tiers, until

# One browser for all tests of a module, so one loop.
pytestmark = pytest.mark.asyncio(loop_scope="module")


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
    cells = f"[...document.querySelectorAll('[data-{which}]')]"
    found: dict[str, str] = await page.ask(f"Object.fromEntries({cells}.map(c => [c.dataset.{which}, c.textContent]))")
    return found


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
        await asked(stack, "What is the sum of two and two")
        engine.defaults = Script(text="No, it is 5.")
        await asked(stack, "what is the sum of two and two")
        await until(lambda: len(stack.process.services.shadow.compared) == 1)
        async with opened(browser, stack.url, "whatif") as page:
            await page.until("document.querySelector('[data-would=contradicted]')?.textContent === '1 of 1'")
            await page.ask("document.querySelector('#similarity').focus()")
            for _ in range(20):
                await page.key("ArrowRight", 39)
            assert await page.ask("document.querySelector('#similarity-number').value") == "1"
