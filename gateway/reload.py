"""A configuration that changes while the gateway runs: read again, checked whole, and taken over without a break.

What runs goes on as it began. Queues, servers, limits and the cache stay what they are; only their settings change.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from core.config import Config, TierName
from core.config.live import renewal
from core.errors import ConfigError, Problem
from gateway.auth import Keyring
from gateway.services import Services, authorization_of

logger = logging.getLogger("forebay.reload")

# How often the files of keys are looked at, in seconds.
INTERVAL = 2.0
Stamp = tuple[int, int, int]


class Reload:
    """An async context manager that takes over changes while it is open.

    `read` gives the configuration as it stands in its file and the environment, raising ConfigError; None where there
    is no file to read. `renewed` is called after every change. Keys that come from files are followed by themselves;
    everything else waits for `again`. Methods belong to the event loop.
    """

    def __init__(self, services: Services, read: Callable[[], Config] | None, renewed: Callable[[], None]) -> None:
        self._services, self._read, self._renewed = services, read, renewed
        self._stamps = _stamps(services.config)
        self._watch: asyncio.Task[None] | None = None
        self._asked: set[asyncio.Task[bool]] = set()
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._watch = asyncio.create_task(self._follow(), name="key files")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [*self._asked, *([] if self._watch is None else [self._watch])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def ask(self) -> None:
        """Read the configuration again, in the background."""
        task = asyncio.create_task(self.again(), name="reload")
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    async def again(self) -> bool:
        """Read the configuration again; whether it was taken over. What is wrong is logged, and nothing changes."""
        if self._read is None:
            logger.warning("nothing to reload: the configuration does not come from a file")
            return False
        async with self._turn:
            try:
                new = renewal(self._services.config, await asyncio.to_thread(self._read))
                self._take(new.config)
            except ConfigError as error:
                logger.error("configuration not reloaded, the old one stays: %s", one_line(error))  # noqa: TRY400
                return False
        logger.info("configuration reloaded: %s", ", ".join(new.changed) or "nothing has changed")
        if new.kept:
            logger.warning("these keys need a restart, their old values stay: %s", ", ".join(new.kept))
        return True

    async def look(self) -> None:
        """Take over keys whose files have changed."""
        stamps = await asyncio.to_thread(_stamps, self._services.config)
        if stamps == self._stamps:
            return
        async with self._turn:
            try:
                self._take(self._services.config)
            except ConfigError as error:
                # Said once.
                self._stamps = stamps
                logger.error("keys not read again, the old ones stay: %s", one_line(error))  # noqa: TRY400
                return
        logger.info("keys read again, as their files have changed")

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            await self.look()

    def _take(self, config: Config) -> None:
        """All of it or, raising ConfigError, nothing."""
        services = self._services
        # Before the files are read: what changes meanwhile is seen the next time.
        stamps = _stamps(config)
        tiers = dict(config.tiers.items())
        missing = [Problem(f"tiers.{name}.urls", "missing") for name, tier in tiers.items() if not tier.urls]
        if missing:
            raise ConfigError(missing)
        keyring = Keyring(config.auth.keys)
        authorizations: dict[TierName, str | None] = {n: authorization_of(n, tier) for n, tier in tiers.items()}
        if services.config.auth.keys and not config.auth.keys:
            logger.warning("no client keys any more: open to all who reach the port")
        # From here on nothing can fail, and nothing waits.
        services.config, services.keyring = config, keyring
        for name, gate in services.tiers.items():
            gate.renew(tiers[name], authorizations[name])
            services.names.point(gate.replicas, tiers[name].urls)
        services.cache.renew(config.cache)
        services.shadow.renew(config.cache.semantic.shadow_rate)
        self._stamps = stamps
        self._renewed()


def check_secrets(config: Config) -> None:
    """Raises ConfigError where a key of a client or a tier cannot be read."""
    Keyring(config.auth.keys)
    for name, tier in config.tiers.items():
        authorization_of(name, tier)


def one_line(error: ConfigError) -> str:
    """Every problem, for a log."""
    return "; ".join(map(str, error.problems))


def _stamps(config: Config) -> dict[Path, Stamp | None]:
    """What tells whether the file of a key has changed; a link to another file is another file."""
    return {path: _stamp(path) for path in _files(config)}


def _files(config: Config) -> Iterable[Path]:
    yield from (Path(key.file) for key in config.auth.keys if key.file is not None)
    for tier in dict(config.tiers.items()).values():
        if tier.api_key is not None and tier.api_key.startswith("file:"):
            yield Path(tier.api_key.removeprefix("file:"))


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
