"""A whole gateway on a real socket, in front of scripted engines."""

import asyncio
import hashlib
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import orjson

from bench.engine import ScriptedEngine
from core.config import validate
from core.config.records import Embedder
from core.config.telemetry import Telemetry
from core.embedder import Embedding, Encoder
from core.glance import Glance
from gateway.server import Process, Read, listen, serving
from gateway.upstream.names import Resolver

SMALL, FRONTIER = "small-model", "frontier-model"
Document = dict[str, Any]
# Reading the certificate authorities for every client would take longer than the tests.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class WordEncoder:
    """A bag of words as a unit vector: the same words in any order have similarity 1. Counts what it is asked."""

    name = "words"
    revision = "1"
    dim = 256
    backend = "test"
    shares = True

    def __init__(self) -> None:
        self.texts: list[str] = []

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        """One vector per text."""
        self.texts += texts
        return [Embedding(self._vector(text), truncated=False) for text in texts]

    def _vector(self, text: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        vector = np.zeros(self.dim, dtype=np.float32)
        for word in text.lower().split():
            vector[int.from_bytes(hashlib.blake2b(word.encode()).digest()[:4], "big") % self.dim] += 1
        return vector / np.float32(np.linalg.norm(vector))


@dataclass
class Stack:
    """The running gateway and what it said."""

    process: Process
    encoder: WordEncoder
    client: httpx.AsyncClient
    log: bytearray = field(default_factory=bytearray)

    @property
    def url(self) -> str:
        """The gateway's address, without /v1."""
        return self.process.url

    def lines(self) -> list[Document]:
        """The request lines so far."""
        return [orjson.loads(line) for line in bytes(self.log).splitlines()]

    async def line(self, request_id: str) -> Document:
        """The line of one request, once it has been settled."""
        await until(lambda: any(line["request_id"] == request_id for line in self.lines()))
        return next(line for line in self.lines() if line["request_id"] == request_id)

    async def metric(self, name: str, **labels: str) -> float:
        """The value of one sample of /metrics; 0 where it is not there."""
        text = (await self.client.get("/metrics")).text
        for line in text.splitlines():
            head, _, value = line.rpartition(" ")
            if head.partition("{")[0] == name and all(f'{key}="{wanted}"' in head for key, wanted in labels.items()):
                return float(value)
        return 0.0

    async def idle(self) -> None:
        """Wait until nothing runs, and see that nothing is held."""
        services = self.process.services
        await until(lambda: services.load.running == 0)
        for gate in services.tiers.values():
            assert gate.admission.inflight == gate.admission.waiting == 0
            assert all(replica.outstanding == 0 for replica in gate.replicas.all)


@asynccontextmanager
async def gateway(
    document: Document,
    *,
    semantic: bool = False,
    probed: bool = True,
    encoder: WordEncoder | None = None,
    resolver: Resolver | None = None,
    glance: Glance | None = None,
    read: Read | None = None,
    telemetry: Telemetry | None = None,
) -> AsyncIterator[Stack]:
    """The gateway of a configuration on a free port.

    Without `semantic` that layer is off. `probed`: wait until some server has been found up. `resolver`: who looks
    names up instead of the system. `glance`: the cheap approximation of the encoder. `read`: the configuration as it is
    to be from a reload on. `telemetry`: where traces go.
    """
    encoder = encoder or WordEncoder()

    def make(_: Embedder, made: Encoder = encoder) -> Encoder:
        return made

    config = validate(completed(document, semantic=semantic))
    log = bytearray()
    factories: dict[str, Any] = {"telemetry": telemetry, "make_encoder": make, "make_glance": lambda _: glance}
    async with (
        serving(config, listen(config), read, write=log.extend, resolver=resolver, **factories) as (process, _),
        httpx.AsyncClient(base_url=process.url, timeout=10, verify=NO_TLS) as client,
    ):
        await process.services.embedder.settled()
        encoder.texts.clear()
        stack = Stack(process, encoder, client, log)
        if probed:
            gates = process.services.tiers.values()
            await until(lambda: all(gate.replicas.ready for gate in gates))
        yield stack


def completed(document: Document, *, semantic: bool = False) -> Document:
    """The document as the tests' gateways take it."""
    document = {"gateway": {}, "cache": {}, **document}
    document["gateway"] = {"port": 0, "drain": "5s", **document["gateway"]}
    document["cache"] = {"semantic": {"enabled": semantic, "threshold": 0.9}, **document["cache"]}
    return document


def tiers(*small: ScriptedEngine, frontier: ScriptedEngine | None = None, **small_settings: Any) -> Document:
    """The `tiers` section for engines that run."""
    found: Document = {"small": {"model": SMALL, "urls": [engine.url for engine in small], **small_settings}}
    if frontier is not None:
        found["frontier"] = {"model": FRONTIER, "urls": [frontier.url]}
    return {"tiers": found}


def chat(text: str, **fields: Any) -> Document:
    """A chat request to the small tier."""
    return {"model": "small", "messages": [{"role": "user", "content": text}], **fields}


async def until(holds: Callable[[], bool], within: float = 5.0) -> None:
    """Wait for a condition. Raises TimeoutError."""
    async with asyncio.timeout(within):
        while not holds():  # noqa: ASYNC110  # the condition is anything that can be looked at
            await asyncio.sleep(0.002)


class RawClient:
    """A client that can leave in the middle: one request on one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def post(cls, url: str, path: str, body: Document, **headers: str) -> "RawClient":
        """Send a request; nothing of the answer is read."""
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        raw = orjson.dumps(body)
        lines = [f"POST {path} HTTP/1.1", f"host: {host}", f"content-length: {len(raw)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + raw)
        await writer.drain()
        return cls(reader, writer)

    async def leave(self) -> None:
        """Close the connection at once."""
        self.writer.transport.abort()
