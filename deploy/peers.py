"""Prefill replicas by a Serve handle: one is chosen first, so that the decode side knows which pair it uses."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import orjson

from deploy.handoff import Ask, Peer, Reply

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

_PATHS = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}
# The header by which Serve knows a session.
_SESSION = "x-session-id"
# Serve chooses by session or at random: more draws than this find no replica that was not drawn before.
_DRAWS = 4
# Seconds for a cancelled leg to say what became of it.
_CANCEL = 1.0


class ServePeer:
    """A prefill replica that Serve has kept room on."""

    def __init__(self, handle: "DeploymentHandle", selection: Any) -> None:
        self._handle, self._selection = handle, selection

    @property
    def name(self) -> str:
        """Serve's id of the replica: another one after a restart."""
        return str(self._selection.replica_id)

    async def ask(self, ask: Ask) -> Reply:
        """One leg over Serve."""
        response = self._handle.prefill.dispatch(
            self._selection, _PATHS[ask.kind], orjson.dumps(ask.body), dict(ask.headers)
        )
        answer = asyncio.ensure_future(_answer(response))
        try:
            await asyncio.shield(answer)
        except asyncio.CancelledError:
            response.cancel()
            await asyncio.wait([answer], timeout=_CANCEL)
            if not answer.done() or answer.cancelled() or answer.exception() is not None:
                answer.cancel()
                raise
        status, raw = answer.result()
        value = orjson.loads(raw) if raw else {}
        return Reply(status, value if isinstance(value, dict) else {})


class ServeGroup:
    """The prefill replicas of a tier, by their deployment's handle."""

    def __init__(self, handle: "DeploymentHandle") -> None:
        self._handle = handle

    @asynccontextmanager
    async def choose(self, ask: Ask, avoid: frozenset[str]) -> AsyncIterator[Peer | None]:
        """A replica with room. Waits while there is none: Serve starts a replacement.

        The replica of the session comes first, because it knows the beginning of the prompt; another session's may be
        another one.
        """
        session = ask.headers.get(_SESSION)
        for _ in range(_DRAWS):
            handle = self._handle.options(session_id=session) if session else self._handle
            session = uuid.uuid4().hex
            async with handle.prefill.choose_replica() as selection:
                peer = ServePeer(handle, selection)
                if peer.name not in avoid:
                    yield peer
                    return
        yield None


async def _answer(response: Any) -> tuple[int, bytes]:
    status, raw = await response
    return int(status), bytes(raw)
