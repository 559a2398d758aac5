"""Active health: every server of every tier is asked for its models, in the background."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Self

import httpx

from core.background import Background
from gateway.tier import TierGate
from gateway.upstream.base import Server
from gateway.upstream.replicas import Health, Replica

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
    answer brings it back. Servers that join are asked at once, those that leave no more.
    """

    def __init__(self, gates: Iterable[TierGate]) -> None:
        self._gates = tuple(gates)
        self._tasks: dict[Replica, asyncio.Task[None]] = {}
        self._background = Background()
        self._clients: dict[bool, httpx.AsyncClient] = {}

    async def __aenter__(self) -> Self:
        for gate in self._gates:
            changed = partial(self._changed, gate)
            gate.replicas.listeners.append(changed)
            for replica in gate.replicas.all:
                changed(replica, True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._background.aclose()
        for client in self._clients.values():
            await client.aclose()

    def _client(self, url: str) -> httpx.AsyncClient:
        """The client for an address. With TLS it checks certificates; reading the authorities takes longer than
        everything else at the start, so that nobody does who has no such address.
        """
        secure = url.startswith("https:")
        client = self._clients.get(secure)
        if client is None:
            client = self._clients[secure] = httpx.AsyncClient(timeout=PATIENCE, trust_env=False, verify=secure)
        return client

    def _changed(self, gate: TierGate, replica: Replica, joins: bool) -> None:
        if joins:
            watching = self._watch(self._client(replica.url), gate, replica)
            self._tasks[replica] = self._background.start(watching, "probe")
            return
        task = self._tasks.pop(replica, None)
        if task is not None:
            task.cancel()
        gate.learn()

    async def _watch(self, client: httpx.AsyncClient, gate: TierGate, replica: Replica) -> None:
        names = {gate.settings.model, *gate.settings.adapters}
        late_in_a_row = 0
        while True:
            headers = {"authorization": gate.authorization} if gate.authorization is not None else {}
            fault, late, context = await probe(client, replica.server, headers, names)
            if context is not None and context != replica.context:
                replica.context = context
                gate.learn()
            late_in_a_row = late_in_a_row + 1 if late else 0
            if not late or late_in_a_row >= MAX_LATE:
                self._note(gate, replica, fault)
            await asyncio.sleep(INTERVAL)

    def _note(self, gate: TierGate, replica: Replica, fault: str | None) -> None:
        health: Health = "up" if fault is None else "down"
        if health != replica.health:
            level = logging.INFO if fault is None else logging.WARNING
            logger.log(level, "tier %s: %s is %s%s", gate.name, replica.url, health, f": {fault}" if fault else "")
        replica.health, replica.fault = health, fault
        if health == "up":
            gate.admission.wake()


async def probe(
    client: httpx.AsyncClient, server: Server, headers: Mapping[str, str], names: set[str]
) -> tuple[str | None, bool, int | None]:
    """What is wrong with a server, None where nothing is; whether it was only late; and its context length."""
    if server.host is not None:
        headers = {**headers, "host": server.host}
    extensions = {} if server.name is None else {"sni_hostname": server.name}
    try:
        answer = await client.get(f"{server.url}/v1/models", headers=headers, extensions=extensions)
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
