"""One embedder for all workers: a process that holds the model, and an encoder in each worker that asks it.

Over a Unix socket. First the process says who it is, in one line of JSON. Then each question is a line of JSON, the
texts; each answer a line of JSON, which texts were truncated, and the vectors as float32, one after another. Only
processes of the same user reach the socket.
"""

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Sequence
from io import BufferedRWPair
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from core.config.records import Embedder
from core.embedder import Embedding, EncoderError
from gateway.embedding import EncoderFactory, configured_encoder

logger = logging.getLogger("forebay.embedder")

# How long a worker waits for the model to be loaded, and for one pass, in seconds.
LOADING, PASS = 300.0, 10.0


def serve(listening: socket.socket, settings: Embedder, make: EncoderFactory = configured_encoder) -> None:
    """Load the model and answer every worker, each on a thread of its own. Never returns."""
    try:
        encoder = make(settings)
        encoder.encode(["warm"])
        hello: dict[str, Any] = {
            "name": encoder.name,
            "revision": encoder.revision,
            "dim": encoder.dim,
            "backend": f"{encoder.backend}, shared by the workers",
            "shares": encoder.shares,
        }
    except Exception as error:  # noqa: BLE001  # a boundary: model libraries raise anything, and the workers are told
        encoder, hello = None, {"fault": f"{type(error).__name__}: {error}"}
    # A model that gains from company computes one batch at a time; one that does not is safe on several threads.
    turn = threading.Lock() if encoder is not None and encoder.shares else contextlib.nullcontext()

    def answer(wire: socket.socket) -> None:
        with wire, wire.makefile("rwb") as stream, contextlib.suppress(OSError):
            stream.write(orjson.dumps(hello) + b"\n")
            stream.flush()
            while encoder is not None and (line := stream.readline()):
                with turn:
                    reply = _encoded(encoder.encode, line)
                stream.write(reply)
                stream.flush()

    while True:
        try:
            wire, _ = listening.accept()
        except OSError:
            if listening.fileno() < 0:
                # Closed: nobody is served any more.
                return
            raise
        threading.Thread(target=answer, args=(wire,), name="worker's texts", daemon=True).start()


def _encoded(encode: Any, line: bytes) -> bytes:
    try:
        found: Sequence[Embedding] = encode(orjson.loads(line))
    except Exception as error:  # noqa: BLE001  # a boundary, as above
        return orjson.dumps({"fault": f"{type(error).__name__}: {error}"}) + b"\n"
    head = orjson.dumps({"truncated": [one.truncated for one in found]}) + b"\n"
    return head + b"".join(one.vector.astype(np.float32).tobytes() for one in found)


def listen(path: Path) -> socket.socket:
    """The socket that the process answers on; it stays when the process is started again."""
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(os.fspath(path))
        listening.listen(128)
    except BaseException:
        listening.close()
        raise
    return listening


class RemoteEncoder:
    """The model of another process. Blocking, as every encoder; used by one thread at a time.

    A connection that broke is made again with the next text. Raises EncoderError where the other process could not load
    the model or compute a vector, OSError where it is not there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wire: socket.socket | None = None
        self._stream: BufferedRWPair[Any, Any] | None = None
        hello = self._connect(LOADING)
        self.name: str = hello["name"]
        self.revision: str = hello["revision"]
        self.dim: int = hello["dim"]
        self.backend: str = hello["backend"]
        self.shares: bool = hello["shares"]

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        """One unit vector per text, in order."""
        if self._stream is None:
            # The process may be loading the model again, after its death.
            self._connect(PASS)
        try:
            return self._ask(texts)
        except OSError:
            self._close()
            raise

    def _ask(self, texts: Sequence[str]) -> list[Embedding]:
        stream = self._stream
        assert stream is not None  # noqa: S101  # `encode` has connected
        stream.write(orjson.dumps(list(texts)) + b"\n")
        stream.flush()
        head = self._line(stream)
        raw = stream.read(4 * self.dim * len(texts))
        if len(raw) < 4 * self.dim * len(texts):
            raise ConnectionError("the embedder's process ended in the middle of an answer")
        rows = np.frombuffer(raw, dtype=np.float32).reshape(len(texts), self.dim)
        return [Embedding(row, cut) for row, cut in zip(rows, head["truncated"], strict=True)]

    def _connect(self, patience: float) -> dict[str, Any]:
        self._wire = socket.socket(socket.AF_UNIX)
        try:
            self._wire.settimeout(patience)
            self._wire.connect(os.fspath(self._path))
            stream = self._stream = self._wire.makefile("rwb")
            hello = self._line(stream)
            self._wire.settimeout(PASS)
        except BaseException:
            self._close()
            raise
        return hello

    def _close(self) -> None:
        for end in (self._stream, self._wire):
            if end is not None:
                with contextlib.suppress(OSError):
                    end.close()
        self._stream = self._wire = None

    @staticmethod
    def _line(stream: "BufferedRWPair[Any, Any]") -> dict[str, Any]:
        line = stream.readline()
        if not line:
            raise ConnectionError("the embedder's process has ended")
        found: dict[str, Any] = orjson.loads(line)
        if "fault" in found:
            raise EncoderError(found["fault"])
        return found
