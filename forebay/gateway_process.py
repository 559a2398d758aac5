"""The gateway as a child process of `forebay up`: started, waited for, and ended with its streams finished."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from core.config.load import PREFIX
from core.errors import ForebayError

_POLL = 0.25
# The embedding model loads in the background; what is waited for is a tier that takes traffic. Seconds.
_READY = 180.0
# Beyond its own drain limit, until it is killed. Seconds.
_MARGIN = 10.0


class GatewayError(ForebayError):
    """The gateway did not start or does not stay up."""


class GatewayProcess:
    """`python -m forebay serve` with its own log. A context manager: leaving it ends the process."""

    def __init__(self, config: Path, url: str, log: Path, drain: float) -> None:
        """`drain` is how long the gateway lets streams finish, in seconds."""
        self._config, self._url, self._log, self._drain = config, url, log, drain
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(self._drain + _MARGIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def start(self) -> None:
        """Start it; it is not ready yet."""
        self._started = time.monotonic()
        # Overrides are in the file already; applied again they would undo the addresses that were filled in.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        search = [str(Path(__file__).parents[1]), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, search))
        with self._log.open("ab") as log:
            # A group of its own: Ctrl-C is for the supervisor, which ends things in their order.
            self._process = subprocess.Popen(  # noqa: S603  # our own module, by the running interpreter
                [sys.executable, "-m", "forebay", "serve", "--config", str(self._config)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def wait_ready(self, check: Callable[[], None]) -> None:
        """Wait until it takes traffic; `check` may raise to end the wait. Raises GatewayError."""
        deadline = time.monotonic() + _READY
        while True:
            check()
            self.refuse_if_ended()
            # Straight to this machine, whatever proxies the environment names.
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self._url}/ready", timeout=5, trust_env=False).status_code == 200:
                    return
            if time.monotonic() > deadline:
                raise GatewayError(f"the gateway is not ready after {_READY:.0f} s: {last_line(self._log)}")
            time.sleep(_POLL)

    def refuse_if_ended(self) -> None:
        """Raise GatewayError where it has ended."""
        if (code := self.exit_code()) is not None:
            raise GatewayError(f"the gateway ended with exit code {code}: {last_line(self._log)}")

    def exit_code(self) -> int | None:
        """How it ended, or None while it runs."""
        return self._process.poll() if self._process else None

    def age(self) -> float:
        """Seconds since the last start."""
        return time.monotonic() - self._started


def last_line(log: Path) -> str:
    """The last line of a log that says something."""
    lines = tail(log, 1)
    return lines[-1] if lines else f"nothing in {log}"


def tail(log: Path, count: int) -> list[str]:
    """The last lines of a log, without empty ones."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]
