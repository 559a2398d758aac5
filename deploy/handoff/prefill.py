"""The prefill leg: a replica that computes the prompt and keeps its blocks for the decode side."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from core.breaker import Breaker
from core.clock import Clock
from deploy.handoff.group import Ask, Json, Peer, PrefillGroup, Reply
from deploy.handoff.legs import blocks_of, cached_tokens, prefill_body, prompt_ids, says_error
from deploy.handoff.pairs import TOLERANCE, Pairs
from deploy.handoff.request import Request

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Handed:
    """A prompt that a prefill replica has computed. `params` say where its blocks are; `at` is when they were pinned.

    The breaker of the pair waits for the outcome.
    """

    peer: str
    params: Json
    cached: int | None
    at: float
    breaker: Breaker

    @property
    def blocks(self) -> int:
        """Blocks that wait to be read."""
        return blocks_of(self.params)


@dataclass(frozen=True)
class Failed:
    """A leg that gave nothing. `peer` None: nobody could be asked. `reply`: the request itself was refused."""

    reason: str
    peer: str | None = None
    reply: Reply | None = None


@dataclass
class _Leg:
    """What has come of one leg; read where it is broken off. `at`: when the group or the replica was asked."""

    at: float
    breaker: Breaker | None = None
    peer: str | None = None
    handed: Handed | None = None
    refused: set[str] = field(default_factory=set)


class Prefilling:
    """Asks prefill replicas. `unwanted` gets what was handed over for a request that has ended meanwhile.

    A deadline is held against a replica, or against the group where it had none with room, only after `patience`
    seconds: others may have used most of it up. While the group has none, one request at a time waits for it.
    """

    def __init__(
        self, group: PrefillGroup, clock: Clock, unwanted: Callable[[Request, Handed], None], patience: float
    ) -> None:
        self._group, self._clock, self._unwanted, self._patience = group, clock, unwanted, patience
        self._pairs = Pairs(clock)
        self._there = Breaker("prefill replicas", clock, TOLERANCE)

    async def leg(self, request: Request, tried: set[str], until: float) -> Handed | Failed:
        """Ask a replica that was not `tried`, until that time of the event loop.

        Cancelled, it aborts the prefill, or gives up the blocks that came at the same time.
        """
        ask = Ask(request.kind, prefill_body(request.kind, request.body or {}), request.headers)
        leg = _Leg(asyncio.get_running_loop().time())
        if not self._there.admit():
            return Failed("no_replica")
        try:
            async with asyncio.timeout_at(until):
                return await self._ask_one(request, ask, tried, leg)
        except TimeoutError:
            self._give_up(request, leg)
            late = self._there if leg.peer is None else leg.breaker
            if late is not None and leg.handed is None:
                if until - leg.at >= self._patience:
                    late.failed("deadline")
                else:
                    late.abandoned()
            return Failed("deadline" if leg.peer else "no_replica", leg.peer)
        except asyncio.CancelledError:
            self._give_up(request, leg)
            left = self._there if leg.peer is None else leg.breaker
            if left is not None and leg.handed is None:
                left.abandoned()
            raise
        except Exception as error:  # noqa: BLE001  # whatever a group without replicas looks like to its caller
            logger.warning("choosing a prefill replica failed with %s", type(error).__name__)
            self._give_up(request, leg)
            broken = self._there if leg.peer is None else leg.breaker
            if broken is not None and leg.handed is None:
                broken.failed("error")
            return Failed("no_replica" if leg.peer is None else "unreachable", leg.peer)

    async def _ask_one(self, request: Request, ask: Ask, tried: set[str], leg: _Leg) -> Handed | Failed:
        while True:
            async with self._group.choose(ask, frozenset(tried | leg.refused)) as peer:
                self._there.succeeded()
                if peer is None:
                    return Failed("breaker" if leg.refused else "no_replica")
                breaker = self._pairs.of(peer.name)
                if breaker.admit():
                    leg.peer, leg.breaker, leg.at = peer.name, breaker, asyncio.get_running_loop().time()
                    return await self._answer(request, ask, peer, leg)
                leg.refused.add(peer.name)

    async def _answer(self, request: Request, ask: Ask, peer: Peer, leg: _Leg) -> Handed | Failed:
        asking = asyncio.ensure_future(peer.ask(ask))
        try:
            reply = await asyncio.shield(asking)
        except asyncio.CancelledError:
            # By the deadline or the client. An answer that comes all the same has pinned blocks.
            asking.cancel()
            await asyncio.wait([asking])
            if not asking.cancelled() and asking.exception() is None:
                self._judge(request, asking.result(), leg)
            raise
        except Exception as error:  # noqa: BLE001  # whatever a replica's end looks like to its caller
            logger.warning("prefill on %s failed with %s", peer.name, type(error).__name__)
            return self._failed(leg, "unreachable")
        return self._judge(request, reply, leg)

    def _judge(self, request: Request, reply: Reply, leg: _Leg) -> Handed | Failed:
        assert leg.peer is not None and leg.breaker is not None  # noqa: S101, PT018  # a replica was asked
        if 400 <= reply.status < 500 and reply.status not in (408, 429):
            leg.breaker.succeeded()
            leg.breaker = None
            return Failed("refused", leg.peer, reply)
        if reply.status != 200 or says_error(reply.body):
            return self._failed(leg, "error")
        params = reply.body.get("kv_transfer_params")
        if not isinstance(params, Mapping):
            return self._failed(leg, "no_kv")
        leg.handed = Handed(leg.peer, params, cached_tokens(reply.body), self._clock.monotonic(), leg.breaker)
        if not leg.handed.blocks:
            leg.breaker.succeeded()
            leg.handed = leg.breaker = None
            return Failed("no_blocks", leg.peer)
        if not _same_prompt(request, reply.body):
            leg.breaker.succeeded()
            self._give_up(request, leg)
            leg.breaker = None
            return Failed("prompt_differs", leg.peer)
        return leg.handed

    def _failed(self, leg: _Leg, reason: str) -> Failed:
        assert leg.breaker is not None  # noqa: S101  # a replica was asked
        leg.breaker.failed(reason)
        leg.breaker = None
        return Failed(reason, leg.peer)

    def _give_up(self, request: Request, leg: _Leg) -> None:
        if leg.handed is not None:
            leg.handed.breaker.abandoned()
            self._unwanted(request, leg.handed)


def _same_prompt(request: Request, answer: Json) -> bool:
    """Whether both sides rendered the same prompt: blocks of another one would be read without an error."""
    ids = prompt_ids(answer)
    if ids is not None:
        return list(ids) == request.tokens
    usage = answer.get("usage")
    return isinstance(usage, Mapping) and usage.get("prompt_tokens") == len(request.tokens)
