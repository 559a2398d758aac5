"""From the addresses in the configuration to servers: names are looked up again and again, and followed."""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from types import TracebackType
from typing import Protocol, Self
from urllib.parse import urlsplit

from core.background import Background
from core.config.records import TierName
from gateway.upstream.base import Server
from gateway.upstream.replicas import Replicas

logger = logging.getLogger("forebay.names")

# Seconds between two look-ups of a name, and for one look-up.
INTERVAL = 2.0
PATIENCE = 5.0
# How long the start waits for the first answers, in seconds.
FIRST = 2.0


class Resolver(Protocol):
    """Looks up names.

    `resolve` gives the addresses of a name, at least one, without duplicates. Raises OSError. Cancelling it is safe.
    """

    async def resolve(self, host: str) -> Sequence[str]: ...


class SystemResolver:
    """The operating system's resolver. Of a name with addresses of both families, those of IPv4 count: a server that
    has one of each is still one server.
    """

    async def resolve(self, host: str) -> Sequence[str]:
        """The addresses of a name."""
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        fours = [entry for entry in found if entry[0] == socket.AF_INET]
        return list(dict.fromkeys(str(entry[4][0]) for entry in fours or found))


@dataclass(eq=False, slots=True)
class Source:
    """One configured address and the servers behind it, as far as they are known."""

    url: str
    servers: tuple[Server, ...] = ()
    task: "asyncio.Task[None] | None" = field(default=None, repr=False)
    looked: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    @property
    def name(self) -> str | None:
        """The host where it has to be looked up. `localhost` is left to the system: it is never more than one."""
        host = urlsplit(self.url).hostname or ""
        if host == "localhost":
            return None
        try:
            ip_address(host)
        except ValueError:
            return host
        return None

    def at(self, addresses: Iterable[str]) -> tuple[Server, ...]:
        """The servers at these addresses, asked by the configured name."""
        parts = urlsplit(self.url)
        port = "" if parts.port is None else f":{parts.port}"
        name = parts.hostname or ""
        found = []
        for address in sorted(addresses):
            host = f"[{address}]" if ":" in address else address
            url = f"{parts.scheme}://{host}{port}{parts.path}"
            found.append(Server(url, f"{name}{port}", name if parts.scheme == "https" else None))
        return tuple(found)


class Names:
    """An async context manager that keeps the servers of every tier true while it is open.

    A name that cannot be looked up keeps its last known addresses; `on_fault(tier)` is told every time, and
    `Replicas.unresolved` shows it until the name is found again.
    """

    def __init__(
        self,
        tiers: Mapping[Replicas, Sequence[str]],
        resolver: Resolver,
        on_fault: Callable[[TierName], None],
    ) -> None:
        self._tiers, self._resolver, self._on_fault = tiers, resolver, on_fault
        self._sources: dict[Replicas, dict[str, Source]] = {replicas: {} for replicas in tiers}
        self._background = Background()

    async def __aenter__(self) -> Self:
        for replicas, urls in self._tiers.items():
            self.point(replicas, urls)
        waits = [source.looked.wait() for found in self._sources.values() for source in found.values() if source.task]
        if waits:
            try:
                async with asyncio.timeout(FIRST):
                    await asyncio.gather(*waits)
            except TimeoutError:
                pass
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._background.aclose()

    def point(self, replicas: Replicas, urls: Iterable[str]) -> None:
        """These are the tier's addresses; those that stay keep their servers."""
        known, wanted = self._sources[replicas], list(dict.fromkeys(urls))
        for url in known.keys() - set(wanted):
            source = known.pop(url)
            if source.task is not None:
                source.task.cancel()
            replicas.unresolved.pop(source.name or "", None)
        self._sources[replicas] = {url: known.get(url) or self._begin(replicas, url) for url in wanted}
        self._publish(replicas)

    async def refresh(self) -> None:
        """Look every name up at once, besides its turn."""
        named = [
            (replicas, source, name)
            for replicas, found in self._sources.items()
            for source in found.values()
            if (name := source.name) is not None
        ]
        await asyncio.gather(*(self._look(*one) for one in named))

    def _begin(self, replicas: Replicas, url: str) -> Source:
        source = Source(url)
        name = source.name
        if name is None:
            source.servers = (Server(url),)
        else:
            source.task = self._background.start(self._follow(replicas, source, name), f"name {name}")
        return source

    async def _follow(self, replicas: Replicas, source: Source, name: str) -> None:
        while True:
            await self._look(replicas, source, name)
            source.looked.set()
            await asyncio.sleep(INTERVAL)

    async def _look(self, replicas: Replicas, source: Source, name: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                addresses = await self._resolver.resolve(name)
        except (OSError, UnicodeError) as error:
            fault = str(error) or type(error).__name__
            if name not in replicas.unresolved:
                count = len(source.servers)
                logger.warning("tier %s: %s: %s; %d known addresses kept", replicas.tier, name, fault, count)
            replicas.unresolved[name] = fault
            self._on_fault(replicas.tier)
            return
        if replicas.unresolved.pop(name, None) is not None:
            logger.info("tier %s: %s is found again", replicas.tier, name)
        servers = source.at(addresses)
        if servers != source.servers:
            source.servers = servers
            logger.info("tier %s: %s is at %s", replicas.tier, name, ", ".join(server.url for server in servers))
            self._publish(replicas)

    def _publish(self, replicas: Replicas) -> None:
        replicas.follow(server for source in self._sources[replicas].values() for server in source.servers)
