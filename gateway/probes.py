"""Active health: every server of every tier is asked for its models, in the background."""

import asyncio
import logging
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import httpx

from gateway.tier import TierGate
from gateway.upstream.replicas import Replica

logger = logging.getLogger("forebay.probes")

# Seconds between two probes of a server, and for one probe.
INTERVAL = 2.0
PATIENCE = 5.0
# A full engine answers late, which is no failure; so many late answers in a row are.
MAX_LATE = 3


class Probes:
    """An async context manager that keeps `Replica.health` of all servers true while it is open.

    A server is up when `GET /v1/models`, sent with the tier's key, names the tier's model. One that refuses, fails or
    serves another model is down at once; one that is late is down after MAX_LATE late answers in a row. The next good
    answer brings it back.
    """

    def __init__(self, gates: Iterable[TierGate]) -> None:
        self._gates = tuple(gates)
        self._tasks: list[asyncio.Task[None]] = []
        self._client: httpx.AsyncClient | None = None
        self._late: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        # Reading the certificate authorities takes longer than everything else at the start; without TLS nobody asks.
        secure = any(replica.url.startswith("https:") for gate in self._gates for replica in gate.replicas.all)
        self._client = httpx.AsyncClient(timeout=PATIENCE, trust_env=False, verify=secure)
        for gate in self._gates:
            for replica in gate.replicas.all:
                self._tasks.append(asyncio.create_task(self._watch(self._client, gate, replica), name="probe"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    async def _watch(self, client: httpx.AsyncClient, gate: TierGate, replica: Replica) -> None:
        headers = {"authorization": gate.authorization} if gate.authorization is not None else {}
        names = {gate.settings.model, *gate.settings.adapters}
        while True:
            fault, late, context = await probe(client, replica.url, headers, names)
            if context is not None and context != replica.context:
                replica.context = context
                gate.learn()
            count = self._late[replica.url] = self._late.get(replica.url, 0) + 1 if late else 0
            if not late or count >= MAX_LATE:
                self._note(gate, replica, fault)
            await asyncio.sleep(INTERVAL)

    def _note(self, gate: TierGate, replica: Replica, fault: str | None) -> None:
        health = "up" if fault is None else "down"
        if health != replica.health:
            level = logging.INFO if fault is None else logging.WARNING
            logger.log(level, "tier %s: %s is %s%s", gate.name, replica.url, health, f": {fault}" if fault else "")
        if fault is None and replica.health == "down":
            replica.avoid_until = 0.0
        replica.health = "up" if fault is None else "down"
        replica.fault = fault


async def probe(
    client: httpx.AsyncClient, url: str, headers: dict[str, str], names: set[str]
) -> tuple[str | None, bool, int | None]:
    """What is wrong with a server, None where nothing is; whether it was only late; and its context length."""
    try:
        answer = await client.get(f"{url}/v1/models", headers=headers)
    except httpx.TimeoutException as error:
        return f"no answer in time ({type(error).__name__})", not isinstance(error, httpx.ConnectTimeout), None
    except (httpx.HTTPError, OSError) as error:
        return f"{type(error).__name__}: {error}", False, None
    if answer.status_code != 200:
        return f"/v1/models answered {answer.status_code}", False, None
    served = _served(answer)
    ours = names & served.keys()
    if not ours:
        return f"serves {', '.join(sorted(served)) or 'nothing'} instead of {', '.join(sorted(names))}", False, None
    return None, False, min((length for name in ours if (length := served[name]) is not None), default=None)


def _served(answer: httpx.Response) -> dict[str, int | None]:
    """The models of a server, each with its context length where it is told."""
    try:
        rows = answer.json()["data"]
        lengths = {str(row["id"]): row.get("max_model_len") for row in rows}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {name: length if isinstance(length, int) and length > 0 else None for name, length in lengths.items()}
