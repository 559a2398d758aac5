"""Calls of the gateway's own: about its answers, never instead of them, and only while a tier has room to spare."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import orjson
from pydantic import JsonValue

from core.errors import UpstreamError
from gateway.ticket import Ticket
from gateway.tier import TierGate
from gateway.upstream.base import Call, Reply

Result = TypeVar("Result")
CHAT = "/v1/chat/completions"
# How often a call looks whether a client waits for the place it takes, in seconds.
LOOK = 0.02
# A longer answer is not read to its end, in bytes.
MAX_ANSWER = 1024**2


class NoRoom(Exception):  # not a fault: the tier is there for clients first
    """The tier has nothing to spare, or a client came who needs the place."""


def has_room(gate: TierGate) -> bool:
    """Whether the tier is at most half full and nobody waits for it."""
    admission, most = gate.admission, gate.settings.queue.max_inflight
    return admission.waiting == 0 and admission.inflight < max(1, most // 2)


async def in_spare_room(
    gate: TierGate, tenant: str, work: Callable[[], Coroutine[Any, Any, Result]], limit: float
) -> Result:
    """The result of `work`, done in a place of the tier that no client needs.

    Raises NoRoom where there is none, or where a client comes to wait meanwhile, TimeoutError after `limit` seconds,
    and whatever `work` raises.
    """
    if not has_room(gate):
        raise NoRoom
    async with asyncio.timeout(limit), gate.admission.enter(Ticket(tenant, "low", cost=gate.forecast.usual)):
        task = asyncio.create_task(work())
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=LOOK)
                if gate.admission.waiting and not task.done():
                    raise NoRoom
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def ask(gate: TierGate, body: Mapping[str, JsonValue], request_id: str) -> Mapping[str, JsonValue]:
    """The completion that a tier gives to a chat body. Raises RequestError."""
    headers = {
        "content-type": "application/json",
        "accept-encoding": "identity",
        "x-request-id": request_id,
    }
    if gate.authorization is not None:
        headers["authorization"] = gate.authorization
    call = Call("POST", CHAT, headers, orjson.dumps(body), gate.settings.timeout.connect)
    opened = await gate.replicas.open(call, _completion)
    opened.close()
    return opened.begun


def text_of(answer: Mapping[str, JsonValue]) -> str | None:
    """The text of the first choice of a chat completion; None where there is none."""
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, Mapping) else None
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, str) and content.strip() else None


async def _completion(reply: Reply) -> Mapping[str, JsonValue]:
    parts: list[bytes] = []
    size = 0
    while chunk := await reply.read():
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_ANSWER:
            raise UpstreamError("the answer is too long to be looked at")
    try:
        value = orjson.loads(b"".join(parts))
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict) or not isinstance(value.get("choices"), list):
        raise UpstreamError("the answer is not a completion")
    return value
