"""A headless Chromium for tests and measurements, driven over its DevTools protocol.

It comes from the system (Debian: apt-get install chromium-headless-shell). Each page has a profile of its own, so that
cookies of one are not those of another, and keeps what it asked for over the network and what its console said.
"""

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import signal
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
# How long anything may take, in seconds, and how often a condition is looked at.
PATIENCE, LOOK = 45.0, 0.02
LARGEST = 64 * 1024**2
Document = dict[str, Any]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--disable-component-update",
    "--no-default-browser-check", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--force-color-profile=srgb",
)  # fmt: skip


class BrowserFault(Exception):
    """The browser could not do what it was asked."""


def program() -> str | None:
    """The browser's program; None where none is installed."""
    return next((found for name in NAMES if (found := shutil.which(name)) is not None), None)


class Browser:
    """An async context manager over one browser process. `wrap`: words before its command, such as those of `nice`."""

    def __init__(self, wrap: Sequence[str] = ()) -> None:
        self._wrap = wrap
        self._folder = tempfile.TemporaryDirectory(prefix="forebay-browser-", ignore_cleanup_errors=True)
        self._process: Process | None = None
        self._http: aiohttp.ClientSession | None = None
        self._wire: aiohttp.ClientWebSocketResponse | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Document]] = {}
        self._pages: dict[str, Page] = {}
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        name = program()
        if name is None:
            raise BrowserFault("no Chromium is installed")
        folder = Path(self._folder.name)
        command = [*self._wrap, name, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        with (folder / "stderr").open("wb") as said:
            # A group of its own: the browser's own children end with it.
            self._process = await asyncio.create_subprocess_exec(
                *command, stdout=DEVNULL, stderr=said, start_new_session=True
            )
        try:
            async with asyncio.timeout(60):
                address = await self._address(self._process, folder)
            self._http = aiohttp.ClientSession()
            self._wire = await self._http.ws_connect(address, max_msg_size=LARGEST)
            self._reading = asyncio.create_task(self._read(self._wire))
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._wire is not None:
            await self._wire.close()
        if self._http is not None:
            await self._http.close()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        self._folder.cleanup()

    @staticmethod
    async def _address(process: Process, folder: Path) -> str:
        """Where it listens, which it writes into its folder."""
        while process.returncode is None:
            with contextlib.suppress(FileNotFoundError, ValueError):
                port, path = (folder / "DevToolsActivePort").read_text(encoding="ascii").split()
                return f"ws://127.0.0.1:{port}{path}"
            await asyncio.sleep(LOOK)
        raise BrowserFault(f"Chromium did not start: {(folder / 'stderr').read_text(errors='replace')[-500:]}")

    async def call(self, method: str, session: str | None = None, **parameters: Any) -> Document:
        """One command of the protocol and its result. Raises BrowserFault."""
        if self._wire is None:
            raise BrowserFault("the browser does not run")
        number = next(self._numbers)
        message: Document = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._wire.send_json(message)
        async with asyncio.timeout(60):
            answer = await future
        if "error" in answer:
            raise BrowserFault(f"{method}: {answer['error'].get('message')}")
        result: Document = answer["result"]
        return result

    async def _read(self, wire: aiohttp.ClientWebSocketResponse) -> None:
        async for message in wire:
            document = message.json()
            waiting = self._waiting.pop(document.get("id", 0), None)
            if waiting is not None:
                if not waiting.done():
                    waiting.set_result(document)
            elif (page := self._pages.get(document.get("sessionId", ""))) is not None:
                page.hear(document["method"], document["params"])
        for waiting in self._waiting.values():
            waiting.cancel()

    @asynccontextmanager
    async def page(self, width: int = 1280, height: int = 900, **media: str) -> "AsyncIterator[Page]":
        """A page with cookies of its own. `media`: what its style sheets are told, as `prefers_color_scheme`."""
        context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        target = (await self.call("Target.createTarget", url="about:blank", browserContextId=context))["targetId"]
        session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            await page.call(f"{domain}.enable")
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        await page.call("Emulation.setEmulatedMedia", features=features)
        await page.resize(width, height)
        try:
            yield page
        finally:
            with contextlib.suppress(BrowserFault, TimeoutError):
                await self.call("Target.disposeBrowserContext", browserContextId=context)
            self._pages.pop(session, None)


class Page:
    """One page. `requests`: every address it asked for; `faults`: errors of its console, and those nobody caught."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.requests: list[str] = []
        self.faults: list[str] = []
        self.statuses: dict[str, int] = {}

    async def call(self, method: str, **parameters: Any) -> Document:
        """One command of the protocol to this page."""
        return await self._browser.call(method, self._session, **parameters)

    def hear(self, method: str, event: Document) -> None:
        """An event of the protocol."""
        if method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Network.responseReceived":
            self.statuses[event["response"]["url"]] = event["response"]["status"]
        elif method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.faults.append(f"{details['text']} {details.get('exception', {}).get('description', '')}")
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
            self.faults.append(" ".join(str(each.get("value", each.get("description"))) for each in event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.faults.append(f"{event['entry']['text']} {event['entry'].get('url', '')}")

    async def go(self, url: str) -> None:
        """Open an address, and wait until its document is there."""
        await self.call("Page.navigate", url=url)
        await self.until(f"location.href.startsWith({url.partition('#')[0]!r}) && document.readyState === 'complete'")

    async def ask(self, expression: str) -> Any:
        """The value of an expression, of a promise what it comes to. Raises BrowserFault for what it throws."""
        found = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise BrowserFault(
                f"{expression[:200]}: {details.get('exception', {}).get('description', details['text'])}"
            )
        return found["result"].get("value")

    async def until(self, expression: str, within: float = PATIENCE) -> Any:
        """Wait until an expression is true; its value. Raises TimeoutError with the expression and what it is."""
        last: Any = None
        try:
            async with asyncio.timeout(within):
                while True:
                    # A page that is being left has nothing to say yet.
                    with contextlib.suppress(BrowserFault):
                        last = await self.ask(expression)
                        if last:
                            return last
                    await asyncio.sleep(LOOK)
        except TimeoutError:
            raise TimeoutError(f"never true, but {last!r}: {expression}") from None

    async def click(self, selector: str) -> None:
        """Click in the middle of an element, with the mouse."""
        where = (
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
            " const r = e.getBoundingClientRect(), p = [r.x + r.width / 2, r.y + r.height / 2];"
            " return e.contains(document.elementFromPoint(...p)) && p; })()"
        )
        # What is still being laid out moves away under the mouse.
        before, at = None, await self.until(where)
        while at != before:
            await asyncio.sleep(LOOK)
            before, at = at, await self.until(where)
        await self.mouse("mousePressed", *at)
        await self.mouse("mouseReleased", *at)

    async def mouse(self, kind: str, x: float, y: float) -> None:
        """One event of the mouse with its left button."""
        await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    async def key(self, name: str, code: int, text: str = "") -> None:
        """Press and release one key; `code`: the number that Windows has for it."""
        common: Document = {"key": name, "code": name, "windowsVirtualKeyCode": code}
        typed: Document = {"text": text} if text else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **common, **typed)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def write(self, selector: str, text: str) -> None:
        """Put a text where somebody would type it."""
        await self.ask(f"document.querySelector({selector!r}).focus()")
        await self.call("Input.insertText", text=text)

    async def text(self, selector: str) -> str:
        """The text of an element."""
        found: str = await self.ask(f"document.querySelector({selector!r}).textContent")
        return found

    async def resize(self, width: int, height: int) -> None:
        """Give the page another size, in pixels of style sheets."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    async def picture(self) -> bytes:
        """What is to be seen, as a PNG."""
        shot = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(shot["data"])
