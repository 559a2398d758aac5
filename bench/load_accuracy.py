"""`forebay bench` against the scripted engine's own log: is every percentile that it prints the truth?

    python -m bench.load_accuracy [--rounds 3] [--seconds 20] [--json]

At 10, 100 and 500 requests per second (answers of 16 tokens, at 500 of 8) each request has its own time to the first
token and between tokens, spread log-normally. The engine writes down when each request came and when it wrote the first
and the last token. Every percentile of TTFT, TPOT and E2E must be within 2 % or 1 ms of the log's, in the median of the
rounds. A run that finds itself void claims nothing and is made again, three times at most. Then CPU is taken away: the
generator is stopped for a moment in the middle of a run, which must be found void. Exits with 1 where something is off,
or no run was valid. On a machine that does other things, `chrt -r 5` in front of the command.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
import psutil

SCRIPT = {"ttft": 0.05, "itl": 0.01, "spread": 0.3}
# Requests per second, tokens per answer.
LOADS = ((10, 16), (100, 16), (500, 8))
PERCENTS = (50, 90, 95, 99)
SHARE, SECONDS = 0.02, 0.001
# How long the generator is stopped.
STOP = 1.0
# Runs of a round, until one is valid.
TRIES = 3


@dataclass(frozen=True)
class Figure:
    """One percentile in one round: what was reported, what the log has (seconds)."""

    rate: int
    name: str
    reported: float
    logged: float

    @property
    def off(self) -> float:
        """By how many times what is allowed."""
        return abs(self.reported - self.logged) / max(SHARE * self.logged, SECONDS)


@contextmanager
def engine(script: Mapping[str, object], log: Path) -> Iterator[str]:
    """A scripted engine's address; it writes its log while it runs."""
    command = [sys.executable, "-m", "bench.engine", "--model", "m", "--keep", "1", "--log", str(log)]
    command += ["--script", json.dumps(dict(script))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own
        try:
            yield str(json.loads(cast("Any", process.stdout).readline())["url"])
        finally:
            process.terminate()


def command(url: str, rate: float, seconds: float, tokens: int, seed: int = 0) -> list[str]:
    """`forebay bench` with this load."""
    load = ["--rate", str(rate), "--duration", f"{seconds}s", "--prompt-tokens", "100", "--output-tokens", str(tokens)]
    target = ["--url", f"{url}/v1", "--model", "m", "--seed", str(seed), "--json"]
    return [sys.executable, "-m", "forebay", "bench", *target, *load]


def logged(log: Path, count: int) -> dict[str, list[float]]:
    """TTFT, TPOT and E2E of the last `count` answers in the log."""
    rows = [json.loads(line) for line in log.read_text().splitlines()[-count:]]
    return {
        "ttft": [row["first"] - row["arrived"] for row in rows],
        "tpot": [(row["last"] - row["first"]) / (row["tokens"] - 1) for row in rows],
        "e2e": [row["last"] - row["arrived"] for row in rows],
    }


def once(rate: int, tokens: int, seconds: float, seed: int) -> tuple[list[Figure], dict[str, Any]]:
    """One run beside the log of its engine."""
    with tempfile.TemporaryDirectory(prefix="forebay-accuracy-") as folder:
        log = Path(folder) / "log.jsonl"
        with engine(SCRIPT, log) as url:
            done = subprocess.run(command(url, rate, seconds, tokens, seed), stdout=subprocess.PIPE, check=False)  # noqa: S603
        found = json.loads(done.stdout)
        truth = logged(log, found["requests"])
    figures = [
        Figure(rate, f"{metric} p{percent}", found[metric][f"p{percent}"], float(np.percentile(values, percent)))
        for metric, values in truth.items()
        for percent in PERCENTS
    ]
    return figures, found


def starved(seconds: float = 6.0) -> dict[str, Any]:
    """A run whose generator is stopped for a second: its document."""
    with (
        tempfile.TemporaryDirectory(prefix="forebay-accuracy-") as folder,
        engine(SCRIPT, Path(folder) / "log") as url,
        subprocess.Popen(command(url, 100, seconds, 8), stdout=subprocess.PIPE) as process,  # noqa: S603 - our own
    ):
        sender = _sender(psutil.Process(process.pid))
        time.sleep(seconds / 3)
        os.kill(sender.pid, signal.SIGSTOP)
        time.sleep(STOP)
        os.kill(sender.pid, signal.SIGCONT)
        out, _ = process.communicate()
    return cast("dict[str, Any]", json.loads(out))


def _sender(command: psutil.Process) -> psutil.Process:
    """The process that sends, once it has connections."""
    while True:
        for child in command.children(recursive=True):
            if any(line.status == psutil.CONN_ESTABLISHED for line in child.net_connections("tcp")):
                return child
        time.sleep(0.05)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.load_accuracy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures: list[Figure] = []
    runs: list[dict[str, Any]] = []
    for round_ in range(given.rounds):
        for rate, tokens in LOADS:
            for _ in range(TRIES):
                found, document = once(rate, tokens, given.seconds, round_)
                if document["valid"]:
                    break
            figures += found
            late = document["lateness"]
            kept = {key: document[key] for key in ("requests", "valid", "littles_law_ratio")}
            runs.append({"rate": rate, **kept, "late_p99_ms": late["p99_s"] * 1e3, "busy": late["busy"]})
    stopped = starved()
    rows = _rows(figures)
    missed = [row for row in rows if row["off"] > 1]
    void = not all(run["valid"] for run in runs)
    fired = not stopped["valid"]
    if given.json:
        print(json.dumps({"rows": rows, "runs": runs, "stopped_is_void": fired, "missed": missed}))
    else:
        print(f"{'requests/s':>10} {'figure':<9} {'reported':>10} {'log':>10} {'off ms':>8} {'of allowed':>11}")
        for row in rows:
            times = f"{row['reported_ms']:>10.3f} {row['logged_ms']:>10.3f} {row['off_ms']:>+8.3f}"
            print(f"{row['rate']:>10} {row['name']:<9} {times} {row['off']:>10.0%}")
        for run in runs:
            verdict = "valid" if run["valid"] else "VOID"
            late = f"sent late p99 {run['late_p99_ms']:.2f} ms, {run['busy']:.0%} of a core"
            print(f"{run['rate']:>4}/s: {run['requests']} requests, {verdict}, {late}")
        print(f"generator stopped for {STOP:g} s: {'found void' if fired else 'NOT NOTICED'}")
    return 1 if missed or void or not fired else 0


def _rows(figures: list[Figure]) -> list[dict[str, Any]]:
    rows = []
    for rate, name in dict.fromkeys((one.rate, one.name) for one in figures):
        same = [one for one in figures if (one.rate, one.name) == (rate, name)]
        middle = sorted(same, key=lambda one: one.off)[len(same) // 2]
        rows.append(
            {
                "rate": rate,
                "name": name,
                "reported_ms": middle.reported * 1e3,
                "logged_ms": middle.logged * 1e3,
                "off_ms": (middle.reported - middle.logged) * 1e3,
                "off": median(one.off for one in same),
            }
        )
    return rows


if __name__ == "__main__":
    sys.exit(main())
