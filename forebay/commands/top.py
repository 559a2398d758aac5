"""`forebay top`: the live view in a terminal."""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from core.errors import ForebayError
from forebay import configuration
from forebay.commands.explain import API_KEY, running

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from forebay.recent import Recent

# The gateway says something every second: after so many seconds without a word the line is dead. Then a pause.
SILENT, PAUSE = 6.0, 1.0
# Lines of the screen that are not decisions.
FRAME = 16
WIDE = 180


def add(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "top",
        help="the live view in a terminal",
        description="Requests, cache hits, tiers, queues and the last decisions of a running gateway, as /console "
        "shows them; Ctrl-C ends it. With keys configured, an administrator's is taken from FOREBAY_API_KEY. Where the "
        "output is no terminal, and with --json, it says what there is once and ends.",
        epilog="example: forebay top --url http://127.0.0.1:8080",
    )
    configuration.add_option(parser)
    parser.add_argument("--url", metavar="U", help="address of the gateway (default: the one that runs here)")
    parser.add_argument("--json", action="store_true", help="print one JSON document and end")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Show the events until somebody ends it."""
    from forebay.recent import Recent  # noqa: PLC0415  # keeps `--help` quick

    url = arguments.url or running(arguments)
    if not url:
        raise ForebayError("no gateway runs here; name one with --url")
    url = url.rstrip("/").removesuffix("/v1")
    recent = Recent()
    if arguments.json or not sys.stdout.isatty():
        for name, data in _events(url, ""):
            recent.take(name, data)
            if recent.state is not None:
                break
        _once(recent, as_json=arguments.json)
        return 0
    _live(url, recent)
    return 0


def _once(recent: "Recent", *, as_json: bool) -> None:
    from rich.console import Console  # noqa: PLC0415  # as above

    from forebay.screen import screen  # noqa: PLC0415  # as above

    if recent.state is None:
        raise ForebayError("the gateway ended the connection before it said anything")
    if not as_json:
        # As wide as it needs to be: who reads this is no terminal, or has one that breaks lines.
        Console(width=WIDE).print(screen(recent, "", 20))
        return
    figures = recent.figures()
    spreads = {name: None if (value := getattr(figures, name)) is None else value._asdict() for name in _SPREADS}
    print(json.dumps({"last_minute": figures._asdict() | spreads, "decisions": list(recent.rows), **recent.state}))


_SPREADS = ("ttft_ms", "tpot_ms")


def _live(url: str, recent: "Recent") -> None:
    """Until Ctrl-C; a connection that is lost is taken up where it ended."""
    import httpx  # noqa: PLC0415  # as above
    from rich.live import Live  # noqa: PLC0415  # as above

    from forebay.screen import screen  # noqa: PLC0415  # as above

    last, ended = [""], False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ended
        ended = True
        signal.default_int_handler(number, frame)

    # Where Python happens to be in a finalizer, it drops the exception: the next event asks again.
    signal.signal(signal.SIGINT, end)
    with Live(screen=True, auto_refresh=False) as live:

        def show(said: str) -> None:
            live.update(screen(recent, said, live.console.size.height - FRAME), refresh=True)

        show(f"connecting to {url}")
        while True:
            try:
                for name, data in _events(url, last[0], last):
                    recent.take(name, data)
                    show("draining" if recent.state is not None and recent.state["draining"] else "live")
                    if ended:
                        raise KeyboardInterrupt
            except httpx.TransportError:
                pass
            show("connection lost, trying again")
            time.sleep(PAUSE)


def _events(url: str, after: str, last: list[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of one connection, from the id `after` on; the id of each is put into `last`.

    Raises ForebayError where it is refused or nobody answers, httpx.TransportError where it breaks and `last` is given.
    """
    import httpx  # noqa: PLC0415  # as above

    key = os.environ.get(API_KEY)
    headers = {"accept": "text/event-stream"} | ({"authorization": f"Bearer {key}"} if key else {})
    if after:
        headers["last-event-id"] = after
    try:
        with httpx.stream("GET", f"{url}/admin/events", headers=headers, timeout=SILENT) as answer:
            if answer.status_code == 503 and last is not None:
                return
            if answer.status_code != 200:
                raise ForebayError(_refusal(url, answer.status_code, answer.read()))
            name = ""
            for line in answer.iter_lines():
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "id" and last is not None:
                    last[0] = value
                elif field == "data":
                    yield name, json.loads(value)
    except httpx.TransportError as error:
        if last is not None:
            raise
        raise ForebayError(f"no gateway answers at {url}: {error}") from None


def _refusal(url: str, status: int, body: bytes) -> str:
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"{url} does not answer as a Forebay gateway with a console (status {status})"
    hint = f" (the key is taken from {API_KEY})" if status == 403 else ""
    return f"{url} answers {status}: {message}{hint}"
