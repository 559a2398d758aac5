"""A conversation keeps its tier whichever gateway it comes to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.servers import Server, ask
from core.clock import SystemClock
from core.config import store_address
from core.redis_link import RedisLink
from core.request import InferenceRequest
from router.conversations import Conversations
from router.shared_conversations import SharedConversations
from tests.integration.shared import eventually, server

__all__ = ["server"]


def turns(*texts: str) -> InferenceRequest:
    """A chat whose turns alternate between user and assistant."""
    messages = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]
    return InferenceRequest("chat", {"model": "auto", "messages": messages})


@asynccontextmanager
async def gateway(url: str, most: int = 1000) -> AsyncIterator[Conversations]:
    async with (
        RedisLink(store_address(url), SystemClock(), 5.0) as link,
        SharedConversations(link, most) as elsewhere,
    ):
        yield Conversations(elsewhere=elsewhere)


async def test_the_other_gateway_knows_the_tier_and_it_never_goes_down(server: Server) -> None:
    async with gateway(server.url) as one, gateway(server.url) as other:
        one.remember("acme", turns("prove it"), "frontier")

        async def known(tenant: str = "acme") -> bool:
            request = turns("prove it", "done", "thanks")
            await other.recall(tenant, request)
            return other.floor(tenant, request) == "frontier"

        await eventually(known)
        assert not await known("globex"), "another tenant's"
        fresh = turns("something else", "done", "thanks")
        await other.recall("acme", fresh)
        assert other.floor("acme", fresh) is None
    async with gateway(server.url) as late, gateway(server.url) as last:
        late.remember("acme", turns("prove it"), "small")
        late.remember("acme", turns("a later one"), "small")

        async def written() -> bool:
            request = turns("a later one", "x", "y")
            await last.recall("acme", request)
            return last.floor("acme", request) == "small"

        await eventually(written)
        request = turns("prove it", "done", "thanks")
        await last.recall("acme", request)
        assert last.floor("acme", request) == "frontier", "once on the frontier tier, always"


async def test_what_is_kept_is_bounded(server: Server) -> None:
    async with gateway(server.url, most=50) as one:
        for number in range(500):
            one.remember("acme", turns(f"conversation {number}"), "small")

        async def bounded() -> bool:
            found = await asyncio.to_thread(ask, server.port, "ZCARD", "{fb0}:1:talk")
            return found == ":50"

        await eventually(bounded)


async def test_without_the_store_it_remembers_for_itself() -> None:
    async with gateway("redis://127.0.0.1:1/0") as alone:
        alone.remember("acme", turns("prove it"), "frontier")
        request = turns("prove it", "done", "thanks")
        await alone.recall("acme", request)
        assert alone.floor("acme", request) == "frontier"
        await alone.recall("acme", turns("unknown", "x", "y"))
