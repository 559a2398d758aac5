"""The gateway as a process: its sockets, its signals, and how it stops."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from functools import partial
from pathlib import Path

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from core import garbage
from core.config import Config
from core.config.load import telemetry
from core.config.records import Embedder
from core.embedder import Encoder
from core.errors import ConfigError, ForebayError, Problem
from gateway.app import App, Application, metrics_application
from gateway.embedder_process import RemoteEncoder
from gateway.journal import JsonLines, SharedStderr
from gateway.reload import Reload
from gateway.services import Services, opened, wants_embedder
from gateway.siblings import Family
from gateway.wire.http1 import Http1Connection
from gateway.workers import EMBEDDER, Lifeline, Supervisor, embedder_socket, runtime_folder

# A proxy in front keeps its idle connections for about a minute: ours live longer, so that it closes first. Seconds.
KEEP_ALIVE = 75
BACKLOG = 2048
# After the drain limit, whatever still runs is cancelled and has this long to clean up, in seconds.
CANCEL_LIMIT = 1

# What several workers do not share.
OWN_CACHES = (
    "each of %d workers has a cache of its own, and a conversation keeps its tier only within one; cache.store: "
    "redis://… shares both"
)

logger = logging.getLogger("forebay.server")

Announce = Callable[[str], None]
Read = Callable[[], Config]


class Listening(uvicorn.Server):
    """uvicorn without its own signal handling: `up` is set when it accepts connections, `stop` ends it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()
        self._told = asyncio.Event()

    async def main_loop(self) -> None:
        """Tick, as uvicorn does for its date header, until told to stop; being told is not waited for."""
        counter = 0
        while not await self.on_tick(counter):
            counter = (counter + 1) % 864_000
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await self._told.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections."""
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the process's signals alone."""
        yield

    def stop(self, *, at_once: bool = False) -> None:
        """Close the sockets, then the connections; `at_once` waits for nothing."""
        self.should_exit = True
        self.force_exit = self.force_exit or at_once
        self._told.set()


class Process:
    """One running gateway. `stop` is what the first SIGTERM does, `kill` the second; `reload` hears SIGHUP."""

    def __init__(self, services: Services, server: Listening, url: str, reload: Reload) -> None:
        self.services, self.server, self.url, self.reload = services, server, url, reload
        self._drain: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Be unready at once, let running requests end within `gateway.drain`, then stop."""
        if self._drain is None:
            self.services.load.drain()
            self._drain = asyncio.create_task(self._drained(), name="drain")
        else:
            self.kill()

    def kill(self) -> None:
        """Stop without waiting for anybody."""
        self.server.stop(at_once=True)

    async def _drained(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.services.config.gateway.drain):
                await self.services.load.idle()
        self.server.stop()

    async def ended(self) -> None:
        """Clean up after the server has ended."""
        if self._drain is not None:
            self._drain.cancel()
            await asyncio.gather(self._drain, return_exceptions=True)


def run(config: Config, announce: Announce, read: Read | None = None) -> int:
    """Serve until a signal; the exit code. `announce` gets the line that says where and what.

    `read` gives the configuration as it stands at a SIGHUP.

    Raises ConfigError for a configuration that cannot be served, ForebayError for an address that cannot be taken.
    """
    _servable(config)
    # Its own faults are said before anything listens.
    telemetry()
    _log_to_stderr()
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(contextlib.closing(s)) for s in listen(config)]
        if config.gateway.workers > 1:
            return _supervised(config, sockets, announce, read, stack)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(config, sockets, announce, read))
    return 0


def _supervised(
    config: Config, sockets: list[socket.socket], announce: Announce, read: Read | None, stack: contextlib.ExitStack
) -> int:
    """Serve with several workers."""
    count = config.gateway.workers
    folder = runtime_folder(stack)
    works = [partial(_work, sockets=sockets, read=read, family=(folder, n, count)) for n in range(count)]
    supervisor = Supervisor(config, read, works)
    if wants_embedder(config):
        supervisor.with_embedder(embedder_socket(folder, stack))
    if config.cache.store == "memory":
        logger.warning(OWN_CACHES, count)
    return supervisor.run(lambda: announce(f"{start_line(config, url_of(config, sockets[0]))}, {count} workers"))


def _work(
    lifeline: Lifeline, config: Config, sockets: list[socket.socket], read: Read | None, family: tuple[Path, int, int]
) -> int:
    """The life of one worker."""
    folder, number, count = family

    def shared_encoder(_: Embedder) -> Encoder:
        return RemoteEncoder(folder / EMBEDDER)

    if number:
        # What the supervisor or the first worker has said needs no repetition.
        logging.getLogger("forebay.reload").setLevel(logging.ERROR)

    async def live() -> None:
        loop = asyncio.get_running_loop()
        stderr = SharedStderr()
        try:
            async with Family(folder, number, count) as siblings:
                options = {
                    "write": stderr,
                    "make_encoder": shared_encoder,
                    "siblings": siblings,
                    "telemetry": telemetry(),
                }
                async with serving(config, sockets, read, **options) as (process, serve):
                    loop.add_reader(lifeline.parent, _orphaned, loop, lifeline.parent, process)
                    await _signalled(process, serve, lifeline.up)
        finally:
            stderr.flush()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(live())
    return 0


def _orphaned(loop: asyncio.AbstractEventLoop, parent: int, process: "Process") -> None:
    """The supervisor is gone: whoever asks is served to the end, and nobody else."""
    loop.remove_reader(parent)
    process.stop()


def listen(config: Config) -> list[socket.socket]:
    """The listening sockets: the main port, then the metrics port where it is another."""
    gateway = config.gateway
    sockets = [_bound(gateway.host, gateway.port, "gateway.port")]
    if gateway.metrics_port is not None:
        sockets.append(_bound(gateway.host, gateway.metrics_port, "gateway.metrics_port"))
    return sockets


async def _run(config: Config, sockets: list[socket.socket], announce: Announce, read: Read | None) -> None:
    async with serving(config, sockets, read, telemetry=telemetry()) as (process, serve):
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, process.stop)
        await _signalled(process, serve, lambda: announce(start_line(config, process.url)))


async def _signalled(process: "Process", serve: "asyncio.Task[None]", up: Callable[[], None]) -> None:
    """Serve until a signal; `up` is called once signals are heard."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, process.stop)
    loop.add_signal_handler(signal.SIGHUP, process.reload.ask)
    up()
    garbage.settle()
    await serve


@contextlib.asynccontextmanager
async def serving(
    config: Config, sockets: list[socket.socket], read: Read | None = None, **options: object
) -> AsyncIterator[tuple[Process, "asyncio.Task[None]"]]:
    """A gateway that answers on `sockets`, and the task that ends when it has been stopped.

    `read` gives the configuration again; `options` are those of `opened`. Leaving the context stops what still runs.
    """
    async with opened(config, **options) as services:  # type: ignore[arg-type]  # passed on as given
        application = Application(services)
        server = Listening(_uvicorn(application, Http1Connection))
        reload = Reload(services, read, partial(application.renew, services))
        process = Process(services, server, url_of(config, sockets[0]), reload)
        servers = [server]
        if len(sockets) > 1:
            servers.append(Listening(_uvicorn(metrics_application(services))))
        tasks = [asyncio.create_task(s.serve([sock])) for s, sock in zip(servers, sockets, strict=True)]
        try:
            await _all_up(servers, tasks)
            async with reload, application.console:
                yield process, tasks[0]
        finally:
            for running in servers:
                running.stop(at_once=running is not server)
            await asyncio.gather(*tasks, return_exceptions=True)
            await process.ended()


async def _all_up(servers: Sequence[Listening], tasks: "Sequence[asyncio.Task[None]]") -> None:
    """Wait until every server accepts connections; a task that ends before that raises its error here."""
    ups = [asyncio.create_task(server.up.wait()) for server in servers]
    try:
        for up in ups:
            await asyncio.wait({up, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        for up in ups:
            up.cancel()


def start_line(config: Config, url: str) -> str:
    """Where the gateway listens, what is behind it, and who may ask."""
    tiers = "; ".join(f"{name} {tier.model} at {', '.join(tier.urls)}" for name, tier in config.tiers.items())
    count = len(config.auth.keys)
    keys = (
        f"{count} client key{'s' if count > 1 else ''}" if count else "no client keys: open to all who reach the port"
    )
    return f"forebay: gateway at {url}, tiers: {tiers}, {keys}"


def url_of(config: Config, sock: socket.socket) -> str:
    """The address to reach the gateway at, without /v1."""
    host = config.gateway.host
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{sock.getsockname()[1]}"


def _uvicorn(app: App, connection: type[HttpToolsProtocol] = HttpToolsProtocol) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=CANCEL_LIMIT,
        backlog=BACKLOG,
    )


def _servable(config: Config) -> None:
    missing = [
        Problem(f"tiers.{name}.urls", "missing: `forebay serve` needs the address of a server that runs")
        for name, tier in config.tiers.items()
        if not tier.urls
    ]
    if missing:
        raise ConfigError(missing)


def _bound(host: str, port: int, key: str) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise ForebayError(f"cannot listen on {host}:{port} ({key}): {error.strerror or error}") from None
    return sock


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("forebay")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    # It reports an aborted connection as an error with a traceback; our line of that request says what happened.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
