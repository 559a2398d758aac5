"""The console in a page, as the tests here use it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.browser import Browser, Page
from bench.engine import ScriptedEngine
from tests.integration.stack import Stack, chat, tiers

CHAT = "/v1/chat/completions"
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


async def turn(page: Page, view: str) -> None:
    """Go to another view."""
    await page.ask(f"location.hash = '{view}'")
    await page.until(f"!document.querySelector('#{view}').hidden")


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
