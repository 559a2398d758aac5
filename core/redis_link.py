"""One Redis or Valkey server, or a cluster of them, behind a budget per operation and a breaker.

The only module that imports redis. Everything is a Lua script: one round trip, atomic, and the same on a server and on
a cluster, where all keys of a script must lie in one slot. So keys carry a hash tag, and `shards` says which there are.
"""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha1
from types import TracebackType
from typing import Any, Self, TypeVar

from redis import exceptions as raised
from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from core.breaker import Breaker, Tolerance
from core.clock import Clock
from core.config.addresses import RedisAddress
from core.errors import DependencyFault

logger = logging.getLogger("forebay.redis")
Result = TypeVar("Result")
Argument = str | bytes | int | float

# How long work in the background may wait for one operation, and after which a connection is given up, in seconds.
PATIENCE = 2.0
# Connections, and operations that may be under way: those that outlive their budget count until they end.
CONNECTIONS = 64
MAX_RUNNING = 256
# Parts into which a cluster's keys are divided, so that every server gets some.
CLUSTER_SHARDS = 16
# Turns of the event loop in which an answer may still come to light that has arrived while the loop itself was late.
GRACE = 4
# At most one line about refusals in so many seconds; the breaker's own lines are as seldom as its changes.
COMPLAIN_EVERY = 30.0


@dataclass(frozen=True)
class Script:
    """A Lua script. `source` reads its keys and arguments as Redis passes them."""

    source: str = field(repr=False)

    @property
    def digest(self) -> str:
        """The name that the server knows it by."""
        return sha1(self.source.encode(), usedforsecurity=False).hexdigest()


class RedisLink:
    """Runs scripts. An async context manager; entering connects to nothing, so a server may come later.

    `run` raises DependencyFault: `timeout` where the answer was not there within the budget, `error` where the server
    cannot be reached or refuses, `open` where it is left alone. A request never makes the trial of an open breaker:
    whoever runs scripts in the `background` does, so that a dead server costs requests nothing. After a `timeout` the
    same task is refused at once: one request pays the budget once.
    """

    def __init__(self, address: RedisAddress, clock: Clock, budget: float, name: str = "redis") -> None:
        self.breaker = Breaker(name, clock, Tolerance(cool=0.5), self._told)
        self.shards: tuple[str, ...] = ("0",)
        if address.cluster:
            self.shards = tuple(str(number) for number in range(CLUSTER_SHARDS))
        self._clock, self._budget = clock, budget
        self._client: Redis | RedisCluster = _client(address)
        self._digests: dict[Script, str] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self._quiet_until = 0.0
        self._broken = False
        # Whether the task that asks has waited for an answer in vain: a request pays the budget once, whatever it asks
        # of this server later.
        self._waited: ContextVar[bool] = ContextVar(f"waited for {name} in vain", default=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._client.aclose()

    async def run(
        self, script: Script, keys: Sequence[str], arguments: Sequence[Argument] = (), *, background: bool = False
    ) -> Any:
        """What the script returns: None, int, bytes, or a list of these."""
        if not background and self._waited.get():
            raise DependencyFault(f"{self.breaker.name} has been waited for in vain", "open")
        with self.breaker.attempt(trial=background):
            try:
                answer = await self._within(
                    PATIENCE if background else self._budget, self._evaluate(script, keys, arguments)
                )
            except DependencyFault as fault:
                if fault.kind == "timeout" and not background:
                    self._waited.set(True)
                raise
        if isinstance(answer, raised.ResponseError):
            # The server is there and says no: out of memory, read only, not allowed. That is no reason to leave it.
            self._complain(answer)
            raise DependencyFault(f"{self.breaker.name} refuses: {answer}", "error")
        return answer

    async def _within(self, seconds: float, operation: "Awaitable[Result]") -> Result:
        """The operation's result within the time. One that is late goes on by itself: a connection is never cut in
        the middle of an answer, and what was sent may still be done.
        """
        if len(self._running) >= MAX_RUNNING:
            _close(operation)
            raise DependencyFault("too many operations are under way", "timeout")
        task = asyncio.ensure_future(operation)
        self._running.add(task)
        task.add_done_callback(self._ended)
        await asyncio.wait({task}, timeout=seconds)
        for _ in range(GRACE):
            if not task.done():
                await asyncio.sleep(0)
        if not task.done():
            raise DependencyFault(f"no answer within {seconds * 1000:g} ms", "timeout")
        return task.result()

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            # Read, so that nobody complains that it was not.
            task.exception()

    async def _evaluate(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        digest = self._digests.get(script)
        if digest is None:
            digest = self._digests[script] = script.digest
        try:
            try:
                return await self._client.execute_command("EVALSHA", digest, len(keys), *keys, *arguments)
            except raised.NoScriptError:
                return await self._client.execute_command("EVAL", script.source, len(keys), *keys, *arguments)
        except (raised.ClusterDownError, raised.ConnectionError) as error:
            raise DependencyFault(_said(error), "error") from None
        except raised.TimeoutError as error:
            raise DependencyFault(_said(error), "timeout") from None
        except raised.ResponseError as error:
            return error
        except (raised.RedisError, OSError, asyncio.IncompleteReadError, AttributeError) as error:
            # AttributeError: a connection of the cluster's client that was closed while it was being made.
            raise DependencyFault(_said(error), "error") from None

    def _told(self, breaker: Breaker) -> None:
        """One line when the server is lost and one when it is back; failing trials in between say nothing."""
        if breaker.state == "open" and not self._broken:
            self._broken = True
            logger.warning("%s is left alone until it answers again: %s", breaker.name, breaker.reason)
        elif breaker.state == "closed" and self._broken:
            self._broken = False
            logger.warning("%s is back", breaker.name)

    def _complain(self, error: raised.ResponseError) -> None:
        now = self._clock.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + COMPLAIN_EVERY
            logger.warning("%s refuses: %s", self.breaker.name, error)


def _client(address: RedisAddress) -> "Redis | RedisCluster":
    # Time limits are ours, but for the last one: a connection whose answer never comes is given up.
    common: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": PATIENCE,
        "socket_connect_timeout": PATIENCE,
        **address.options,
    }
    # A pooled connection that the server has closed meanwhile is made anew, once.
    retry = Retry(NoBackoff(), 1, supported_errors=(raised.ConnectionError,))
    if address.cluster:
        return RedisCluster(
            host=address.host,
            port=address.port,
            username=address.username,
            password=address.password,
            ssl=address.tls,
            max_connections=CONNECTIONS,
            retry=retry,
            **common,
        )
    plain = Redis(
        host=address.host,
        port=address.port,
        db=address.database,
        username=address.username,
        password=address.password,
        ssl=address.tls,
        retry=retry,
        **common,
    )
    pool = plain.connection_pool
    blocking = BlockingConnectionPool(
        max_connections=CONNECTIONS,
        timeout=PATIENCE,
        connection_class=pool.connection_class,
        **pool.connection_kwargs,
    )
    return Redis.from_pool(blocking)


def _said(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _close(operation: "Awaitable[Any]") -> None:
    close = getattr(operation, "close", None)
    if close is not None:
        close()
