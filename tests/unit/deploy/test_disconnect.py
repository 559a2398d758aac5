"""A request that Serve cancels looks to the engine like a client that left."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from deploy.disconnect import EndOnCancel, Message, Receive, Send

HTTP = {"type": "http"}


class Handler:
    """As vLLM handles a request that does not stream: it waits for a task of its own, and for the client to leave."""

    def __init__(self) -> None:
        self.began, self.generating, self.ended = asyncio.Event(), False, False

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await receive()
        work = asyncio.create_task(self._generate())
        left = asyncio.create_task(self._left(receive))
        await asyncio.wait([work, left], return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        left.cancel()
        await asyncio.gather(work, left, return_exceptions=True)
        self.ended = True

    async def _generate(self) -> None:
        self.generating = True
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.generating = False

    async def _left(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


def messages(*given: Message) -> Receive:
    pending = list(given)

    async def receive() -> Message:
        if not pending:
            await asyncio.Event().wait()
        return pending.pop(0)

    return receive


async def nowhere(_: Message) -> None:
    """Send nothing."""


REQUEST: Message = {"type": "http.request", "body": b"{}", "more_body": False}


async def cancelled_once_it_generates(app: Callable[..., Any], handler: Handler) -> None:
    request = asyncio.create_task(app(HTTP, messages(REQUEST), nowhere))
    await handler.began.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request


async def test_without_it_a_cancelled_request_goes_on_generating() -> None:
    handler = Handler()
    await cancelled_once_it_generates(handler, handler)
    assert handler.generating


async def test_with_it_the_handler_ends_by_itself() -> None:
    handler = Handler()
    await cancelled_once_it_generates(EndOnCancel(handler), handler)
    assert not handler.generating
    assert handler.ended


async def test_a_handler_that_does_not_listen_is_cancelled() -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def deaf(scope: Any, receive: Receive, send: Send) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    request = asyncio.create_task(EndOnCancel(deaf)(HTTP, messages(REQUEST), nowhere))
    await began.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    async with asyncio.timeout(5):
        await cancelled.wait()


async def test_messages_and_answers_pass_unchanged() -> None:
    sent: list[Message] = []

    async def echo(scope: Any, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.body", "body": (await receive())["body"]})

    async def send(message: Message) -> None:
        sent.append(message)

    await EndOnCancel(echo)(HTTP, messages(REQUEST), send)
    assert sent == [{"type": "http.response.body", "body": b"{}"}]


async def test_errors_of_the_application_come_through() -> None:
    async def broken(scope: Any, receive: Receive, send: Send) -> None:
        raise LookupError("broken")

    with pytest.raises(LookupError, match="broken"):
        await EndOnCancel(broken)(HTTP, messages(REQUEST), nowhere)


async def test_other_scopes_are_left_alone() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        seen.append((scope, receive, send))

    receive = messages()
    await EndOnCancel(app)({"type": "lifespan"}, receive, nowhere)
    assert seen == [({"type": "lifespan"}, receive, nowhere)]
