"""Prefill replicas by a handle like Serve's."""

import asyncio
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from deploy.handoff import Ask
from deploy.peers import ServeGroup

ASK = Ask("chat", {"model": "m"}, {"x-request-id": "r", "x-session-id": "s"})


class Response:
    """As Serve's: awaited for the answer, and cancelled by a call."""

    def __init__(self, answer: "asyncio.Future[tuple[int, bytes]]") -> None:
        self._answer, self.cancelled = answer, False

    def __await__(self) -> Generator[Any, None, tuple[int, bytes]]:
        return self._answer.__await__()

    def cancel(self) -> None:
        self.cancelled = True
        self._answer.cancel()


class Handle:
    """As Serve's: `prefill` chooses the replicas in order, one per draw, and sends to the chosen one."""

    def __init__(self, replicas: Sequence[str]) -> None:
        self.replicas, self.sessions, self.sent, self.released = list(replicas), [], [], 0
        self.answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self.response = Response(self.answer)

    @property
    def prefill(self) -> "Handle":
        return self

    def options(self, session_id: str) -> "Handle":
        self.sessions.append(session_id)
        return self

    @asynccontextmanager
    async def choose_replica(self) -> AsyncIterator[Any]:
        first = self.replicas.pop(0)
        self.replicas.append(first)
        try:
            yield SimpleNamespace(replica_id=first)
        finally:
            self.released += 1

    def dispatch(self, selection: Any, path: str, raw: bytes, headers: dict[str, str]) -> Response:
        self.sent.append((selection.replica_id, path, orjson.loads(raw), headers))
        return self.response


async def test_the_replica_of_the_session_is_asked_with_path_body_and_headers() -> None:
    handle = Handle(["a", "b"])
    handle.answer.set_result((200, b'{"usage": null}'))
    async with ServeGroup(handle).choose(ASK, frozenset()) as peer:
        assert peer is not None
        reply = await peer.ask(ASK)
    assert (peer.name, reply.status, reply.body) == ("a", 200, {"usage": None})
    assert handle.sent == [("a", "/v1/chat/completions", {"model": "m"}, dict(ASK.headers))]
    assert handle.sessions == ["s"]


async def test_another_session_is_drawn_to_find_another_replica() -> None:
    handle = Handle(["a", "b"])
    async with ServeGroup(handle).choose(ASK, frozenset({"a"})) as peer:
        assert peer is not None
        assert peer.name == "b"
        assert handle.released == 1, "the room that was kept on the first is given back"
    assert handle.sessions[0] == "s"
    assert len(set(handle.sessions)) == 2


async def test_where_only_avoided_replicas_are_drawn_there_is_none() -> None:
    handle = Handle(["a"])
    async with ServeGroup(handle).choose(ASK, frozenset({"a"})) as peer:
        assert peer is None
    assert handle.released == len(handle.sessions)


async def test_a_cancelled_leg_is_cancelled_there() -> None:
    handle = Handle(["a"])
    async with ServeGroup(handle).choose(ASK, frozenset()) as peer:
        assert peer is not None
        asking = asyncio.ensure_future(peer.ask(ASK))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert handle.response.cancelled


async def test_an_answer_that_was_there_first_is_not_lost() -> None:
    handle = Handle(["a"])
    async with ServeGroup(handle).choose(ASK, frozenset()) as peer:
        assert peer is not None
        asking = asyncio.ensure_future(peer.ask(ASK))
        await asyncio.sleep(0)
        handle.answer.set_result((200, b'{"id": 1}'))
        asking.cancel()
        assert (await asking).body == {"id": 1}


async def test_a_replica_that_dies_raises() -> None:
    handle = Handle(["a"])
    handle.answer.set_exception(ConnectionError("gone"))
    async with ServeGroup(handle).choose(ASK, frozenset()) as peer:
        assert peer is not None
        with pytest.raises(ConnectionError):
            await peer.ask(ASK)
