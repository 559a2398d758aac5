"""The scripted engine: a real HTTP server that speaks vLLM's dialect and misbehaves on request."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import IO, Self

import orjson
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from bench.engine.answer import error_body
from bench.engine.connection import Connection, CutOff, Incoming, Reply
from bench.engine.metrics import Counts, render
from bench.engine.record import Seen
from bench.engine.respond import JSON, Responder
from bench.engine.script import Script, script_of
from bench.engine.slots import Slots
from bench.engine.validate import Invalid, body_of
from bench.engine.wire import Body


class Orders(BaseModel):
    """What `POST /control` may change; what is left out stays."""

    model_config = ConfigDict(extra="forbid")

    defaults: Script | None = None
    next: tuple[Script, ...] = ()
    models: tuple[str, ...] | None = None
    health: int | None = None
    max_running: int | None = None
    forget: bool = False
    """Drops the records and the scripts that wait to be used."""


class ScriptedEngine:
    """An async context manager that listens on a free port of `host`, a loopback address.

    `models` are the names it serves; `api_key` is required of /v1 routes where given; `max_running` requests run at one
    time and the rest wait, first come first served; `max_model_len` bounds prompt and answer together, in words;
    `acceptance` is the share of drafted tokens that its metrics say it accepts, None where it drafts none.

    `defaults` is the script of a request that brings none, `next` holds scripts that are used up first, one per
    request, and `health` is the status of /health; all may be changed while it runs. `requests` records the last `keep`
    requests to /v1 routes; `probes` those to /health and /v1/models, and those without the key. `log` gets a line of
    JSON per request when it has ended: `Seen.times`.
    """

    def __init__(
        self,
        *models: str,
        api_key: str | None = None,
        max_running: int | None = None,
        max_model_len: int = 100_000,
        defaults: Script | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
        keep: int = 10_000,
        acceptance: float | None = None,
    ) -> None:
        self.models: Sequence[str] = models or ("scripted",)
        self.api_key, self.max_model_len = api_key, max_model_len
        self.defaults = defaults or Script()
        self.next: deque[Script] = deque()
        self.health = 200
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self.requests: deque[Seen] = deque(maxlen=keep)
        self.probes: deque[Incoming] = deque(maxlen=keep)
        self.slots = Slots(max_running, self._tell)
        self.counts = Counts(acceptance)
        self.port, self.host = port, host
        # A line for each request that has ended is written here.
        self.log: IO[bytes] | None = None
        self._number = 0
        self._peers: set[Connection] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop_listening()
        tasks = [peer.task for peer in self._peers if peer.task is not None]
        self.drop_connections()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        """The address without /v1."""
        return f"http://{self.host}:{self.port}"

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return self.slots.running

    @property
    def waiting(self) -> int:
        """Requests in line for one."""
        return self.slots.waiting

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._peers)

    @property
    def blocked(self) -> int:
        """Connections whose peer does not read."""
        return sum(peer.blocked for peer in self._peers)

    async def listen(self) -> None:
        """Accepts connections; after `stop_listening` on the same port again."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self._handle, self._peers, self._tell, stamped=self.log is not None),
            self.host,
            self.port,
            backlog=4096,
            reuse_address=True,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop_listening(self) -> None:
        """Refuses further connections; those that are open stay."""
        if self._server is not None:
            self._server.close()
            self._server = None
            # The socket is taken away in the loop's next turn.
            await asyncio.sleep(0)

    def drop_connections(self) -> None:
        """Drops every open connection at once, as a killed process would."""
        for peer in list(self._peers):
            peer.abort()

    async def until(self, holds: Callable[[], bool], within: float = 5.0) -> None:
        """Waits until a condition on this engine holds. Raises TimeoutError after `within` seconds."""
        if holds():
            return
        waiter = (holds, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(within):
                await waiter[1]
        finally:
            self._waiters.remove(waiter)

    def obey(self, orders: Orders) -> None:
        """Changes what `orders` names."""
        if orders.forget:
            self.requests.clear()
            self.probes.clear()
            self.next.clear()
        self.defaults = orders.defaults or self.defaults
        self.next.extend(orders.next)
        self.models = orders.models or self.models
        self.health = orders.health or self.health
        self.slots.limit = orders.max_running or self.slots.limit

    async def _handle(self, request: Incoming, reply: Reply) -> None:
        match (request.method, request.path):
            case ("GET", "/health"):
                self.probes.append(request)
                await _send(request, reply, self.health, b"", {})
            case ("GET", "/version"):
                await _send_json(request, reply, 200, {"version": "0.29.0"})
            case ("GET", "/metrics"):
                text = render(self.counts, self.models[0], self.running, self.waiting)
                await _send(request, reply, 200, text, {"content-type": "text/plain; version=0.0.4; charset=utf-8"})
            case ("GET" | "POST", "/control"):
                await self._control(request, reply)
            case (_, path) if path.startswith("/v1/"):
                await self._v1(request, reply)
            case _:
                await _send_json(request, reply, 404, error_body(404, "Not Found"))

    async def _control(self, request: Incoming, reply: Reply) -> None:
        if request.method == "POST":
            try:
                self.obey(Orders.model_validate_json(request.body))
            except ValidationError as error:
                await _send_json(request, reply, 400, error_body(400, str(error)))
                return
        seen: list[JsonValue] = [record.summary() for record in self.requests]
        state: dict[str, JsonValue] = {
            "models": list(self.models),
            "defaults": self.defaults.model_dump(mode="json", exclude_defaults=True),
            "running": self.running,
            "waiting": self.waiting,
            "connections": self.connections,
            "probes": len(self.probes),
            "requests": seen,
        }
        await _send_json(request, reply, 200, state)

    async def _v1(self, request: Incoming, reply: Reply) -> None:
        if self.api_key is not None and request.headers.get("authorization") != f"Bearer {self.api_key}":
            self.probes.append(request)
            await _send_json(request, reply, 401, {"error": "Unauthorized"})
            return
        if (request.method, request.path) == ("GET", "/v1/models"):
            self.probes.append(request)
            await _send_json(request, reply, 200, self._model_list())
            return
        self._number += 1
        seen = Seen(self._number, request, asyncio.get_running_loop().time())
        self.requests.append(seen)
        self._tell()
        try:
            await self._inference(seen, reply)
            seen.state = "done"
        except CutOff:
            seen.state = "cut"
            raise
        except asyncio.CancelledError:
            # A reply that stalls ends when the client leaves; what matters is that it was broken off.
            if seen.state != "cut":
                seen.state = "aborted"
                self.counts.finished["abort"] += 1
            raise
        finally:
            seen.ended = asyncio.get_running_loop().time()
            if seen.status is not None:
                self.counts.received[seen.path, seen.method, seen.status] += 1
            if self.log is not None:
                self.log.write(orjson.dumps(seen.times()) + b"\n")
            self._tell()

    async def _inference(self, seen: Seen, reply: Reply) -> None:
        try:
            body = body_of(seen.incoming, self.models, self.max_model_len)
            script = script_of(seen.headers, body)
        except (Invalid, ValidationError) as error:
            seen.status = error.status if isinstance(error, Invalid) else 400
            fault = error_body(seen.status, str(error), error.param if isinstance(error, Invalid) else "script")
            await _send_json(seen.incoming, reply, seen.status, fault)
            return
        if script is None:
            script = self.next.popleft() if self.next else self.defaults
        seen.state = "waiting"
        async with self.slots.hold():
            seen.state = "running"
            self._tell()
            out = Body(script, reply, lambda: self._cutting(seen))
            await Responder(seen, script, body, out, self.counts, self._tell, lambda: self.running).respond()

    def _cutting(self, seen: Seen) -> None:
        seen.state = "cut"
        self._tell()

    def _model_list(self) -> dict[str, JsonValue]:
        rows: list[JsonValue] = [
            {
                "id": name,
                "object": "model",
                "created": 1_700_000_000,
                "owned_by": "vllm",
                "root": name,
                "parent": None,
                "max_model_len": self.max_model_len,
                "permission": [],
            }
            for name in self.models
        ]
        return {"object": "list", "data": rows}

    def _tell(self) -> None:
        for holds, waiter in self._waiters:
            if not waiter.done() and holds():
                waiter.set_result(None)


async def _send_json(request: Incoming, reply: Reply, status: int, value: JsonValue) -> None:
    await _send(request, reply, status, orjson.dumps(value), JSON)


async def _send(request: Incoming, reply: Reply, status: int, data: bytes, headers: Mapping[str, str]) -> None:
    await reply.start(status, headers, "length", len(data))
    if request.method != "HEAD":
        await reply.send(data)
    await reply.end()
