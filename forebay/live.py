"""Asking what a configuration names whether it is there."""

import asyncio

import httpx

from core.clock import SystemClock
from core.config import Tier, resolve_secret, store_address
from core.config.records import Embedder
from core.encoders import encoder_for
from core.errors import ConfigError, DependencyFault, Problem
from core.redis_link import PATIENCE, RedisLink, Script


def tier_faults(path: str, tier: Tier) -> list[Problem]:
    """Faults of one tier's servers: not reachable, refusing the key, or not serving the tier's model."""
    if not tier.urls:
        return []
    try:
        headers = {"Authorization": f"Bearer {resolve_secret(tier.api_key)}"} if tier.api_key else {}
    except ConfigError as error:
        return [Problem(f"{path}.api_key", problem.message) for problem in error.problems]
    return [
        Problem(f"{path}.urls[{index}]", fault)
        for index, url in enumerate(tier.urls)
        if (fault := _server_fault(url, tier, headers))
    ]


def _server_fault(url: str, tier: Tier, headers: dict[str, str]) -> str | None:
    try:
        answer = httpx.get(f"{url}/v1/models", headers=headers, timeout=tier.timeout.connect)
        answer.raise_for_status()
        served = [model["id"] for model in answer.json()["data"]]
    except httpx.HTTPStatusError as error:
        return f"{url} answers {error.response.status_code} to GET /v1/models"
    except httpx.HTTPError as error:
        return f"{url} cannot be reached: {error}"
    except (ValueError, KeyError, TypeError):
        return f"{url} does not answer GET /v1/models as an OpenAI-compatible server does"
    return None if tier.model in served else f"{url} serves {', '.join(served)}, not {tier.model}"


def embedder_faults(embedder: Embedder) -> list[Problem]:
    """Whether the embedding model loads."""
    try:
        encoder_for(embedder.model, embedder.source)
    except (OSError, ValueError) as error:
        first = str(error).partition("\n")[0]
        return [Problem("embedder", f"{embedder.source or embedder.model} cannot be loaded: {first}")]
    return []


def store_faults(path: str, store: str) -> list[Problem]:
    """Whether a shared store answers: reached, trusted, let in, and able to run scripts. `path`: its key."""
    if store == "memory":
        return []
    try:
        address = store_address(store)
    except ConfigError as error:
        return [Problem(path, problem.message) for problem in error.problems]

    async def probe() -> None:
        async with RedisLink(address, SystemClock(), PATIENCE, "the store") as link:
            await link.run(Script("return redis.call('EXISTS', KEYS[1])"), ["{fb0}:check"])

    try:
        asyncio.run(probe())
    except DependencyFault as fault:
        return [Problem(path, f"{address} does not answer: {fault}")]
    return []
